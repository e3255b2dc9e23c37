"""Protobuf fields put together as text of one byte a character.

ISO-8859-1 holds bytes until an entry is whole: Python joins and formats text faster than bytes. Fields that hold
their default are left out, as proto3 does.
"""

from __future__ import annotations

from typing import Final


def _varint(number: int) -> str:
    if number < 0:
        number += 1 << 64
    out = []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out).decode("latin-1")


#: The varints below 2**14, by number; and the same with both characters saying that more follow.
SMALL: Final = tuple(_varint(number) for number in range(1 << 14))
MORE: Final = tuple(chr(number & 0x7F | 0x80) + chr(number >> 7 | 0x80) for number in range(1 << 14))


def varint(number: int) -> str:
    """Return `number` as a varint; a negative one in 64-bit two's complement, as protobuf does."""
    if 0 <= number < 1 << 28:
        return SMALL[number] if number < 1 << 14 else MORE[number & 0x3FFF] + SMALL[number >> 14]
    return _varint(number)


def narrow(text: str) -> str:
    """Return the UTF-8 of `text`, a character a byte. Half a surrogate pair becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("latin-1")


def string(tag: str, value: str) -> str:
    """A string field."""
    if not value:
        return ""
    if not value.isascii():
        value = narrow(value)
    length = len(value)
    return f"{tag}{SMALL[length] if length < 0x4000 else varint(length)}{value}"


def number(tag: str, value: int) -> str:
    """An integer field."""
    return f"{tag}{varint(value)}" if value else ""


def message(tag: str, content: str) -> str:
    """A field that holds a message; written even where that is empty."""
    length = len(content)
    return f"{tag}{SMALL[length] if length < 0x4000 else varint(length)}{content}"


def pair(tag: str, key: str, value: str) -> str:
    """A Pair."""
    return message(tag, string("\x0a", key) + string("\x12", value))
