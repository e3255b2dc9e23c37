"""What keeps a producer from its work, reported to a command or a webhook of yours: once where it begins, once where it ends.

    STATE/STORE/problems.open     the problems that were reported, and are not over; of each of several sources SOURCE/problems.open

The file is written before the report is made. So a producer that is killed, or is started again and again with the same error, reports a
problem once; a report may be missing after a kill, and is never made twice. Reports are made in a thread of their own, one after the
other: the producer does not wait for them.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any, Final

from shmstore import EventStore, StoreError
from shmstore.clock import calendar_ms
from shmstore.producer.settings import SECRETS, Settings
from shmstore.stored_json import read_json
from shmstore.units import moment

NAME: Final = "problems.open"
VERSION: Final = 1
LIMIT: Final = 30.0  # seconds that a command, or a webhook, may take
LAST: Final = 5.0  # seconds that a producer that ends waits for its last reports
WAITING: Final = 64  # reports

LINK, FULL, ENDED = "no link", "no free space", "ended"
_FIXES: Final = {
    LINK: "see that the server runs, and what `shmstore doctor` says of it",
    FULL: "`shmstore stat STORE` names what holds it up: a reader to start or to forget, or a disk that is full",
    ENDED: "correct what the message names, and start the producer again",
}


class Problems:
    """The problems of one source of `store`. Without `settings.on_problem` nothing is reported, nor written."""

    def __init__(self, settings: Settings, store: EventStore, source: str, log: logging.Logger) -> None:
        self._settings, self._store, self._source, self._log = settings, store, source, log
        self._path = store.home.of_source(source) / NAME
        self._open: dict[str, dict[str, Any]] | None = None
        self._reports: queue.Queue[bytes] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._busy: subprocess.Popen[bytes] | None = None

    def begin(self, problem: str, what: object) -> None:
        """A problem is there, of which `what` says more; it is reported unless that was done before."""
        if not self._settings.on_problem or problem in (known := self._known()):
            return
        text, _, fix = self._shown(str(what)).partition("; ")
        known[problem] = {"what": text, "since": calendar_ms(), "fix": fix or _FIXES[problem]}
        self._report("begin", problem, known[problem])

    def end(self, *problems: str) -> None:
        """These problems are over; what was reported to begin is reported to end."""
        if not self._settings.on_problem:
            return
        known = self._known()
        for problem in problems:
            if (found := known.pop(problem, None)) is not None:
                self._report("end", problem, found)

    def close(self) -> None:
        """Wait a little for the last reports."""
        until = time.monotonic() + LAST
        while self._thread is not None and self._reports.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.02)
        if (busy := self._busy) is not None:
            _end(busy)

    def _known(self) -> dict[str, dict[str, Any]]:
        if self._open is None:
            self._open = {}
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                value = read_json(self._path)
                if value["version"] == VERSION:
                    self._open = {
                        str(name): {"what": str(one["what"]), "since": int(one["since"]), "fix": str(one["fix"])}
                        for name, one in value["open"].items()
                    }
        return self._open

    def _shown(self, text: str) -> str:
        """`text` without what is secret."""
        for name in SECRETS:
            if secret := getattr(self._settings, name):
                text = text.replace(secret, "***")
        return text

    def _report(self, event: str, problem: str, found: dict[str, Any]) -> None:
        content = json.dumps({"version": VERSION, "open": self._open}).encode()
        try:
            self._store.home.replace(self._path, content, "open problems", self._store.may_produce)
        except StoreError as error:
            self._log.warning("problem %r: whether it was reported is not kept: %s", problem, error)
        now = calendar_ms()
        report = {
            "event": event,
            "problem": problem,
            "store": self._store.name,
            "source": self._settings.name,
            "what": found["what"],
            "fix": found["fix"],
            "since": moment(found["since"]),
            "time": moment(now),
        }
        try:
            self._reports.put_nowait(json.dumps(report).encode())
        except queue.Full:
            self._log.warning("problem %r is not reported: %d reports wait", problem, WAITING)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"problems-{self._store.name}", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            content = self._reports.get()
            try:
                if failed := self._send(content):
                    self._log.warning("on_problem: the %s", failed)
            except Exception as error:  # whatever it is, the next report may be made
                self._log.warning("on_problem: the report cannot be made: %s", type(error).__name__)
            finally:
                self._reports.task_done()

    def _send(self, content: bytes) -> str:
        """Make a report; return what went wrong, without what the other side said: that may be secret."""
        to = self._settings.on_problem
        return _post(to, content) if is_url(to) else self._run(to, content)

    def _run(self, command: str, content: bytes) -> str:
        """Run the command with the report on its standard input. What it writes is not kept."""
        hidden = {f"SHMSTORE_{name.upper()}" for name in (*SECRETS, "on_problem")}
        process = self._busy = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name not in hidden},
            start_new_session=True,  # with what it starts it ends as one
        )
        try:
            process.communicate(content, LIMIT)
        except subprocess.TimeoutExpired:
            return f"command was not done after {LIMIT:g} seconds, and was ended"
        finally:
            _end(process)
            self._busy = None
        return f"command ended with exit code {process.returncode}" if process.returncode else ""


def is_url(to: str) -> bool:
    """Whether reports go to a webhook, and not to a command."""
    return to.startswith(("http://", "https://"))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """Follow none: the report is for the host that was named."""


def _post(url: str, content: bytes) -> str:
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=LIMIT):
            return ""
    except urllib.error.HTTPError as error:
        return f"webhook answered {error.code}"
    except (OSError, ValueError) as error:
        return f"webhook did not answer: {type(error).__name__}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command, and what it left behind."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    process.wait()
