"""Python source of the functions that decode row images: what `rows` compiles.

Plan. A column is read in one of two ways. Columns of fixed width give struct codes (always little-endian) and an expression
over what they unpack; neighbours share one struct call. Columns of variable width give the width of their length and an
expression over the bytes; the length ends the struct call of the columns before it.

Rows without NULL take a path with no tests in it. Rows with NULLs take a path column by column; a pattern of NULLs that
comes often gets a function of its own, in which the columns that are NULL there cost nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from typing import Any, NamedTuple

from shmstore.errors import UnsupportedEvent
from shmstore.producer.binlog.compression import uncompress_column
from shmstore.producer.binlog.table_map import Field, Wire
from shmstore.producer.values import scalars
from shmstore.producer.values.charsets import decoder, python_codec
from shmstore.producer.values.json_binary import json_text, patched_text

__all__ = ["Source", "compile_decoder", "reading"]

_INTEGERS = {Wire.TINY: "bB", Wire.SHORT: "hH", Wire.LONG: "iI", Wire.LONGLONG: "qQ"}
_BY_SIZE = {1: "B", 2: "H", 3: "HB", 4: "I", 5: "IB", 6: "IH", 7: "IHB", 8: "Q"}
_JOINED = {1: "{0}", 2: "{0}", 3: "({0} | {1} << 16)", 4: "{0}", 5: "({0} | {1} << 32)", 6: "({0} | {1} << 32)"}
_JOINED |= {7: "({0} | {1} << 32 | {2} << 48)", 8: "{0}"}
_FRACTIONS = {0: ("", "0"), 1: ("B", "{0} * 10000"), 2: ("BB", "({0} << 8 | {1}) * 100")}
_FRACTIONS[3] = ("BBB", "({0} << 16 | {1} << 8 | {2})")


class Reading(NamedTuple):
    """How one column is read. `codes`: struct codes, or empty for variable width, then `prefix` bytes of length."""

    codes: str
    expression: str  # over {0}, {1} ... for the codes, or {0} for the bytes
    prefix: int = 0
    first: str = ""  # a statement before the expression


class Source:
    """Lines of one function under construction, the constants they name, and the column each line belongs to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.columns: list[str] = []
        self.names: dict[str, Any] = {"from_bytes": int.from_bytes}
        self._constants: dict[int, str] = {}

    def line(self, depth: int, text: str, column: str = "") -> None:
        """Append a line; `column` names what is read in it."""
        self.lines.append("    " * depth + text + (f"  # {column!r}" if column else ""))
        self.columns.append(column)

    def constant(self, value: Any, stem: str) -> str:
        """Return the name under which the function sees `value`."""
        name = self._constants.get(id(value))
        if name is None:
            name = f"{stem}{len(self._constants)}"
            self._constants[id(value)] = name
            self.names[name] = value  # also keeps it alive, so that its id stays its own
        return name

    @property
    def text(self) -> str:
        """The source, for reading."""
        return "\n".join(self.lines) + "\n"


def reading(field: Field, source: Source) -> Reading:
    """Return how the column is read; what its expression names is put into `source`."""
    wire, meta, column, _ = field
    code = Wire(wire)
    if code in _INTEGERS:
        return Reading(_INTEGERS[code][column.unsigned], "{0}")
    if code == Wire.INT24:
        return Reading("HB" if column.unsigned else "Hb", "{0} | {1} << 16")
    if code == Wire.FLOAT:
        return Reading("4s", source.constant(scalars.FLOATS, "floats") + "[{0}]")
    if code == Wire.DOUBLE:
        return Reading("d", "{0}")
    if code == Wire.NEWDECIMAL:
        digits = source.constant(scalars.decimals(meta >> 8, meta & 0xFF), "decimal")
        return Reading(f"{scalars.decimal_size(meta >> 8, meta & 0xFF)}s", digits + "({0})")
    if code == Wire.BIT:
        if meta % 8:
            return Reading(f"{(meta + 7) // 8}s", source.constant(scalars.bits(meta), "bits") + "({0})")
        return Reading("B", "{0}") if meta == 8 else Reading(f"{meta // 8}s", 'from_bytes({0}, "big")')
    if code == Wire.YEAR:
        return Reading("B", "{0} and {0} + 1900")
    if code in (Wire.ENUM, Wire.SET):
        return _member(code, meta, column.members, source)
    temporal = _temporal(code, meta, source) or _old_temporal(code, column.scale, source)
    return temporal if temporal is not None else _variable(field, source)


def _member(code: Wire, size: int, members: tuple[str, ...], source: Source) -> Reading:
    if size not in _BY_SIZE or (code == Wire.ENUM and size > 2):
        raise UnsupportedEvent(f"{code.name} of {size} bytes")
    if code == Wire.SET:
        return Reading(_BY_SIZE[size], source.constant(scalars.members_of_set(members), "sets") + f"[{_JOINED[size]}]")
    # 0 is the empty value that a wrong one became; its text is ''
    return Reading(_BY_SIZE[size], source.constant(("", *members), "enum") + "[{0}]")


def _temporal(code: Wire, digits: int, source: Source) -> Reading | None:
    codes, fraction = _FRACTIONS[(digits + 1) // 2] if digits <= 6 else ("", "")
    if code in (Wire.DATE, Wire.NEWDATE):
        return Reading("3s", source.constant(scalars.DATES, "dates") + "[{0}]")
    if code == Wire.DATETIME2:
        text = source.constant(scalars.datetime_text, "text")
        part = fraction.format("{2}", "{3}", "{4}")
        whole = "day + clock[{1}]" + (f" + {part}" if digits else "")
        first = "day, clock = " + source.constant(scalars.DATETIME_DAYS, "days") + "[{0}]"
        return Reading("3s2s" + codes, f"{whole} if day is not None else {text}({{0}} + {{1}}, {part}, {digits})", first=first)
    if code == Wire.TIMESTAMP2:
        zero = "0000-00-00 00:00:00" + scalars.fraction_text(0, digits)
        part = fraction.format("{1}", "{2}", "{3}")
        return Reading("4s" + codes, 'from_bytes({0}, "big") * 1000000' + (f" + {part}" if digits else "") + f" or {zero!r}")
    if code == Wire.TIME2:
        return Reading(f"{3 + (digits + 1) // 2}s", source.constant(scalars.times(digits), "times") + "[{0}]")
    return None


def _old_temporal(code: Wire, digits: int, source: Source) -> Reading | None:
    """Types from before MySQL 5.6; `digits` comes from a schema history, the binlog does not hold it."""
    if code == Wire.TIMESTAMP:
        if not digits:
            return Reading("I", "{0} * 1000000 or '0000-00-00 00:00:00'")
        zero = "0000-00-00 00:00:00" + scalars.fraction_text(0, digits)
        fraction = f'from_bytes({{1}}, "big") * {10 ** (6 - digits)}'
        return Reading(f"4s{(digits + 1) // 2}s", f'from_bytes({{0}}, "big") * 1000000 + {fraction} or {zero!r}')
    if code in (Wire.DATETIME, Wire.TIME):
        size, table = (scalars.old_datetimes if code == Wire.DATETIME else scalars.old_times)(digits)
        return Reading(f"{size}s", source.constant(table, "old") + "[{0}]")
    return None


def _variable(field: Field, source: Source) -> Reading:
    wire, meta, column, _ = field
    code = Wire(wire)
    if code in (Wire.STRING, Wire.VARCHAR, Wire.VAR_STRING, Wire.VARCHAR_COMPRESSED):
        prefix = 1 if meta < 256 else 2
    elif code in (Wire.TINY_BLOB, Wire.MEDIUM_BLOB, Wire.LONG_BLOB):
        prefix = {Wire.TINY_BLOB: 1, Wire.MEDIUM_BLOB: 3, Wire.LONG_BLOB: 4}[code]
    else:
        prefix = meta
    if not 1 <= prefix <= 4:
        raise UnsupportedEvent(f"{code.name} whose length takes {prefix} bytes")
    raw = "{0}"
    if code in (Wire.VARCHAR_COMPRESSED, Wire.BLOB_COMPRESSED):
        raw = source.constant(uncompress_column, "uncompress") + "({0})"
    if code == Wire.JSON:
        return Reading("", source.constant(json_text, "json") + "({0})", prefix)
    if column.charset:
        codec = python_codec(column.charset)
        if codec == "utf-8":
            return Reading("", raw + ".decode()", prefix)
        if codec:
            return Reading("", f"{raw}.decode({codec!r})", prefix)
        return Reading("", source.constant(decoder(column.charset), "decode") + f"({raw})", prefix)
    if column.type in _FIXED_TEXTS:
        return Reading("", source.constant(_FIXED_TEXTS[column.type], "text") + "({0})", prefix)
    if column.type == "binary":  # the log leaves trailing zeros out
        return Reading("", f'{{0}}.ljust({column.size}, b"\\0")', prefix)
    return Reading("", raw, prefix)


# MariaDB's types that travel as BINARY, known from a schema history.
_FIXED_TEXTS: dict[str, Callable[[bytes], str]] = {
    "uuid": scalars.uuid_text,
    "inet4": lambda raw: str(IPv4Address(raw.ljust(4, b"\0"))),
    "inet6": scalars.inet6_text,
}

# ---------------------------------------------------------------- one image


class Image:
    """Emits the code that reads one row image at d[p:] into the variables {mark}{column index}."""

    def __init__(self, source: Source, fields: Sequence[Field], present: Sequence[int], mark: str) -> None:
        self.source = source
        self.fields = fields
        self.present = present
        self.mark = mark
        self.readings = {i: reading(fields[i], source) for i in present}
        self.null_bytes = (len(present) + 7) // 8

    @property
    def row(self) -> str:
        """The tuple of the image's variables."""
        return "(" + "".join(f"{self.mark}{i}, " for i in self.present if not self.fields[i].hidden) + ")"

    def emit(self, depth: int) -> None:
        """Read the NULL bits at p, then the values, on one of the two paths."""
        line = self.source.line
        if self.null_bytes == 1:
            line(depth, f"if not d[p] & {(1 << len(self.present)) - 1:#x}:")
        elif self.null_bytes:
            line(depth, f"if d[p : p + {self.null_bytes}] in {self.source.constant(self._no_nulls(), 'zeros')}:")
        else:
            line(depth, "if True:")
        line(depth + 1, f"p += {self.null_bytes}")
        self.emit_values(depth + 1, self.present)
        line(depth, "else:")
        line(depth + 1, f'nulls = from_bytes(d[p : p + {self.null_bytes}], "little")')
        line(depth + 1, f"p += {self.null_bytes}")
        for nth, i in enumerate(self.present):
            line(depth + 1, f"if nulls & {1 << nth}:")
            line(depth + 2, f"{self.mark}{i} = None", self.fields[i].column.name)
            line(depth + 1, "else:")
            self.emit_values(depth + 2, [i])

    def _no_nulls(self) -> tuple[bytes, bytes]:
        """The bits of a row without NULL: the unused ones behind the last column are 0 in MySQL, 1 in MariaDB."""
        used = (1 << len(self.present)) - 1
        ones = (1 << 8 * self.null_bytes) - 1
        return bytes(self.null_bytes), (ones ^ used).to_bytes(self.null_bytes, "little")

    def emit_values(self, depth: int, columns: Sequence[int]) -> None:
        """Read `columns`, none of which is NULL."""
        codes, unpacked, ready = "", list[str](), list[tuple[str, str]]()  # the struct call being collected
        for i in columns:
            reading = self.readings[i]
            name = self.fields[i].column.name
            if reading.codes:
                parts = self._parts(i, reading.codes)
                codes += reading.codes
                unpacked += parts
                if reading.first:
                    ready.append((reading.first.format(*parts), name))
                if reading.expression != "{0}":
                    ready.append((f"{self.mark}{i} = {reading.expression.format(*parts)}", name))
                continue
            self._emit_variable(depth, i, reading, codes, unpacked, ready)
            codes, unpacked, ready = "", [], []
        if codes:
            self._emit_struct(depth, codes, unpacked, ready)

    def _parts(self, i: int, codes: str) -> list[str]:
        count = sum(1 for code in codes if code.isalpha())
        if count == 1:
            return [f"{self.mark}{i}"]  # what is unpacked is the value, or is replaced by it
        return [f"{self.mark}{i}_{n}" for n in range(count)]

    def _emit_struct(self, depth: int, codes: str, unpacked: list[str], ready: list[tuple[str, str]]) -> None:
        line = self.source.line
        if codes in ("B", "1s") and len(unpacked) == 1:
            line(depth, f"{unpacked[0]} = d[p]" if codes == "B" else f"{unpacked[0]} = d[p : p + 1]")
            line(depth, "p += 1")
        else:
            unpack = self.source.constant(_struct(codes).unpack_from, "unpack")
            line(depth, f"{', '.join(unpacked)}{',' if len(unpacked) == 1 else ''} = {unpack}(d, p)  # {codes}")
            line(depth, f"p += {_struct(codes).size}")
        for statement, name in ready:
            line(depth, statement, name)

    def _emit_variable(
        self, depth: int, i: int, reading: Reading, codes: str, unpacked: list[str], ready: list[tuple[str, str]]
    ) -> None:
        line = self.source.line
        name = self.fields[i].column.name
        length = {1: "n", 2: "n", 3: "n + (m << 16)", 4: "n"}[reading.prefix]
        if codes or reading.prefix > 1:
            more = ["n", "m"] if reading.prefix == 3 else ["n"]
            self._emit_struct(depth, codes + _BY_SIZE[reading.prefix], unpacked + more, ready)
            line(depth, f"q = p + {length}")
        else:
            line(depth, "q = p + 1 + d[p]")
            line(depth, "p += 1")
        self._emit_bytes(depth, i, reading, name)
        line(depth, "p = q")

    def _emit_bytes(self, depth: int, i: int, reading: Reading, name: str) -> None:
        self.source.line(depth, f"{self.mark}{i} = {reading.expression.format('d[p:q]')}", name)


def _struct(codes: str) -> struct.Struct:
    return struct.Struct("<" + codes)


class PartialImage(Image):
    """An image of a PARTIAL_UPDATE event (39): the one before keeps its JSON bytes, the one after may hold diffs of them."""

    def __init__(self, source: Source, fields: Sequence[Field], present: Sequence[int], mark: str, before: Image | None) -> None:
        super().__init__(source, fields, present, mark)
        self.before = before
        self.json = [i for i, field in enumerate(fields) if field.wire == Wire.JSON]  # one bit each, present or not

    def emit(self, depth: int) -> None:
        """As `Image.emit`; the image after begins with its options and a bit for each JSON column that holds diffs."""
        line = self.source.line
        if self.before is None:
            for i in self.json:
                line(depth, f"json{i} = None")
        else:
            line(depth, "options = d[p]; p += 1; diffs = 0")
            line(depth, "if options == 1:")
            size = (len(self.json) + 7) // 8
            line(depth + 1, f'diffs = from_bytes(d[p : p + {size}], "little"); p += {size}')
            line(depth, "elif options:")
            line(depth + 1, 'raise ValueError(f"row value options {options:#x}; 1 (PARTIAL_JSON) can be read")')
        super().emit(depth)

    def _emit_bytes(self, depth: int, i: int, reading: Reading, name: str) -> None:
        line = self.source.line
        if i not in self.json:
            super()._emit_bytes(depth, i, reading, name)
        elif self.before is None:
            line(depth, f"json{i} = d[p:q]")
            super()._emit_bytes(depth, i, reading, name)
        else:
            patch = self.source.constant(patched_text, "patched")
            line(depth, f"if diffs & {1 << self.json.index(i)}:")
            line(depth + 1, f"{self.mark}{i} = {patch}(json{i}, d[p:q])", name)
            line(depth, "else:")
            super()._emit_bytes(depth + 1, i, reading, name)


# ---------------------------------------------------------------- whole functions


def write_decoder(fields: Sequence[Field], images: Sequence[Sequence[int]], partial: bool) -> Source:
    """Write `decode(d, p, end, *adds)`: it reads rows from d[p:end] and hands each image's tuple to its `add`.

    `images` holds the indexes of the columns present, once for INSERT and DELETE, twice for UPDATE.
    """
    source = Source()
    marks = "ab"[: len(images)]
    source.line(0, f"def decode(d, p, end, {', '.join(f'add_{mark}' for mark in marks)}):")
    source.line(1, "while p < end:")
    before: Image | None = None
    emitted: list[Image] = []
    for mark, present in zip(marks, images, strict=True):
        image = PartialImage(source, fields, present, mark, before) if partial else Image(source, fields, present, mark)
        image.emit(2)
        before = image
        emitted.append(image)
    source.line(2, "if p > end:")
    source.line(3, 'raise IndexError("a row runs past the end of the event")')
    for image in emitted:
        source.line(2, f"add_{image.mark}({image.row})")
    return source


def compile_decoder(
    fields: Sequence[Field], images: Sequence[Sequence[int]], partial: bool
) -> tuple[Callable[..., None], Source]:
    """Return the compiled function of `write_decoder`, and its source to tell the column of a failing line."""
    source = write_decoder(fields, images, partial)
    names = dict(source.names)
    exec(compile(source.text, DECODER_FILE, "exec"), names)
    return names["decode"], source


DECODER_FILE = "<row decoder>"  # the file name that a traceback through a generated function shows
