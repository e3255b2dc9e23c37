"""The optional metadata of a TABLE_MAP event: fields of tag, length and value, in any order, each there or not."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from shmstore.producer.values.varint import packed

__all__ = [
    "BEGIN_BEHIND",
    "Tag",
    "read_bits",
    "read_collations",
    "read_members",
    "read_numbers",
    "read_primary_key",
    "read_tags",
    "read_text",
    "read_texts",
]

# What to do where neither the log nor a schema history says enough of a table.
BEGIN_BEHIND = (
    "begin behind it: `shmstore rm STORE --forget`, then `shmstore produce --start latest` takes a new snapshot of the schema"
)


class Tag(IntEnum):
    """What a field of the optional metadata is about."""

    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_MEMBERS = 5
    ENUM_MEMBERS = 6
    GEOMETRY_TYPE = 7
    PRIMARY_KEY = 8
    PRIMARY_KEY_WITH_PREFIX = 9
    ENUM_AND_SET_DEFAULT_CHARSET = 10
    ENUM_AND_SET_COLUMN_CHARSET = 11
    COLUMN_VISIBILITY = 12


def read_text(data: bytes, at: int) -> tuple[bytes, int]:
    """Read a packed length and as many bytes. Returns (bytes, where they ended)."""
    length, at = packed(data, at)
    end = at + length
    if end > len(data):
        raise IndexError(f"text of {length} bytes past the end")
    return data[at:end], end


def read_tags(body: bytes, at: int) -> dict[int, bytes]:
    """Read the fields in body[at:]: tag -> value. Tags that this version does not know are kept too."""
    tags: dict[int, bytes] = {}
    while at < len(body):
        tag = body[at]
        tags[tag], at = read_text(body, at + 1)
    return tags


def read_texts(value: bytes) -> list[bytes]:
    """Read texts until the end."""
    found = []
    at = 0
    while at < len(value):
        text, at = read_text(value, at)
        found.append(text)
    return found


def read_numbers(value: bytes) -> list[int]:
    """Read packed integers until the end."""
    found = []
    at = 0
    while at < len(value):
        number, at = packed(value, at)
        found.append(number)
    return found


def read_members(value: bytes) -> list[list[bytes]]:
    """Read the members of each ENUM or each SET column: a count, then as many texts."""
    found = []
    at = 0
    while at < len(value):
        count, at = packed(value, at)
        if count > len(value) - at:
            raise ValueError(f"{count} members in {len(value) - at} bytes")
        members = []
        for _ in range(count):
            member, at = read_text(value, at)
            members.append(member)
        found.append(members)
    return found


def read_bits(value: bytes, count: int) -> list[bool]:
    """Read `count` bits, the first in the highest bit of the first byte."""
    if len(value) * 8 < count:
        raise ValueError(f"{len(value)} bytes of bits for {count} columns")
    return [bool(value[n >> 3] << (n & 7) & 0x80) for n in range(count)]


def read_collations(tags: dict[int, bytes], where: Sequence[int], default: Tag, each: Tag) -> dict[int, int]:
    """Collation id by column index for the columns `where`, from whichever of the two forms the server chose."""
    if each in tags:
        ids = read_numbers(tags[each])
        if len(ids) != len(where):
            raise ValueError(f"{len(ids)} collations for {len(where)} columns")
        return dict(zip(where, ids, strict=True))
    if default not in tags:
        return {}
    first, *pairs = read_numbers(tags[default])
    collations = dict.fromkeys(where, first)
    for nth, collation in _pairs(pairs):
        collations[where[nth]] = collation
    return collations


def read_primary_key(tags: dict[int, bytes], count: int) -> tuple[int, ...]:
    """Indexes of the primary key's columns, in key order; nothing where there is none or the log does not say."""
    if Tag.PRIMARY_KEY in tags:
        key = read_numbers(tags[Tag.PRIMARY_KEY])
    else:
        key = [index for index, _prefix in _pairs(read_numbers(tags.get(Tag.PRIMARY_KEY_WITH_PREFIX, b"")))]
    if any(index >= count for index in key) or len(set(key)) < len(key):
        raise ValueError(f"primary key {key} of a table with {count} columns")
    return tuple(key)


def _pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    if len(numbers) % 2:
        raise ValueError("an odd number of values where pairs belong")
    return list(zip(numbers[::2], numbers[1::2], strict=True))
