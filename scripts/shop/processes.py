"""The demo's child processes: started in sessions of their own, ended with everything they started.

Linux only, as the store is. A child's session id is its pid, so that its grandchildren (Spark's JVM and Python workers,
which move to process groups of their own) are found again by it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel to SIGTERM this process when its parent dies, so that even kill -9 of the demo leaves no process behind."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


class Child:
    """One process of the demo and all that it started. `log` is where its stderr (and stdout, unless piped) goes."""

    def __init__(
        self, name: str, command: list[str], *, log: Path, stdout: int | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = command
        self.log = log
        self._asked = False
        self._file = log.open("ab")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout or self._file,
            stderr=self._file,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self.pid = self.process.pid

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self.process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit code; negative for a signal; None while it runs."""
        return self.process.poll()

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def terminate(self) -> None:
        """Send SIGTERM, once, and do not wait: a second one would hit an interpreter that is ending in order."""
        if self.running and not self._asked:
            self._asked = True
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill -9 it and all that it started."""
        for pid in session_members(self.pid):
            _kill(pid)
        self.stop()

    def stop(self, timeout: float = 15.0) -> int:
        """SIGTERM, wait, then SIGKILL what is left of its session. Returns the exit code."""
        self.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + 5.0
        while (left := session_members(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            _kill(pid)
        while session_members(self.pid) and time.monotonic() < deadline + 5.0:
            time.sleep(0.02)
        self._file.close()
        return self.process.returncode


def session_members(session: int) -> list[int]:
    """Return the pids of the living processes (no zombies) whose session id is `session`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _ppid, _group, member_of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(member_of) == session and state not in "ZX":
            found.append(int(entry.name))
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module` with this interpreter."""
    return [sys.executable, "-u", "-m", module, *arguments]
