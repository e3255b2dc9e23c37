"""Where to begin in local binlog files: the transaction end before a time, or at a file and offset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shmstore import Position, PositionNotFound
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.binlog.files import BinlogFiles
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.positions.scan import boundaries
from shmstore.producer.stop import Stop, Stopped


def find_position(
    files: list[Path], wanted: Position, stop: Stop = lambda: False
) -> tuple[list[Path], Position, ExecutedSet | None]:
    """Return (files from `wanted` on, position, GTID set executed there). Raises `PositionNotFound`; `Stopped`."""
    names = [file.name for file in files]
    if wanted.file not in names:
        raise PositionNotFound(
            f"there is no file {wanted.file or 'for a GTID set'} among {names[0]} to {names[-1]}: add it, or start again with a new store"
        )
    rest = files[names.index(wanted.file) :]
    if wanted.offset <= 4:
        return rest, Position(wanted.file, 4), None
    for position, executed, _ in boundaries(_events(rest[0], stop), wanted.file):
        if position.offset == wanted.offset:
            return rest, position, executed
    raise PositionNotFound(f"no transaction ends at {wanted.file}:{wanted.offset} of {rest[0]}")


def find_time(files: list[Path], when: float, stop: Stop = lambda: False) -> tuple[list[Path], Position, ExecutedSet | None]:
    """Return the position before the first transaction at or after `when` (seconds since 1970), as `find_position`."""
    found: tuple[list[Path], Position, ExecutedSet | None] = (files, Position(files[0].name, 4), None)
    for i, file in enumerate(files):
        for position, executed, time in boundaries(_events(file, stop), file.name):
            if time >= when:
                return found
            found = (files[i:], position, executed)
    return found


def _events(file: Path, stop: Stop) -> Iterator[RawEvent]:
    source = BinlogFiles([file])
    try:
        while (events := source.read()) is not None:
            yield from events
            if stop():
                raise Stopped
    finally:
        source.close()
