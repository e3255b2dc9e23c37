"""The commands of the operator's pages, run in the order in which they stand there, against a real server, in a folder of the test's own.

The pages that continue from a host as Operations sets it up are one shell script with that one, Security is one of its own. Paths are moved below the
folder; host, group, ports and stores are the test's. Each command has to end with exit code 0.
"""

from __future__ import annotations

import grp
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EventStore
from tests.certificates import self_signed
from tests.docs import stand_ins
from tests.docs.pages import ROOT, command_lines, page_of
from tests.producer.running import store_name
from tests.servers.ports import free_port
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server

HOSTS = (("operations", "stat", "monitoring", "capacity", "log", "troubleshooting", "upgrading", "backup"), ("security",))
LAST_OF_SETUP = "systemctl enable --now shmstore-run@shop shmstore-metrics"
READERS = "".join(f"shmstore tail orders --subscription {name} --count 2 > /dev/null\n" for name in ("audit", "revenue"))

# What is not run, with the reason, and what looks at it instead.
NOT_RUN = {
    "useradd": "changes the machine's accounts",
    "python3 -m venv": "takes a minute and the network; the command of this checkout is in its place",
    "/opt/shmstore/bin/pip": "the same",
    "docker": "there may be no daemon; tests/deploy/test_containers.py reads the file",
    "kubectl": "there is no cluster; tests/deploy/test_containers.py reads the file",
    "mount": "changes the machine",
    "scp": "there is no other host: the page's next commands find the archive here",
}
# What a stand-in does in their place (tests/docs/stand_ins.py).
STAND_INS = ("systemctl", "journalctl", "shmstore")


def not_run(line: str) -> str | None:
    return next((name for name in NOT_RUN if re.match(rf"{re.escape(name)}\b", line)), None)


class Host:
    """The folder that serves as a host's file system, and what a page's commands become there."""

    def __init__(self, root: Path, server: Server, certificate: str) -> None:
        self.root, self.server = root, server
        self.store = store_name()
        self.checkout = root / "checkout"
        self._ports: dict[str, int] = {}
        for folder in ("etc/systemd/system", "etc/ssl/certs", "opt/shmstore/bin", "var/lib/shmstore", "srv", "bin"):
            (root / folder).mkdir(parents=True)
        shutil.copy(certificate, root / "etc/ssl/certs/db-ca.pem")
        shutil.copytree(ROOT / "deploy", self.checkout / "deploy")
        for unit in self.checkout.glob("deploy/systemd/*.service"):
            unit.write_text(self.here(unit.read_text()))
        for name in STAND_INS:
            self._program(f"bin/{name}", stand_ins.__file__, name)
        self._program("opt/shmstore/bin/shmstore", "-m", "shmstore")

    def _program(self, path: str, *words: str) -> None:
        (self.root / path).write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
        (self.root / path).chmod(0o755)

    def here(self, text: str) -> str:
        """A page's or a unit's text with the test's own paths, server, group, ports and store."""
        text = re.sub(r"(?<![\w.])/(etc|opt|var/lib|srv)(?=/)", rf"{self.root}/\1", text)
        text = text.replace("/opt/shmstore/bin:$PATH", "/bin:$PATH")  # the stand-ins
        text = re.sub(r"(?<![\w./-])db1\b", self.server.host, text)
        text = re.sub(r"(?<=-g )shmstore|(?<=group )changes", grp.getgrgid(os.getgid()).gr_name, text)
        text = re.sub(r"\b(?:127\.0\.0\.1|0\.0\.0\.0):(\d{4,5})\b", self._port, text)
        return re.sub(r"(?<!shop\.)\b(?:orders|(prices|stocks|masked))\b", self._named, text)

    def _named(self, match: re.Match[str]) -> str:
        return f"{self.store}-{match[1]}" if match[1] else self.store

    def _port(self, match: re.Match[str]) -> str:
        return f"127.0.0.1:{self._ports.setdefault(match[1], free_port())}"

    def run(self, lines: list[str]) -> None:
        script = "set -eu -o pipefail\n"
        for line in lines:
            if not not_run(line):
                script += f"echo {shlex.quote('$ ' + line)}\n{line}\n"
            if line == LAST_OF_SETUP:
                script += READERS
        environment = os.environ | {
            "ROOT": str(self.root),
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SHMSTORE_PORT": str(self.server.port),
            "SHMSTORE_START": "earliest",
            "SHMSTORE_STATE": str(self.root / "var/lib/shmstore"),
        }
        done = subprocess.run(
            ["bash", "-c", self.here(script)],
            cwd=self.checkout,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"the last of these commands failed ({done.returncode}):\n{done.stdout}"

    def end(self) -> None:
        os.environ["ROOT"] = str(self.root)
        try:
            for file in self.root.glob("*.pid"):
                stand_ins.stop(file.stem)
        finally:
            del os.environ["ROOT"]
        for name in EventStore.names():
            if name == self.store or name.startswith(f"{self.store}-"):
                EventStore.unlink(name, force=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return self_signed(tmp_path_factory.mktemp("certificate"), "db1")


@pytest.fixture(scope="module")
def server(certificate: tuple[str, str]) -> Iterator[Server]:
    """A server of the pages: it has the account and the database that they name, and speaks TLS."""
    with start_server("mariadb", [f"--ssl-cert={certificate[0]}", f"--ssl-key={certificate[1]}"]) as started:
        with started.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER repl@'%' IDENTIFIED BY '...'")
            cursor.execute("GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO repl@'%'")
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, total decimal(10,2))")
            cursor.execute("CREATE TABLE shop.customers (id int PRIMARY KEY, email varchar(80))")
            cursor.execute("INSERT INTO shop.orders VALUES (1, 12.50), (2, 7.25)")
            cursor.execute("INSERT INTO shop.customers VALUES (1, 'ada@example.org')")
        yield started


@pytest.fixture
def host(tmp_path: Path, server: Server, certificate: tuple[str, str]) -> Iterator[Host]:
    made = Host(tmp_path, server, certificate[0])
    yield made
    made.end()


def commands(name: str) -> list[str]:
    return command_lines(page_of(name))


@pytest.mark.parametrize("pages", HOSTS, ids=",".join)
def test_the_commands_of_pages(pages: tuple[str, ...], host: Host) -> None:
    """Each does what it should, one after the other."""
    host.run([line for page in pages for line in commands(page)])
    archives = list(host.root.rglob("*.tar.gz"))
    assert [oct(archive.stat().st_mode & 0o777) for archive in archives] == ["0o600"] * len(archives)
    assert ("backup" in pages) == bool(archives)


def test_what_is_not_run_is_shown() -> None:
    """What is left out is on a page, and each page has enough that is not."""
    lines = {page: commands(page) for pages in HOSTS for page in pages}
    assert {not_run(line) for found in lines.values() for line in found} - {None} == set(NOT_RUN)
    assert all(sum(not not_run(line) for line in found) >= 2 for found in lines.values()), lines
