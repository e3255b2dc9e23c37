"""A server's process on 127.0.0.1: started, killed, started again, held."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import ClassVar, Self

from tests.servers.packages import ServerUnavailable
from tests.servers.ports import free_port
from tests.servers.process import START_SECONDS


class Daemon:
    """A server that keeps what it has in `folder` and listens at `port`, from `start` to `stop`, and again."""

    name: ClassVar[str] = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """The words that start it."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """What its environment has."""
        return dict(os.environ)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = self.folder / "server.log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(self.command(), stdout=out, stderr=subprocess.STDOUT, env=self.environment())
        until = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise ServerUnavailable(f"{self.name} does not start here: {log.read_text()[-1000:]}")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether it listens."""
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Let it answer nothing."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End `pause`."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)
