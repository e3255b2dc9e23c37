"""How far the source of a comparison was read, on disk, so that it is not read again after a kill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from shmstore import StoreView, TableSchema
from shmstore.atomic_file import replace
from shmstore.encoding.codec import encode_schema
from shmstore.producer.verify.digests import Digests, any_point, parts_for
from shmstore.stored_json import read_json


class SourceProgress:
    """What is written down of one table, in `folder`.

    point    where the numbers of rows are taken
    first    the event behind which changes are noted
    after    the last key, as SQL literals
    counts   the rows of each part of the digests
    whole    whether all was read
    """

    def __init__(self, folder: Path, schema: TableSchema, view: StoreView, found: dict[str, Any], rows: int) -> None:
        self.folder, self._what = folder, {"epoch": view.epoch, "schema": encode_schema(schema).hex()}
        mine = {key: found.get(key) for key in self._what} == self._what and "point" in found
        mine = mine and found["first"] + 1 >= view.oldest  # else what changed since is not known any more
        self.first: int | None = found["first"] if mine else None
        self.after: tuple[str, ...] = tuple(found["after"]) if mine else ()
        self.whole: bool = mine and found["whole"]
        counts = found["counts"] if mine else ()
        point = found["point"] if mine else any_point()
        self.digests = Digests(folder / "source", len(counts) or parts_for(rows), point, counts)

    @classmethod
    def open(cls, folder: Path, schema: TableSchema, view: StoreView, rows: int) -> SourceProgress:
        """Open what exists of this table, or begin."""
        found: dict[str, Any] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = read_json(folder / "progress.json")
        except (OSError, ValueError):
            pass
        return cls(folder, schema, view, found, rows)

    def save(self, after: tuple[str, ...]) -> None:
        """Write down that all rows up to `after` are in the digests: after these, so that a kill between the two has them read again."""
        self.after = after or self.after
        self.digests.flush()
        now = {"point": self.digests.point, "first": self.first, "after": self.after, "counts": self.digests.counts}
        text = json.dumps({**self._what, **now, "whole": self.whole})
        replace(self.folder / "progress.json", lambda at: at.write_text(text), "progress", "give the state folder more room")

    def done(self) -> None:
        """Remove it: the next comparison begins again."""
        self.digests.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> SourceProgress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.digests.close()
