"""The password and TLS of `metrics` and `serve`, as their users give and change them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import flight

from shmstore import EventStore
from shmstore.cli.command_line import commands
from shmstore.cli.commands.serve import exposing
from shmstore.cli.main import main
from tests.certificates import self_signed
from tests.consumer.serving.test_access import basic
from tests.consumer.test_consumer import transaction
from tests.consumer.wire.harness import RawClient
from tests.servers.ports import free_port

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def listening(*words: str, count: int = 1, **environment: str) -> Iterator[list[int]]:
    """A command as its own process, and the ports that it says it listens on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shmstore", *words], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}, cwd=ROOT
    )
    assert process.stderr is not None
    try:
        ports: list[int] = []
        for line in process.stderr:
            if found := re.search(r"listening on \S+?:(\d+)", line):
                ports.append(int(found[1]))
            if len(ports) == count:
                break
        assert len(ports) == count, "it ended before it listened"
        yield ports
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, rest


def status(url: str, trusted: ssl.SSLContext | None, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60, context=trusted) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def replace(file: Path, secret: str) -> None:
    """Rotate a secret as a deployment does: the new file takes the place of the old one."""
    new = file.with_suffix(".new")
    new.write_text(f"{secret}\n")
    new.replace(file)


def test_metrics_with_tls_and_a_password(tmp_path: Path) -> None:
    """Both pages answer over TLS to a client that has both user name and password; a rotated password counts at once."""
    chain, key = self_signed(tmp_path)
    password = tmp_path / "password"
    password.write_text("first\n")
    trusted = ssl.create_default_context(cafile=chain)
    access = ("--user", "prom", "--password-file", str(password), "--tls-cert", chain, "--tls-key", key)
    with listening("metrics", "none", "--listen", "127.0.0.1:0", *access) as (port,):
        for page in ("metrics", "healthz"):
            url = f"https://127.0.0.1:{port}/{page}"
            assert status(url, trusted) == 401
            assert status(url, trusted, Authorization=basic("prom", "wrong")) == 401
            assert status(url, trusted, Authorization=basic("else", "first")) == 401
            assert status(url, trusted, Authorization=basic("prom", "first")) in (200, 503)
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)
        replace(password, "second")
        assert status(url, trusted, Authorization=basic("prom", "first")) == 401
        assert status(url, trusted, Authorization=basic("prom", "second")) in (200, 503)


def test_metrics_with_a_password_of_the_environment() -> None:
    """A password in the environment is one, too."""
    with listening("metrics", "none", "--listen", "127.0.0.1:0", SHMSTORE_METRICS_PASSWORD="pw") as (port,):
        assert status(f"http://127.0.0.1:{port}/metrics", None) == 401
        assert status(f"http://127.0.0.1:{port}/metrics", None, Authorization="Bearer pw") == 200


def test_serve_reads_a_rotated_password(tmp_path: Path) -> None:
    """Who logs in after the file was replaced needs the new password, by Canal's protocol and by Arrow Flight."""
    password = tmp_path / "password"
    password.write_text("first\n")

    def canal(secret: str) -> int:
        client = RawClient(ports[1], "none", login=False)
        try:
            return int(client.authenticate(username="u", password=secret.encode()).error_code)
        finally:
            client.socket.close()

    def admits(secret: str) -> bool:
        try:
            list(
                over_flight.list_flights(
                    options=flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {secret}".encode())])
                )
            )
        except flight.FlightUnauthenticatedError:
            return False
        return True

    words = ("serve", "--flight", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--password-file", str(password))
    with (
        listening(*words, f"--state={tmp_path / 'state'}", count=2) as ports,
        flight.FlightClient(f"grpc://127.0.0.1:{ports[0]}") as over_flight,
    ):
        assert (canal("first"), admits("first")) == (0, True)
        assert (canal("second") != 0, admits("second")) == (True, False)
        replace(password, "second")
        assert (canal("second"), admits("second")) == (0, True)
        assert (canal("first") != 0, admits("first")) == (True, False)


def test_the_counters_of_serve(store: EventStore, tmp_path: Path) -> None:
    """Both protocols on one page, over TLS, to a client with a password that is not the clients'."""
    store.put(transaction(0))
    chain, key = self_signed(tmp_path)
    for name in ("clients", "counters"):
        (tmp_path / name).write_text(f"{name}\n")
    port, trusted = free_port(), ssl.create_default_context(cafile=chain)
    words = ["serve", store.name, "--flight", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state")]
    words += ["--password-file", str(tmp_path / "clients"), "--tls-cert", chain, "--tls-key", key]
    words += ["--metrics-port", str(port), "--metrics-password-file", str(tmp_path / "counters")]
    with listening(*words, count=2) as ports:
        page = f"https://127.0.0.1:{port}/metrics"
        assert status(page, trusted) == 401
        assert status(page, trusted, Authorization="Bearer clients") == 401
        with Path(chain).open("rb") as roots:
            client = flight.FlightClient(f"grpc+tls://localhost:{ports[0]}", tls_root_certs=roots.read())
        with client:
            login = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer clients")])
            client.do_get(flight.Ticket(json.dumps({"store": store.name})), login).read_all()
        request = urllib.request.Request(page, headers={"Authorization": "Bearer counters"})
        with urllib.request.urlopen(request, timeout=60, context=trusted) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
    assert "# TYPE shmstore_serve_connections gauge" in text
    assert f'shmstore_flight_rows_total{{store="{store.name}",subscription=""}} 1\n' in text


def test_the_counters_of_arrow_flight_alone(store: EventStore) -> None:
    """Without canal's listener they are at the host of --flight, in clear where its clients are; /healthz says that clients are answered."""
    store.put(transaction(0))
    port = free_port()
    with listening("serve", store.name, "--flight", "127.0.0.1:0", "--metrics-port", str(port)) as (served,):
        with flight.FlightClient(f"grpc://127.0.0.1:{served}") as client:
            client.do_get(flight.Ticket(json.dumps({"store": store.name}))).read_all()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")
        assert status(f"http://127.0.0.1:{port}/other", None) == 404
    assert f'shmstore_flight_rows_total{{store="{store.name}",subscription=""}} 1\n' in text
    assert "shmstore_serve_" not in text


def test_health_before_clients_are_answered() -> None:
    """Until a server listens, it is 503."""
    port = free_port()
    options = commands().parser.parse_args(["serve", "--flight", "127.0.0.1:0", "--metrics-port", str(port)])
    with exposing(options) as expose:
        assert status(f"http://127.0.0.1:{port}/healthz", None) == 503
        expose(lambda: "a 1\n")
        assert status(f"http://127.0.0.1:{port}/healthz", None) == 200


def test_a_metrics_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line that names it, before anything else listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words in (("--listen", "127.0.0.1:0"), ("--flight", "127.0.0.1:0")):
            assert main(["serve", *words, "--metrics-port", str(port)]) == 2
            assert f"cannot serve on 127.0.0.1:{port}" in (said := capsys.readouterr().err)
            assert "--metrics-port" in said
            assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("metrics", "--tls-cert", "x"), "both a certificate and its key"),
        (("metrics", "--user", "ada"), "has no password: give --password-file or SHMSTORE_METRICS_PASSWORD"),
        (("metrics", "--password-file", "/nonexistent/password"), "/nonexistent/password"),
        (("serve", "--password-file", "/nonexistent/password"), "/nonexistent/password"),
        (("serve", "--password-file", os.devnull), "is empty"),
        (("serve", "--metrics-port", "1", "--metrics-password-file", "/nonexistent/password"), "/nonexistent/password"),
        (("metrics", "--tls-cert", "/nonexistent/c", "--tls-key", "/nonexistent/k"), "/nonexistent/c"),
    ],
)
def test_what_cannot_be_used_is_one_line(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Access that cannot be had as it was asked for is one line that says what to do, and exit code 2; nothing listens."""
    code = main([*words, "--listen", "127.0.0.1:0"])
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n"), says in said.err) == (2, "", 1, True), said.err
