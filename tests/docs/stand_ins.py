"""Stand-ins for the programs of an operator's page that a test cannot run as they are; `python stand_ins.py NAME WORDS...`.

`systemctl` starts and stops what the units of $ROOT/etc/systemd/system say, and returns from `start` when they are ready, as systemd does; what
keeps a unit in (users, sandboxes, limits) it leaves out. `journalctl` shows what they logged. `shmstore` is the command itself, but one that
runs until it is stopped is stopped as soon as it does what it should.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from configparser import RawConfigParser
from pathlib import Path

SECONDS = 30
FOREVER = re.compile(r"(produce|run|serve|web)\b|metrics .*--listen|stat .*--watch")
RUNS = re.compile(r"listening|reading|^store ", re.MULTILINE)


def root() -> Path:
    return Path(os.environ["ROOT"])


def pid_file(unit: str) -> Path:
    return root() / f"{unit}.pid"


def systemctl(*words: str) -> None:
    verb, *units = [word for word in words if not word.startswith("-")]
    for unit in units:
        if verb in ("start", "enable"):
            start(unit)
        elif verb in ("stop", "disable"):
            stop(unit)
        elif verb == "status":
            os.kill(int(pid_file(unit).read_text()), 0)
        else:
            raise SystemExit(f"systemctl {verb} has no stand-in")


def start(unit: str) -> None:
    name, _, instance = unit.partition("@")
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    file = root() / "etc/systemd/system" / f"{name}{'@' if instance else ''}.service"
    parser.read_string(file.read_text().replace("%i", instance))
    service, environment = parser["Service"], dict(os.environ)
    settings = shlex.split(service.get("Environment", ""))
    if secrets := service.get("EnvironmentFile", "").removeprefix("-"):
        settings += shlex.split(Path(secrets).read_text())
    environment |= dict(setting.split("=", 1) for setting in settings)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard, open(root() / f"{unit}.log", "ab") as log:
        heard.bind(path := os.path.join(root(), f"{unit}.notify"))
        heard.settimeout(SECONDS)
        process = subprocess.Popen(
            shlex.split(service["ExecStart"]),
            env=environment | {"NOTIFY_SOCKET": path},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        pid_file(unit).write_text(str(process.pid))
        try:
            while "READY=1" not in heard.recv(4096).decode().splitlines():
                pass
        except TimeoutError:
            raise SystemExit(
                f"{unit} is not ready after {SECONDS} s, and says nothing; its log:\n{Path(log.name).read_text()}"
            ) from None
    os.unlink(path)


def stop(unit: str) -> None:
    """Stop it, and wait until it has ended."""
    try:
        process = os.pidfd_open(int(pid_file(unit).read_text()))
    except (FileNotFoundError, ProcessLookupError):
        return
    signal.pidfd_send_signal(process, signal.SIGTERM)
    if not select.select([process], [], [], SECONDS)[0]:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        raise SystemExit(f"{unit} did not end")
    pid_file(unit).unlink()


def journalctl(*words: str) -> None:
    print((root() / f"{words[-1]}.log").read_text())


def shmstore(*words: str) -> None:
    command = [sys.executable, "-m", "shmstore", *words]
    if not FOREVER.match(" ".join(words)) or "--help" in words:
        os.execv(sys.executable, command)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    said, until = b"", time.monotonic() + SECONDS
    while not RUNS.search(said.decode(errors="replace")) and time.monotonic() < until:
        if select.select([process.stdout], [], [], 1)[0]:
            if not (more := os.read(process.stdout.fileno(), 65536)):
                break
            said += more
    ended = process.poll()
    process.terminate()
    rest = process.communicate(timeout=SECONDS)[0]
    print((said + rest).decode(errors="replace"))
    if ended is not None or not RUNS.search(said.decode(errors="replace")) or process.returncode not in (0, -signal.SIGTERM):
        raise SystemExit(f"ended with {process.returncode} by itself, or did not say that it runs")


if __name__ == "__main__":
    {"systemctl": systemctl, "journalctl": journalctl, "shmstore": shmstore}[sys.argv[1]](*sys.argv[2:])
