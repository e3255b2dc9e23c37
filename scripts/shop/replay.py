"""Reader 3 is ``shmstore tail --format json`` into a file; this replays that file into tables, to see that it tells everything.

A line is one row change (`op` insert, update, delete; `before` and `after` by column name, bytes in base64), one DDL,
or a begin or end. The lines must come in the order of `seq` and `row`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from scripts.shop.canonical import base_type
from scripts.shop.compare import Layout
from scripts.shop.schema import DATABASE, follow

_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


class Replay:
    """The tables as the file's lines leave them. `rows` counts the row changes.

    With `redelivered` the writer was killed in between: what it had written but not acked comes again and is skipped by its
    place, and the line that it left torn too.
    """

    def __init__(self, layouts: Mapping[str, Layout], *, redelivered: bool = False) -> None:
        self._redelivered = redelivered
        self._bytes = {table: {name for name, type_ in layout.columns if type_ in _BYTES} for table, layout in layouts.items()}
        self._keys = {table: layout.key for table, layout in layouts.items()}
        self.content: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {table: {} for table in layouts}
        self.rows = 0
        self._last = (-1, -1)

    @property
    def tables(self) -> dict[str, Iterable[Mapping[str, Any]]]:
        """Rows by column name, by table."""
        return {table: rows.values() for table, rows in self.content.items()}

    def read(self, lines: Iterable[bytes | str]) -> Replay:
        """Apply every line. Raises ValueError for a line that is not whole, or out of order."""
        for number, line in enumerate(lines, 1):
            try:
                document = json.loads(line)
                place = (document["seq"], document.get("row", -1))
            except (ValueError, KeyError) as error:
                if self._redelivered:
                    continue
                raise ValueError(
                    f"line {number} of the tail file is not one of its documents: {error}: {line[:120]!r}"
                ) from error
            if place <= self._last and self._redelivered:
                continue
            if place <= self._last:
                raise ValueError(f"line {number} of the tail file: event {place} after {self._last}")
            self._last = place
            self._apply(document)
        return self

    def _apply(self, document: dict[str, Any]) -> None:
        if document.get("database") != DATABASE:
            return
        if document["op"] == "ddl":
            self._ddl(document["sql"])
        elif document["op"] in ("insert", "update", "delete"):
            table = document["table"]
            rows, key = self.content[table], self._keys[table]
            before, after = (self._image(table, document[image]) for image in ("before", "after"))
            if before is not None:
                rows.pop(tuple(before[name] for name in key), None)
            if after is not None:
                rows[tuple(after[name] for name in key)] = after
            self.rows += 1

    def _image(self, table: str, image: dict[str, Any] | None) -> dict[str, Any] | None:
        if image is None:
            return None
        for name in self._bytes[table] & image.keys():
            if image[name] is not None:
                image[name] = base64.b64decode(image[name], validate=True)
        return image

    def _ddl(self, sql: str) -> None:
        added = follow(sql)
        if added is None:
            return
        default: Any = added.default
        if default is not None and base_type(added.type).endswith("int"):
            default = int(default)
        for row in self.content[added.table].values():
            row[added.name] = default
