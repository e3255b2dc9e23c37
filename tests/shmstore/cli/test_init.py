"""`shmstore init`: the file that it writes is one that the commands understand."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmstore import producer
from shmstore.cli.main import main
from tests.servers.server import Server


def test_the_file_is_complete(any_server: Server, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds what was given and what the server said; the check finds nothing wrong, and a producer's settings come out of it."""
    with any_server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE a (id INT PRIMARY KEY)")
        cursor.execute("CREATE TABLE b (id INT PRIMARY KEY)")
    path = tmp_path / "shop.toml"
    where = [
        "--host",
        f"127.0.0.1:{any_server.port}",
        "--user",
        any_server.user,
        "--include",
        f"{database}.*",
        "--read-timeout",
        "77",
    ]
    assert main(["init", *where, "--output", str(path)]) in (0, 1)  # 1: something of this server has to be put right
    text = path.read_text()
    assert f"{database} (2 tables)" in text
    assert "password = " not in text.replace("# The password", "")
    assert oct(path.stat().st_mode & 0o777) == "0o640"
    capsys.readouterr()
    assert main(["config", "check", str(path)]) == 0, capsys.readouterr().out
    (settings,) = producer.load_all(config=path, environ={})
    assert (settings.store, settings.include, settings.read_timeout) == (database, (f"{database}.*",), 77.0)
    assert (settings.endpoints()[0].port, settings.user) == (any_server.port, any_server.user)
    assert main(["init", *where, "--output", str(path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["init", *where, "--store", "orders", "--output", "-"]) in (0, 1)
    assert '[source."orders"]' in capsys.readouterr().out


def test_a_server_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2, and no file."""
    path = tmp_path / "shop.toml"
    assert main(["init", "--host", "127.0.0.1:1", "--output", str(path)]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert not path.exists()
