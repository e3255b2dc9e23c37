"""The password of an account, looked up again for each connection: the option's, a file's, or what a command prints."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

from shmstore.producer.errors import LoginRefused
from shmstore.producer.settings import ServerAddress, Settings

COMMAND_SECONDS = 30.0  # a command that asks a cloud for a token takes one to five
_SHOWN = 300  # characters of what the command complains of


def password(settings: Settings, endpoint: ServerAddress) -> str:
    """Return the password for `endpoint`. Raises `LoginRefused` where a command gives none, `SettingsError` of a file."""
    command = settings.password_command
    return printed(command, endpoint, settings.user) if command else settings.secret()


def printed(command: str, endpoint: ServerAddress, user: str) -> str:
    """Return what the command prints: one line. It knows the server by the variables of the options, since a token may be for one server
    only. Raises `LoginRefused`."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"SHMSTORE_HOST": endpoint.host, "SHMSTORE_PORT": str(endpoint.port), "SHMSTORE_USER": user},
        start_new_session=True,  # with what it starts it ends as one
    )
    try:
        out, complaint = process.communicate(timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        why = f"was not done after {COMMAND_SECONDS:g} seconds, and was ended"
        raise _refused(
            endpoint, why, "run it by hand as the producer's user: does it ask something, or wait for the network?"
        ) from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind, too
        for pipe in (process.stdout, process.stderr):
            pipe and pipe.close()
        process.wait()
    line = out.decode(errors="replace").rstrip("\r\n")
    if process.returncode:
        by = f"exit code {process.returncode}" if process.returncode > 0 else signal.Signals(-process.returncode).name
        raise _refused(endpoint, f"ended with {by}", _last_line(complaint, line) or "it wrote nothing to stderr")
    if not line:
        raise _refused(endpoint, "printed nothing", _last_line(complaint, line) or "it must print the password to stdout")
    if "\n" in line or "\0" in line:
        raise _refused(endpoint, f"printed {line.count(chr(10)) + 1} lines", "it must print the password alone, in one line")
    return line


def _refused(endpoint: ServerAddress, what: str, more: str) -> LoginRefused:
    return LoginRefused(f"no password for {endpoint.where}: password_command {what}: {more}")


def _last_line(complaint: bytes, printed: str) -> str:
    """The last line of what the command wrote to stderr, without what it had printed: that may be a part of the password."""
    text = complaint.decode(errors="replace")
    for line in filter(None, map(str.strip, printed.splitlines())):
        text = text.replace(line, "***")
    lines = [line for line in text.splitlines() if line.strip()]
    shown = "".join(char if char.isprintable() else "?" for char in lines[-1].strip()) if lines else ""
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
