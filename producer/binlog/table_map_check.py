"""Whether a TABLE_MAP can be of a table as it is followed: where the log does not name the columns, the safety net below the DDLs.

A DDL that was not logged (sql_log_bin = 0), or was misread, gives columns the values of others. The log contradicts it as far as its
bytes allow: type, length, digits, members' width and NULL of each column, and sign, character set and shape where they are logged.

A column's expected form is read from its definition. What a definition leaves open is not compared: the form of old temporal types,
whether a column is COMPRESSED, and what was never known (`Column.nullable` None, a type that this version does not know).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shmstore.column_type import column_type, sized
from shmstore.event import Column
from shmstore.producer.binlog.wire_types import BLOBS, CHARACTER, NUMERIC, PLAIN, Wire
from shmstore.sql.columns import GEOMETRY

__all__ = ["Logged", "contradictions"]

_SHOWN = 6  # columns in a message
_WIDTHS = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_BLOB_WIDTH = {prefix + kind: width for prefix, width in _WIDTHS.items() for kind in ("blob", "text")}
_CODES: dict[str, set[int]] = {name: {code for code in PLAIN if PLAIN[code] == name} for name in PLAIN.values()}
_CODES |= {"char": {Wire.STRING}, "binary": {Wire.STRING}}
_CODES |= {kind: {Wire.VARCHAR, Wire.VAR_STRING, Wire.VARCHAR_COMPRESSED} for kind in ("varchar", "varbinary")}
_FIXED = {"uuid": 16, "inet6": 16, "inet4": 4}  # bytes, as BINARY


class Logged(NamedTuple):
    """A column as the log has it. None: the log does not say."""

    code: int
    meta: int
    nullable: bool
    unsigned: bool | None = None
    charset: str | None = None
    shape: str | None = None  # of a GEOMETRY

    def __str__(self) -> str:
        form = self._form()
        if self.unsigned is not None and self.code in NUMERIC:
            form += " unsigned" if self.unsigned else " signed"
        if self.charset is not None:
            form += f" {self.charset}"
        return form + ("" if self.nullable else " not null")

    def _form(self) -> str:
        code, meta = self.code, self.meta
        if code == Wire.NEWDECIMAL:
            return f"decimal({meta >> 8},{meta & 255})"
        if code in (Wire.TIMESTAMP2, Wire.DATETIME2, Wire.TIME2):
            return f"{PLAIN[code]}({meta})"
        if code == Wire.BIT:
            return f"bit({meta})"
        if code in (Wire.ENUM, Wire.SET):
            return f"{PLAIN[code]} of {meta} bytes"
        if code == Wire.GEOMETRY:
            return self.shape or "geometry"
        if code in BLOBS:
            return f"{next((prefix for prefix, width in _WIDTHS.items() if width == meta), '?')}blob/text"
        if code in CHARACTER:
            return f"{'char/binary' if code == Wire.STRING else 'varchar/varbinary'} of {meta} bytes"
        return PLAIN[code]


def contradictions(logged: Sequence[Logged], followed: Sequence[Column], hidden: int | None = 0) -> str:
    """Return in which columns the log contradicts the table as it is followed, in words; empty where it fits.

    `hidden`: how many columns the log has behind those that are followed, None where that is not known: MariaDB's hashes of UNIQUE keys
    that are too long for an index.
    """
    more = logged[len(followed) :]
    if len(logged) < len(followed) or hidden not in (None, len(more)) or not all(map(_is_hash, more)):
        event, table = [str(one) for one in logged], [f"{column.name} {_shown(column)}" for column in followed]
        return f"the event has {len(logged)} columns ({_listed(event, ', ')}), the table as it is followed {len(followed)} ({_listed(table, ', ')})"
    return _listed(
        [
            f"column {i + 1} is {one} in the event and {column.name} {_shown(column)} in the table as it is followed"
            for i, (one, column) in enumerate(zip(logged, followed, strict=False))
            if not _fits(one, column)
        ],
        "; ",
    )


def _listed(texts: list[str], between: str) -> str:
    more = len(texts) - _SHOWN
    return between.join([*texts[:_SHOWN], f"and {more} more"] if more > 0 else texts)


def _is_hash(one: Logged) -> bool:
    return one.code == Wire.LONGLONG and one.unsigned is not False


def _shown(column: Column) -> str:
    text = column_type(column)
    if column.charset:
        text += f" {column.charset}"
    return text + (" not null" if column.nullable is False else "")


def _fits(one: Logged, column: Column) -> bool:
    if column.nullable is not None and one.nullable != column.nullable:
        return False
    if one.unsigned is not None and one.code in NUMERIC and one.unsigned != column.unsigned:
        return False
    if one.charset is not None and one.charset != (column.charset or "binary"):
        return False
    if one.shape is not None and one.shape != column.type:
        return False
    return _fits_type(one.code, one.meta, column)


def _fits_type(code: int, meta: int, column: Column) -> bool:
    kind = column.type
    if kind in _BLOB_WIDTH:
        return code in BLOBS and meta == _BLOB_WIDTH[kind]
    if kind in _FIXED:
        return (code, meta) == (Wire.STRING, _FIXED[kind])
    if kind == "vector":  # MariaDB: as VARBINARY, four bytes for each dimension
        size = sized(column).size
        return code == Wire.VECTOR or (code == Wire.VARCHAR and size in (0, meta // 4) and meta % 4 == 0)
    if kind == "json":
        return code == Wire.JSON
    if kind in GEOMETRY:
        return code == Wire.GEOMETRY
    if kind not in _CODES:
        return True
    known = sized(column)
    has_size = bool(known.size or column.definition)
    if kind in ("varchar", "varbinary") and known.size > 0xFFFF:  # which servers make a TEXT or BLOB of, where they may
        return code in BLOBS
    if kind == "double" and code == Wire.FLOAT:  # REAL in sql_mode REAL_AS_FLOAT
        return column.definition.upper().startswith("REAL")
    if code not in _CODES[kind]:
        return False
    if code in (Wire.TIMESTAMP2, Wire.DATETIME2, Wire.TIME2):
        return meta == column.scale
    if code == Wire.NEWDECIMAL:
        return not has_size or meta == (known.size or 10) << 8 | column.scale
    if code == Wire.BIT:
        return not has_size or meta == (known.size or 1)
    if code == Wire.ENUM:
        return meta == (1 if len(column.members) < 256 else 2)
    if code == Wire.SET:
        width = (len(column.members) + 7) // 8
        return meta == (8 if width > 4 else width)
    if code in CHARACTER:
        return not has_size or meta == known.size + (code == Wire.VARCHAR_COMPRESSED)
    return True
