"""Snapshots of real servers' tables while a DDL runs between any two questions."""

from __future__ import annotations

from typing import Any

import pytest

from shmstore.event import Position
from shmstore.producer.connection.server import read_server
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.positions.gtid_position import current_position
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.schema.snapshot import take_snapshot
from tests.producer.disturbed import DDLS, OF_MARIADB, disturbed
from tests.servers.server import Server

pytestmark = pytest.mark.server


@pytest.mark.parametrize("name", [*DDLS, *OF_MARIADB])
def test_a_ddl_between_any_two_questions(any_server: Server, database: str, session: ServerSession, name: str) -> None:
    """The tables are those of the position, before the DDL or behind it, never some of both; and nothing is raised."""
    server = read_server(session)

    def taken(asked: Any) -> tuple[Position, dict[str, Any]]:
        history = SchemaHistory()
        position = take_snapshot(history, asked, lambda: current_position(asked, server))
        return position, {table: now for (schema, table), now in history.tables.items() if schema == database}

    for old, found, new in disturbed(any_server, database, name, session, taken):
        assert old[0] != new[0]
        assert found in (old, new)
