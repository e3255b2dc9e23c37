"""A handler that may fail, with retries, and a file for what cannot be handled: ``python examples/retries.py STORE URL FILE``.

Posts each change as JSON to URL. A change that fails is tried again, after longer and longer pauses; the store keeps what comes meanwhile.
One that still fails after the last attempt goes to FILE, and the next one follows. SIGTERM ends it in order. Delivery is at
least once: after a crash the batch in hand comes again, so the service should recognize ``transaction`` and ``seq``.
"""

import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from shmstore import Consumer, Event
from shmstore.consumer.formats.formatter import format_event

ATTEMPTS = 6
FIRST_PAUSE = 0.1  # seconds; doubled each time
LONGEST_PAUSE = 30.0


def attempt(handle: Callable[[str], None], document: str, pause: Callable[[float], None] = time.sleep) -> Exception | None:
    """Call ``handle(document)`` until it succeeds; return the last error where it never did."""
    for count in range(ATTEMPTS):
        try:
            handle(document)
            return None
        except Exception as error:
            last = error
        if count + 1 < ATTEMPTS:
            pause(min(LONGEST_PAUSE, FIRST_PAUSE * 2**count))
    return last


def run(consumer: Consumer, handle: Callable[[str], None], refused: Path, pause: Callable[[float], None] = time.sleep) -> None:
    """Hand each row change to `handle` as a JSON document; append to `refused` what it cannot take."""
    for event in consumer.events():
        for document in documents(event):
            error = attempt(handle, document, pause)
            if error is not None:
                print(f"given up after {ATTEMPTS} attempts: {error}", file=sys.stderr)
                with refused.open("a", encoding="utf-8") as file:
                    file.write(document + "\n")


def documents(event: Event) -> list[str]:
    """Return a document for each row of a rows event; none for other events."""
    return list(format_event(event)) if event.table is not None else []


def post(url: str) -> Callable[[str], None]:
    """Return a handler that posts documents to `url`."""

    def handle(document: str) -> None:
        request = urllib.request.Request(url, document.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10):
            pass

    return handle


if __name__ == "__main__":
    with Consumer(sys.argv[1], "retries", limit_events=100) as reader:
        signal.signal(signal.SIGTERM, lambda *_: reader.stop())
        run(reader, post(sys.argv[2]), Path(sys.argv[3]))
