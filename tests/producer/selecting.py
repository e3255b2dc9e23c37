"""A table as a snapshot reads it, compared with what the stream said of the same rows."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from shmstore import Position, TableSchema, producer
from shmstore.encoding import codec
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.connection.server import read_server
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.native_code import COMPILED
from shmstore.producer.snapshot.select import literals, selection
from shmstore.producer.snapshot.tables import SourceTable, read_table
from shmstore.producer.snapshot.watermarks import begin, prepare
from tests.servers.server import Server


def session_of(server: Server) -> ServerSession:
    settings = producer.Settings(store="selecting", host=server.host, port=server.port, user=server.user)
    session = connect(settings, settings.endpoints()[0])
    prepare(session)
    return session


def selected(session: ServerSession, table: SourceTable, limit: int = 1000, *, compiled_code: bool = COMPILED) -> list[list[Any]]:
    """All rows of a table, in stored form, read chunk by chunk."""
    choice, after, found = selection(table), tuple[str, ...](), list[list[Any]]()
    while True:
        rows = SelectRows(
            session, choice.sql(after, (), limit), choice.columns, len(table.schema.columns), 30, compiled_code=compiled_code
        )
        while not rows.step(30):
            pass
        found += codec.unpack_rows(codec.Packed(rows.rows.array(0, limit)))
        if table.key is None or len(rows) < limit:
            return found
        after = literals(choice, rows.last)


def as_shown(schema: TableSchema) -> TableSchema:
    """The schema with members as the server shows them: both know only the first plane of Unicode there."""

    def plain(text: str) -> str:
        return "".join(char if ord(char) < 0x10000 else "?" for char in text)

    return schema._replace(columns=tuple(c._replace(members=tuple(map(plain, c.members))) for c in schema.columns))


def equals_stream(server: Server, database: str, table: str, seen: list[Any], *, history: str = "auto", limit: int = 3) -> None:
    """What a snapshot makes of the table now is what `seen`, events of INSERTs of all its rows, hold: schema and rows."""
    with closing(session_of(server)) as session:
        begin(session, read_server(session), Position("", 0), None)
        found = read_table(session, database, table, history=history)
        assert found is not None
        assert found.schema == as_shown(seen[0].schema)
        rows = selected(session, found, limit)
        assert repr(selected(session, found, limit, compiled_code=False)) == repr(rows)
        header = codec.Header(2, 16, "", 0, 0, 0, 0, "", 0, 0, "", 0, "", "", {})
        event = codec.decode(codec.encode_stored(header, codec.encode_schema(found.schema), [None, None, None, rows]))
        assert [repr(row.after) for row in event.rows] == [repr(row.after) for one in seen for row in one.rows]
