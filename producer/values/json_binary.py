"""MySQL's binary JSON -> the text that MySQL prints for it, and partial updates (JSON diffs) applied to it.

Plan. A value is a type byte and its bytes. Objects and arrays begin with the number of elements and their own size, then come
the entries: (key offset, key length) for each key, (type, value or offset) for each value; offsets count from the container's
start. Small containers use 2 bytes for each of these numbers, large ones 4. Values of up to 2 (4) bytes stand in the entry.

A document that is only printed goes straight to text (`_Reader.text`). One that diffs are applied to becomes a tree first
(`_Reader.value`): containers are dict and list, everything else is the text that it prints as, since nothing but printing and
replacing is ever done with it. Keys keep MySQL's order (shorter first, then by bytes).

Damaged bytes cannot make this run long: elements and text are counted against the size of the document, which they cannot
exceed in a real one, and depth against MySQL's own limit of 100.
"""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from shmstore.producer.errors import ValueRefused
from shmstore.producer.values.scalars import ValueTable, decimal_size, decimals
from shmstore.producer.values.varint import packed

__all__ = ["double_text", "json_text", "opaque_text", "patched_text", "quoted"]

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = 0, 1, 2, 3, 4
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = 5, 6, 7, 8, 9, 10, 11, 12, 15
_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {_INT16: "<h", _UINT16: "<H", _INT32: "<i", _UINT32: "<I", _INT64: "<q", _UINT64: "<Q"}
_DEEPEST = 101
_SMALL_HEAD, _LARGE_HEAD = struct.Struct("<HH").unpack_from, struct.Struct("<II").unpack_from  # elements, bytes
# By kind of container: bytes of a value's entry, types of values that stand in it.
_SMALL_ENTRY, _LARGE_ENTRY = (3, {_INT16, _UINT16, _LITERAL}), (5, {_INT16, _UINT16, _LITERAL, _INT32, _UINT32})
_ENTRY = {0: _SMALL_ENTRY, 1: _LARGE_ENTRY, 2: _SMALL_ENTRY, 3: _LARGE_ENTRY}
_ESCAPES = {c: f"\\u{c:04x}" for c in range(32)}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_ESCAPED = re.compile('[\x00-\x1f"\\\\]')
_DECIMAL, _DATE, _TIME, _DATETIMES = 246, 10, 11, (7, 12)


def json_text(document: bytes) -> str:
    """Return the JSON column value `document` as MySQL prints it. Raises ValueError, IndexError or struct.error if damaged."""
    if not document:  # what INSERT IGNORE of NULL leaves: JSON null
        return "null"
    return _Reader(document).text(document[0], 1, 0)


def patched_text(document: bytes | None, diffs: bytes) -> str:
    """Return the document after a partial update: `diffs` (Json_diff_vector without its length) applied in order.

    Raises ValueError, IndexError or struct.error where either is damaged or a path does not exist.
    """
    if document is None:
        raise ValueRefused(
            "a partial JSON update whose row image lacks the document before it; "
            "SET GLOBAL binlog_row_image=FULL or binlog_row_value_options=''"
        )
    root = [_Reader(document).document()]
    at = 0
    while at < len(diffs):
        operation = diffs[at]
        length, at = packed(diffs, at + 1)
        path = diffs[at : at + length].decode()
        at += length
        value = None
        if operation in (0, 1):
            length, at = packed(diffs, at)
            value = _Reader(diffs[at : at + length]).document()
            at += length
        elif operation != 2:
            raise ValueError(f"JSON diff operation {operation}")
        _apply(root, operation, _legs(path), value)
    if at != len(diffs):
        raise ValueError("a JSON diff is cut off")
    return _printed(root[0])


# ---------------------------------------------------------------- reading


@lru_cache(maxsize=1024)
def _entries(kind: int, count: int) -> tuple[Callable[..., tuple[int, ...]], Callable[..., tuple[int, ...]], int]:
    """(reader of the keys' entries, reader of the values', bytes of the first) for a container of `count` elements."""
    number = "I" if kind & 1 else "H"
    keys = struct.Struct("<" + f"{number}H" * (count if kind <= _LARGE_OBJECT else 0))
    return keys.unpack_from, struct.Struct("<" + f"B{number}" * count).unpack_from, keys.size


class _Reader:
    """Reads one document; `left` is what elements and text may still take."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = len(data) + 16

    def document(self) -> Any:
        """The tree of the whole document. No bytes at all are what INSERT IGNORE of NULL leaves: JSON null."""
        if not self.data:
            return "null"
        return self.value(self.data[0], 1, 0)

    def value(self, kind: int, at: int, depth: int) -> Any:
        data = self.data
        if kind == _STRING:
            length, at = self.length(at)
            return quoted(self.take(at, length).decode())
        if kind <= _LARGE_ARRAY:
            return self.container(kind, at, depth + 1)
        if kind in _NUMBERS:
            return str(struct.unpack_from(_NUMBERS[kind], data, at)[0])
        if kind == _DOUBLE:
            return double_text(struct.unpack_from("<d", data, at)[0])
        if kind == _LITERAL:
            return self.literal(data[at])
        if kind == _OPAQUE:
            length, start = self.length(at + 1)
            return opaque_text(data[at], self.take(start, length))
        raise ValueError(f"JSON type {kind}")

    def container(self, kind: int, at: int, depth: int) -> Any:
        keys, entries, entry = self.open(kind, at, depth)
        step, inline = _ENTRY[kind]
        values = []
        for i in range(0, len(entries), 2):
            type_, offset = entries[i], entries[i + 1]
            where = entry + i // 2 * step + 1 if type_ in inline else at + offset
            values.append(self.value(type_, where, depth))
        names = [self.take(at + keys[i], keys[i + 1]).decode() for i in range(0, len(keys), 2)]
        return dict(zip(names, values, strict=True)) if kind <= _LARGE_OBJECT else values

    def open(self, kind: int, at: int, depth: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Read a container's entries: (offset, length) of each key, (type, offset or value) of each value, where these begin."""
        if depth > _DEEPEST:
            raise ValueError(f"JSON deeper than {_DEEPEST - 1} levels")
        data = self.data
        if kind & 1:  # large
            count, size = _LARGE_HEAD(data, at)
            entry = at + 8
        else:
            count, size = _SMALL_HEAD(data, at)
            entry = at + 4
        if at + size > len(data) or count * 3 > size:
            raise ValueError(f"a JSON container of {count} elements in {size} of {len(data) - at} bytes")
        self.spend(count)
        keys, values, width = _entries(kind, count)
        return keys(data, entry), values(data, entry + width), entry + width

    def text(self, kind: int, at: int, depth: int) -> str:
        """What the value prints as."""
        if kind > _LARGE_ARRAY:
            return str(self.value(kind, at, depth))
        data = self.data
        keys, entries, _ = self.open(kind, at, depth + 1)
        parts: list[str] = []
        for i in range(0, len(entries), 2):
            type_, offset = entries[i], entries[i + 1]
            if type_ == _STRING and data[at + offset] < 0x80:  # the common one: text whose length takes a byte
                length = data[at + offset]
                start = at + offset + 1
                raw = data[start : start + length]
                self.left -= length
                if len(raw) != length:
                    raise ValueError("JSON text is cut off")
                string = raw.decode()
                part = f'"{string}"' if _ESCAPED.search(string) is None else quoted(string)
            elif type_ == _INT16:  # stands in the entry
                part = str((offset & 0xFFFF ^ 0x8000) - 0x8000)
            elif type_ == _UINT16:
                part = str(offset & 0xFFFF)
            elif type_ == _LITERAL:
                part = self.literal(offset & 0xFF)
            elif type_ == _INT32 and kind & 1:
                part = str((offset ^ 0x80000000) - 0x80000000)
            elif type_ == _UINT32 and kind & 1:
                part = str(offset)
            else:
                part = self.text(type_, at + offset, depth + 1)
            if keys:
                start = at + keys[i]
                part = _KEYS[self.take(start, keys[i + 1])] + part
            parts.append(part)
        if self.left < 0:
            raise ValueError("JSON elements overlap")
        return f"{{{', '.join(parts)}}}" if kind <= _LARGE_OBJECT else f"[{', '.join(parts)}]"

    def literal(self, byte: int) -> str:
        if byte not in _LITERALS:
            raise ValueError(f"JSON literal {byte}")
        return _LITERALS[byte]

    def length(self, at: int) -> tuple[int, int]:
        """A length in groups of 7 bits, lowest first."""
        value = shift = 0
        while True:
            byte = self.data[at]
            value |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 28:
                raise ValueError("a JSON length of more than 5 bytes")

    def take(self, at: int, length: int) -> bytes:
        if at + length > len(self.data):
            raise ValueError(f"JSON text of {length} bytes, {len(self.data) - at} are there")
        self.spend(length)
        return self.data[at : at + length]

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise ValueError("JSON elements overlap")


def opaque_text(type_: int, raw: bytes) -> str:
    """A value of an SQL type inside the document, as MySQL prints it."""
    if type_ == _DECIMAL:
        precision, scale = raw[0], raw[1]
        if len(raw) != 2 + decimal_size(precision, scale) or not scale <= precision <= 81:
            raise ValueError(f"DECIMAL({precision},{scale}) of {len(raw) - 2} bytes in JSON")
        return decimals(precision, scale)(raw[2:])
    if type_ in (_DATE, *_DATETIMES) and len(raw) == 8:
        number = int.from_bytes(raw, "little")
        clock, microseconds = number >> 24, number & 0xFFFFFF
        months, day = clock >> 22, clock >> 17 & 31
        date = f"{months // 13:04}-{months % 13:02}-{day:02}"
        if type_ == _DATE:
            return f'"{date}"'
        return f'"{date} {clock >> 12 & 31:02}:{clock >> 6 & 63:02}:{clock & 63:02}.{microseconds:06}"'
    if type_ == _TIME and len(raw) == 8:
        number = int.from_bytes(raw, "little", signed=True)
        sign, number = ("-", -number) if number < 0 else ("", number)
        clock = number >> 24
        return f'"{sign}{clock >> 12 & 1023:02}:{clock >> 6 & 63:02}:{clock & 63:02}.{number & 0xFFFFFF:06}"'
    return f'"base64:type{type_}:{b64encode(raw).decode()}"'


# ---------------------------------------------------------------- printing


def quoted(text: str) -> str:
    """Return `text` as a JSON string the way MySQL quotes it: only what must be escaped is."""
    return f'"{text.translate(_ESCAPES)}"' if _ESCAPED.search(text) else f'"{text}"'


def _printed(node: Any) -> str:
    if type(node) is str:
        return node
    parts: list[str] = []
    _print(node, parts.append)
    return "".join(parts)


def _print(node: Any, out: Any) -> None:
    if type(node) is str:
        out(node)
        return
    comma = ""
    if type(node) is dict:
        out("{")
        for key, value in node.items():
            out(f"{comma}{quoted(key)}: ")
            _print(value, out)
            comma = ", "
        out("}")
        return
    out("[")
    for value in node:
        out(comma)
        _print(value, out)
        comma = ", "
    out("]")


def double_text(value: float) -> str:
    """Return a double as MySQL prints it in JSON: shortest digits that give it back, always with a point or exponent.

    The exponent form is taken for numbers below 1e-14, and from 1e15 on where all digits stand before the point.
    """
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{value} in JSON")
    sign, digits, point = _shortest(value)
    if digits == "0":
        return sign + "0.0"
    count = len(digits)
    if point >= -14 and (point <= 15 or count > point):
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        if count <= point:
            return f"{sign}{digits}{'0' * (point - count)}.0"
        return f"{sign}{digits[:point]}.{digits[point:]}"
    fraction = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1}"


def _shortest(value: float) -> tuple[str, str, int]:
    """(sign, digits without zeros at either end, place of the point before the first digit as power of ten)."""
    mantissa, _, exponent = f"{value!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    point = len(whole) + int(exponent or 0)
    digits = whole + fraction
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    return sign, stripped.rstrip("0") or "0", point


_KEYS = ValueTable(lambda raw: quoted(raw.decode()) + ": ", 1 << 12)  # a key's bytes -> what it prints as

# ---------------------------------------------------------------- partial updates

_LEG = re.compile(r'\s*(?:\.\s*(?:"((?:[^"\\]|\\.)*)"|([^.\[\s"]+))|\[\s*(?:(\d+)|last\s*(?:-\s*(\d+))?)\s*\])', re.DOTALL)
_UNESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _legs(path: str) -> list[str | int]:
    """Parse the path of a diff ($.name."other name"[3][last-1]) into names and indexes; those from the end are negative."""
    legs: list[str | int] = []
    at = 1 if path.startswith("$") else 0
    while at < len(path):
        leg = _LEG.match(path, at)
        if leg is None:
            raise ValueError(f"JSON path {path!r}")
        name, bare, index, back = leg.groups()
        if index is not None:
            legs.append(int(index))
        elif name is None and bare is None:
            legs.append(-1 - int(back or 0))
        else:
            legs.append(bare if bare is not None else re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _unescaped, name, flags=re.DOTALL))
        at = leg.end()
    return legs


def _unescaped(escape: re.Match[str]) -> str:
    what = escape[1]
    return chr(int(what[1:], 16)) if len(what) == 5 and not 0xD800 <= int(what[1:], 16) < 0xE000 else _UNESCAPES.get(what, what)


def _apply(root: list[Any], operation: int, legs: list[str | int], value: Any) -> None:
    """Apply one diff to the tree in root[0]: 0 replace, 1 insert, 2 remove."""
    parent: Any = root
    key: str | int = 0  # what the path leads to so far is parent[key]
    for leg in legs[:-1] if operation == 1 else legs:
        node = parent[key]
        if (type(node) is list and type(leg) is int and -len(node) <= leg < len(node)) or (type(node) is dict and leg in node):
            parent, key = node, leg
        elif type(node) is list or leg not in (0, -1):  # of what is no array, element 0 is itself
            raise ValueError(f"the JSON document has no {leg!r} where a diff changes it")
    if operation == 0:
        parent[key] = value
        return
    if (parent is root and operation == 2) or not legs:
        raise ValueError("a JSON diff inserts or removes the whole document")
    if operation == 2:
        del parent[key]
        return
    node, last = parent[key], legs[-1]
    if type(node) is dict and type(last) is str and last not in node:
        node[last] = value
        ordered = sorted(node.items(), key=lambda item: (len(item[0].encode()), item[0].encode()))
        node.clear()
        node.update(ordered)
    elif type(node) is list and type(last) is int:
        node.insert(last if last >= 0 else max(0, len(node) + last), value)
    else:
        raise ValueError(f"JSON diff {operation} at {last!r} does not fit the document")
