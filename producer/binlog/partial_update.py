"""PARTIAL_UPDATE events (39): an image after may hold, instead of a JSON document, what changed in the one of the image before.

The image after begins with its options, one byte. 1 says that a bit follows for each JSON column of the table, present or not:
whether its value is a list of changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from shmstore.producer.binlog.row_interpreter import ImageRow, Program, ReadValue
from shmstore.producer.binlog.row_program import steps
from shmstore.producer.binlog.table_map import Field
from shmstore.producer.binlog.wire_types import Wire
from shmstore.producer.errors import ValueRefused
from shmstore.producer.values.json_binary import json_text, patched_text

__all__ = ["PartialUpdate"]

_PARTIAL_JSON = 1


class PartialUpdate:
    """Decodes such events of one layout: its programs keep the documents of a row's image before for the one after."""

    def __init__(self, fields: Sequence[Field], before: Sequence[int], after: Sequence[int]) -> None:
        json = [i for i, field in enumerate(fields) if field.wire == Wire.JSON]
        self._size = (len(json) + 7) // 8
        self._documents: dict[int, bytes] = {}  # by column
        self._changed = 0  # a bit for each JSON column
        kept = {i: self._kept(i) for i in json}
        patched = {i: self._patched(i, 1 << bit) for bit, i in enumerate(json)}
        self.programs = _program(fields, before, kept), _program(fields, after, patched)

    def rows_of(self, before: Program, after: Program, data: bytes, at: int) -> tuple[int, list[ImageRow], list[ImageRow]]:
        """Decode the rows in data[at:] with these programs: (rows, images before, images after)."""
        befores: list[ImageRow] = []
        afters: list[ImageRow] = []
        while at < len(data):
            self._documents.clear()
            row, at = before.image(data, at)
            befores.append(row)
            row, at = after.image(data, self._read_options(data, at))
            afters.append(row)
        return len(befores), befores, afters

    def _read_options(self, data: bytes, at: int) -> int:
        options = data[at]
        if options not in (0, _PARTIAL_JSON):
            raise ValueRefused(
                f"row value options {options:#x}, of which 1 (PARTIAL_JSON) can be read; a newer shmstore may know them"
            )
        stop = at + 1 + (self._size if options else 0)
        self._changed = int.from_bytes(data[at + 1 : stop], "little")
        return stop

    def _kept(self, column: int) -> ReadValue:
        def document(raw: bytes) -> str:
            self._documents[column] = raw
            return json_text(raw)

        return document

    def _patched(self, column: int, bit: int) -> ReadValue:
        def document(raw: bytes) -> str:
            return patched_text(self._documents.get(column), raw) if self._changed & bit else json_text(raw)

        return document


def _program(fields: Sequence[Field], present: Sequence[int], json: dict[int, ReadValue]) -> Program:
    """The program of an image, with these functions for its JSON columns."""
    return Program(
        [
            step._replace(name="call", extra=json[i]) if i in json else step
            for i, step in zip(present, steps(fields, present), strict=True)
        ]
    )
