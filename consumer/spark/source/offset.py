"""Offsets of a Spark query over a store, and the order of rows.

An offset says "everything up to and including this event". Spark writes it to the checkpoint as JSON and compares the
text, so the keys come in one fixed order and nothing in it depends on a clock. `seq` finds the event fast while the
store exists; the binlog position finds it again in a re-created store, whose epoch differs. In a store of several sources `sources` says
how far each of them is (`shmstore.consumer.spark.source.multi_source`).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from shmstore.event import Position, Sources
from shmstore.sources import pack_sources, sources_text, unpack_sources

VERSION = 1


class Offset(NamedTuple):
    """The last event that was read. `seq` is -1 before the first event.

    `inside` is the transaction that it is a part of, in a store of several sources: `sources` are from before it. `ahead`: GTID sets that
    were read ahead of the others before the store was re-created, until it has reached them.
    """

    store: str
    epoch: int
    seq: int
    file: str = ""
    offset: int = 0
    gtids: str = ""
    row: int = 0
    inside: str = ""
    sources: Sources = ()
    ahead: str = ""

    @property
    def position(self) -> Position | None:
        """The binlog position, or None before the first event of a store."""
        place = Position(self.file, self.offset, self.gtids, self.row, self.sources)
        return place if self.file or self.gtids or self.sources else None

    @property
    def of_group(self) -> bool:
        """Whether it is of a store with several sources."""
        return bool(self.sources)

    @property
    def order(self) -> tuple[int, int, int]:
        """As `Position.order`."""
        return Position(self.file, self.offset, self.gtids, self.row).order

    def to_dict(self) -> dict[str, Any]:
        """Return the dict that Spark stores; its keys are in a fixed order."""
        return {
            "version": VERSION,
            "store": self.store,
            "epoch": self.epoch,
            "seq": self.seq,
            "file": self.file,
            "offset": self.offset,
            "gtids": self.gtids,
            "row": self.row,
            **({"sources": pack_sources(self.sources)} if self.sources else {}),
            **({"inside": self.inside} if self.inside else {}),
            **({"ahead": self.ahead} if self.ahead else {}),
        }

    @classmethod
    def of(cls, value: dict[str, Any]) -> Offset:
        """Return the offset in `value`, a dict from a checkpoint. Raises ValueError where it is not one."""
        version = value.get("version")
        if version != VERSION or "=" in str(value.get("gtids")):  # several sources were text there, before 0.1.0
            fix = "upgrade the reader" if version != VERSION else "start the query with a new checkpoint"
            raise ValueError(
                f"the checkpoint has an offset of version {version!r}, and this shmstore reads version {VERSION}: {fix}"
            )
        try:
            return cls(
                str(value["store"]),
                int(value["epoch"]),
                int(value["seq"]),
                str(value["file"]),
                int(value["offset"]),
                str(value["gtids"]),
                int(value["row"]),
                str(value.get("inside", "")),
                unpack_sources(value.get("sources", {})),
                str(value.get("ahead", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"offset {value!r} is not an offset of shmstore: {error}") from error

    @classmethod
    def at(cls, store: str, epoch: int, seq: int, position: Position | None) -> Offset:
        """Return the offset of the event `seq`, which ends at `position`."""
        if position is None:
            return cls(store, epoch, seq)
        return cls(store, epoch, seq, position.file, position.offset, position.gtids, position.row, sources=position.sources)

    def __str__(self) -> str:
        where = sources_text(self.sources) if self.of_group else f"{self.file}:{self.offset}" if self.file else "the start"
        return f"{where} (event {self.seq} of epoch {self.epoch:016x})"

    def to_json(self) -> str:
        """Return the text that `startingOffsets` takes."""
        return json.dumps(self.to_dict())
