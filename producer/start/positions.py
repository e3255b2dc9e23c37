"""Where each source of a shared store stands: one text, which is the `gtids` of every position of such a store.

    orders=binlog.000012:4711/0-1-99;users=mysql-bin.000003:157/3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5

So the last event of the ring, and any checkpoint, says by itself where every source goes on. Names and files are quoted as in
a URL; no GTID set contains ``=``, ``;`` or ``/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from shmstore import Position, PositionNotFound
from shmstore.producer.start.resume import lowest

Positions = dict[str, Position]


def position_text(name: str, position: Position) -> str:
    """Return one source's part of the text."""
    return f"{quote(name, safe='')}={quote(position.file, safe='')}:{position.offset}/{position.gtids}"


def join_positions(positions: Mapping[str, Position]) -> str:
    """Return the text, sources by name."""
    return ";".join(position_text(name, position) for name, position in sorted(positions.items()))


def split_positions(position: Position) -> Positions:
    """Return what the `gtids` of `position` say. Raises `PositionNotFound` where it is not a position of several sources."""
    try:
        return dict(_split(part) for part in position.gtids.split(";"))
    except ValueError as error:
        raise PositionNotFound(
            f"{position.file}:{position.offset} does not say where each of several sources stands: it is from a store of one source; "
            "give the group a store, and checkpoints, of its own"
        ) from error


def _split(part: str) -> tuple[str, Position]:
    name, equals, rest = part.partition("=")
    position, slash, gtids = rest.partition("/")
    file, colon, offset = position.rpartition(":")
    if not (equals and slash and colon):
        raise ValueError(part)
    return unquote(name), Position(unquote(file), int(offset), gtids)


def lowest_positions(found: Mapping[str, Position]) -> Positions:
    """Return for each source the position that all of `found`, the checkpoints by reader, have passed.

    Raises `PositionNotFound` where one of them is from before a source was added: what it missed of it nobody knows.
    """
    known = {reader: split_positions(position) for reader, position in found.items()}
    names = {name for positions in known.values() for name in positions}
    for reader, positions in known.items():
        if missing := sorted(names - positions.keys()):
            raise PositionNotFound(
                f"the checkpoint of {reader!r} is from before source {missing[0]!r} came to the store, other checkpoints are from after: "
                f"forget that checkpoint with `shmstore unsubscribe STORE {reader}`, or those of the others"
            )
    return {name: _lowest(positions[name] for positions in known.values()) for name in names}


def _lowest(positions: Iterable[Position]) -> Position:
    position = lowest(positions)
    assert position is not None
    return position
