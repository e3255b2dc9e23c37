"""Folders: a target whose copies are folders, each of a path of its own, on a disk or in an object store."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from shmstore.consumer.copies.target import TargetTable

AT_ONCE = max(2, min(4, os.cpu_count() or 1))  # copies that are written at the same time: each needs memory of its own
# delta-rs takes % for an escape of its own and a backslash for a slash, and panics at some others
_NO_FOLDER = re.compile(r"^[._]|[~%/\\{}\[\]^|\x00-\x1f\x7f]")


class Folders:
    """Copies in folders; `open(path, name)` opens one. `listed` gives the folders' names in a folder of an object store. `at_once` copies may be
    written at the same time."""

    def __init__(
        self, open: Callable[[str, str], TargetTable], listed: Callable[[str], list[str]] = lambda url: [], at_once: int = 1
    ) -> None:
        self._open, self._listed, self.at_once = open, listed, at_once

    def table(self, path: str, name: str) -> TargetTable:
        """`Target.table`."""
        return self._open(path, name)

    def named(self, name: str) -> str:
        """One folder, inside the target, that readers such as Spark do not take for hidden."""
        return _NO_FOLDER.sub(lambda found: f"~{ord(found[0]):02X}", name)

    def unnamed(self, part: str) -> str:
        """`Target.unnamed`."""
        return re.sub("~(..)", lambda code: chr(int(code[1], 16)), part)

    def next_path(self, path: str, number: int) -> str:
        """A folder inside the copy's own, which readers of the copy do not look at."""
        return f"{path}/_next-{number:x}"

    def aside_path(self, path: str) -> str:
        """A folder inside the copy's own, too."""
        return f"{path}/_deleted"

    def paths(self, template: str) -> list[str]:
        """`Target.paths`."""
        if "://" not in template:
            return glob.glob("*".join(map(glob.escape, re.split(r"\{(?:database|table)\}", template))))
        head, _, tail = template.partition("{table}")
        if "{database}" in template:
            raise ValueError(f"copies in {template!r} cannot be listed: an object store lists the folders of one folder")
        parent, _, prefix = head.rpartition("/")
        end, slash, below = tail.partition("/")
        names = [name for name in self._listed(f"{parent}/") if name.startswith(prefix) and name.endswith(end)]
        return [f"{parent}/{name}{slash}{below}" for name in names if not name.startswith("_")]

    def transaction(self) -> AbstractContextManager[None]:
        """Each step is a commit of its own."""
        return nullcontext()

    def close(self) -> None:
        """Nothing is open."""
