"""Folders: a target whose copies are folders, each of a path of its own, on a disk or in an object store.

A removed copy leaves its marks in a file next to its folder, which no reader of copies looks at. A process that was overtaken knows by them
that it is behind: it must not create the copy again, nor remove or write to one that came later. So that it looks at them and writes in
one, each write holds the folder above shared, and a removal holds it alone. A removal that was killed before the folder went is done
again: the copy's own marks say that it was not.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from shmstore.atomic_file import replace
from shmstore.consumer.copies.target import TargetFailed, TargetTable
from shmstore.errors import StoreError

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


def _left(path: str | Path) -> Path:
    """The file that a removed copy leaves."""
    path = Path(os.path.abspath(path))
    return path.with_name(f".{path.name}.removed")


def removed_marks(path: str | Path) -> dict[str, int]:
    """The marks that the copy which was removed from `path` last left; none where no copy was."""
    try:
        return {} if "://" in str(path) else dict(json.loads(_left(path).read_text()))
    except FileNotFoundError:
        return {}


@contextmanager
def unremoved(path: str | Path, name: str, known: Mapping[str, int], *, alone: bool = False) -> Iterator[None]:
    """Meanwhile no other process removes the copy of `name` at `path`, nor, with `alone`, writes to it. Raises `TargetFailed` where one has removed it
    since `known`, its `removed_marks`, were read."""
    if "://" in str(path):
        yield
        return
    with held(_left(path).parent, path, name, alone=alone):
        if removed_marks(path) != known:
            raise TargetFailed(f"another process removed the copy {path} of {name}")
        yield


@contextmanager
def held(folder: Path, path: str | Path, name: str, *, alone: bool) -> Iterator[None]:
    """Make `folder` for the copy of `name` at `path`, and hold it: `alone`, or together with others that do not hold it alone. Raises `TargetFailed`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise TargetFailed(
            f"the copy {path} of {name} cannot be written: {error.strerror}; make space there, or choose another target"
        ) from error
    try:
        with suppress(OSError):  # a network's file system may lock no folder: then only the marks tell
            fcntl.flock(opened, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)  # the kernel gives it up with the process
        yield
    finally:
        os.close(opened)


def remove_folder(path: str | Path, name: str, marks: Mapping[str, int]) -> None:
    """Remove the folder of a copy, which the process holds alone; `removed_marks` are `marks` from then on."""
    going = _left(path).with_suffix(".going")
    try:
        if marks:
            text = json.dumps(dict(marks))
            replace(_left(path), lambda file: file.write_text(text), f"marks of {name},", "choose another target")
        shutil.rmtree(going, ignore_errors=True)  # of a process that was killed here
        os.rename(path, going)  # no process sees half a copy
    except (StoreError, OSError) as error:
        raise TargetFailed(f"the copy {path} of {name} cannot be removed: {error}") from error
    shutil.rmtree(going, ignore_errors=True)
