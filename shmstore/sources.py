"""A place in a store of several sources: where each of them continues, as text and in plain values.

    orders=binlog.000012:4711/0-1-99;users=mysql-bin.000003:157/3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5

Names and files are quoted as in a URL; no GTID set contains ``=``, ``;`` or ``/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from shmstore.event import Position, Sources


def sources_text(sources: Sources) -> str:
    """Return `sources` as text, which `parse_sources` reads."""
    return ";".join(f"{quote(name, safe='')}={quote(at.file, safe='')}:{at.offset}/{at.gtids}" for name, at in sources)


def parse_sources(text: str) -> Sources:
    """Return what `sources_text` wrote. Raises ValueError."""
    return tuple([_parsed(part) for part in text.split(";")])


def _parsed(part: str) -> tuple[str, Position]:
    name, equals, rest = part.partition("=")
    place, slash, gtids = rest.partition("/")
    file, colon, offset = place.rpartition(":")
    if not (equals and slash and colon and offset.isdecimal()):
        raise ValueError(f"{part!r} is not NAME=FILE:OFFSET/GTIDS, a source of a store and where it is")
    return unquote(name), Position(unquote(file), int(offset), gtids)


def place_text(position: Position) -> str:
    """Return a place as messages and reports show it."""
    if position.sources:
        return sources_text(position.sources)
    return f"{position.file}:{position.offset}" + (f" ({position.gtids})" if position.gtids else "")


def pack_sources(sources: Sources) -> dict[str, list[Any]]:
    """Return `sources` as JSON and MessagePack have them: [file, offset, GTID set] by name."""
    return {name: [at.file, at.offset, at.gtids] for name, at in sources}


def unpack_sources(packed: Mapping[str, Any]) -> Sources:
    """Return what `pack_sources` made. Raises ValueError or TypeError."""
    return tuple([(name, Position(str(file), int(offset), str(gtids))) for name, (file, offset, gtids) in packed.items()])
