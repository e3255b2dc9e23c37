"""Decodes what a real server just wrote: reads its binlog file and returns rows by the project's own row decoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pymysql

from shmstore.encoding import codec
from shmstore.event import Event, EventType, Row, TableSchema
from shmstore.producer.binlog.compression import payload_events, uncompress_query
from shmstore.producer.binlog.rows import ROWS_EVENTS, DecodedRows, RowsDecoder

FORMAT_DESCRIPTION, QUERY, TABLE_MAP, PAYLOAD, QUERY_COMPRESSED = 15, 2, 19, 40, 165


def reference(schemas: Any = None) -> RowsDecoder:
    """A decoder whose programs are interpreted in Python."""
    return RowsDecoder(schemas=schemas, compiled=False)


class Seen(NamedTuple):
    """One rows event after the way through the codec that every event takes."""

    type: EventType
    schema: TableSchema
    rows: tuple[Row, ...]
    event_type: int


def logged(schema: TableSchema) -> TableSchema:
    """The schema without what only the table's definition says."""
    return codec.decode_schema(codec.bare_schema(codec.encode_schema(schema)))


def raw_events(data: bytes, start: int = 4) -> Iterator[tuple[int, bytes]]:
    """(type, body without checksum) of each event of a binlog file from `start`; a payload's inner events too."""
    checksum = _checksum(data)
    at = start
    while at + 19 <= len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        body = data[at + 19 : at + size - checksum]
        yield data[at + 4], body
        if data[at + 4] == PAYLOAD:
            for header, inner in payload_events(body):
                yield header[4], inner
        at += size


def _checksum(data: bytes) -> int:
    """Bytes of checksum behind each event: known from the last byte but four of the format description."""
    size = int.from_bytes(data[4 + 9 : 4 + 13], "little")
    return 4 if data[4 + size - 5] == 1 else 0


def plain(body: list[Any]) -> list[Any]:
    """A decoded body with its rows as lists of lists, whichever decoder made them."""
    return [
        None if part is None else [list(row) if isinstance(row, list | tuple) else row for row in codec.unpack_rows(part)]
        for part in body
    ]


def stored(decoded: DecodedRows) -> Event:
    """The event of decoded rows, after the way through the codec."""
    header = codec.Header(2, int(decoded.type), "", 0, 0, 0, 0, "", 0, 0, "", 0, "", "", {})
    return codec.decode(codec.encode_stored(header, decoded.table.schema_blob, decoded.body))


class Log:
    """The end of a server's binlog, from the place where it was opened."""

    def __init__(self, server: Any, connection: Any) -> None:
        self.server = server
        self.connection = connection
        self.decoder = reference()
        self.skip()

    def _place(self) -> tuple[str, int]:
        word = "BINARY LOG" if self.server.flavor == "mysql" else "MASTER"
        with self.connection.cursor() as cursor:
            cursor.execute(f"SHOW {word} STATUS")
            file, position = cursor.fetchone()[:2]
        return file, int(position)

    def skip(self) -> None:
        self.file, self.position = self._place()

    def events(self) -> list[tuple[int, bytes]]:
        """The events written since the last call."""
        file, position = self._place()
        found = []
        data = (Path(self.server.directory) / "data" / self.file).read_bytes()
        found += raw_events(data, self.position)
        if file != self.file:
            data = (Path(self.server.directory) / "data" / file).read_bytes()
            found += raw_events(data)
        self.file, self.position = file, position
        return found

    def seen(self) -> list[Seen]:
        """The rows events written since the last call, decoded."""
        found = []
        compiled = RowsDecoder(schemas=self.decoder._schemas, compiled=True)
        compiled.mariadb = self.decoder.mariadb
        for type_, body in self.events():
            if type_ == TABLE_MAP:
                self.decoder.table_map(body)
                compiled.table_map(body)
            elif type_ in ROWS_EVENTS:
                decoded = self.decoder.rows(type_, body)
                assert repr(plain(compiled.rows(type_, body).body)) == repr(plain(decoded.body)), "the compiled decoder differs"
                event = stored(decoded)
                assert event.table is not None
                assert len(event.rows) == decoded.count
                found.append(Seen(event.type, event.table, event.rows, type_))
        return found

    def queries(self) -> list[bytes]:
        """The statements written since the last call."""
        found = []
        for type_, body in self.events():
            if type_ == QUERY_COMPRESSED:
                type_, body = QUERY, uncompress_query(body)
            if type_ == QUERY:
                database, variables = body[8], int.from_bytes(body[11:13], "little")
                found.append(body[13 + variables + database + 1 :])
        return found


@contextmanager
def database_of(server: Any, name: str, **arguments: Any) -> Iterator[tuple[Any, Log]]:
    """A fresh database; yields (connection into it, log from there)."""
    connection = server.connect(**arguments)
    try:
        run(connection, f"DROP DATABASE IF EXISTS `{name}`", f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4", f"USE `{name}`")
        yield connection, Log(server, connection)
        run(connection, f"DROP DATABASE `{name}`")
    finally:
        connection.close()


def run(connection: pymysql.Connection[Any], *statements: Any) -> list[tuple[Any, ...]]:
    """Run statements ("..." or ("...", arguments)); returns the rows of the last one."""
    rows: Any = ()
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(*((statement,) if isinstance(statement, str) else statement))
            rows = cursor.fetchall()
    return list(rows)
