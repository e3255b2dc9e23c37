"""producer/binlog.py: what is asked of the server, and what of the libraries is not public."""

from __future__ import annotations

import inspect
import tomllib
from contextlib import closing
from pathlib import Path

import pymysql.connections
import pytest
from pymysqlreplication import BinLogStreamReader

import producer
from producer.binlog import BinlogReader, connect
from shmstore import PositionNotFound
from tests.servers.server import Server

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_not_public_is_there() -> None:
    """The names that begin with an underscore are there, in the versions that the project allows, and no others."""
    assert callable(BinLogStreamReader._BinLogStreamReader__connect_to_stream)
    assert "pymysql_wrapper" in inspect.signature(BinLogStreamReader).parameters
    for name in ("_write_bytes", "_force_close"):
        assert callable(getattr(pymysql.connections.Connection, name))
    made = pymysql.connect(defer_connect=True)
    assert {"_sock", "_read_timeout"} <= vars(made).keys()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = [one for one in extras["mysql"] if one.startswith("mysql-replication")]
    assert "<" in wanted, wanted


@pytest.mark.server
def test_a_place_beyond_4_gib(any_server: Server) -> None:
    """Without a GTID set the protocol has four bytes for an offset: a larger one is refused with what helps, before anything is sent."""
    settings = producer.Settings(store="unused", port=any_server.port)
    with (
        closing(connect(settings, settings.endpoints()[0])) as session,
        pytest.raises(PositionNotFound, match=r"binlog\.000001:4294967296: .* up to 4 GiB; go on by GTID .* FLUSH BINARY LOGS"),
    ):
        BinlogReader(settings, session, file="binlog.000001", offset=1 << 32, gtids=None, server_id=77)
