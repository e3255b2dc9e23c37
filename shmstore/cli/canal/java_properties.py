"""Java's ``.properties`` files, as ``java.util.Properties.load`` reads them.

A logical line is one or more natural lines: an odd number of backslashes at the end of one joins the next, without its leading blanks. The
key ends at the first ``=``, ``:`` or blank that is not escaped. Lines that begin with ``#`` or ``!`` are comments, and cannot be continued.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MOST_BYTES: Final = 1 << 20
_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX: Final = re.compile(r"[0-9A-Fa-f]{4}")
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_ASSIGNS: Final = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")


def text_of(raw: bytes) -> str:
    """Return the text of a file: UTF-8 where it is that, as editors write it; else ISO-8859-1, as Java reads it. Raises ValueError."""
    if len(raw) > MOST_BYTES:
        raise ValueError(f"it has {len(raw)} bytes; a file of properties has at most {MOST_BYTES}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("iso-8859-1")


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in a text; of one that is set twice the last value, as in Java. Raises ValueError, with the line."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None
        between = _ASSIGNS.match(line, key.end())
        assert between is not None
        try:
            found[_unescaped(key[0])] = _unescaped(line[between.end() :])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first natural line, the logical line) of each that is neither blank nor a comment."""
    joined, began, continued = "", 0, False
    lines = re.split(r"\r\n|\r|\n", text)
    for number, natural in enumerate(lines, 1):
        line = natural.lstrip(_BLANKS)
        if not joined and (not line or line[0] in "#!"):
            continued = False
            continue
        began = began if continued else number
        continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        joined += line[:-1] if continued else line
        if not continued or number == len(lines):
            yield began, joined
            joined, continued = "", False
    if joined:
        yield began, joined


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    parts, at = [], 0
    while at < len(text):
        letter = text[at]
        if letter != "\\":
            parts.append(letter)
            at += 1
            continue
        escaped = text[at + 1 : at + 2]
        if escaped == "u":
            digits = text[at + 2 : at + 6]
            if not _HEX.fullmatch(digits):
                raise ValueError(f"\\u{digits} is not an escape: \\u is followed by four hexadecimal digits")
            parts.append(chr(int(digits, 16)))
            at += 6
            continue
        parts.append(_ESCAPES.get(escaped, escaped))
        at += 2
    joined = "".join(parts)
    try:  # two escapes may be one character beyond U+FFFF
        return joined.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise ValueError("an escape is half of a character: \\uD800 to \\uDFFF come in pairs") from error
