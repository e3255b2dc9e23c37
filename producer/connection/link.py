"""What a source of raw events has to offer."""

from __future__ import annotations

from typing import Protocol

from shmstore.producer.binlog.events import RawEvent


class BinlogLink(Protocol):
    """A source of raw events: a server's stream, or local files."""

    def read(self) -> list[RawEvent] | None:
        """Return what has come, perhaps nothing; None at the end of the source."""

    def rest(self) -> None:
        """Say that the pause just past was the reader's own."""

    def hurry(self, hurried: bool) -> None:
        """From now on, wait for events only for a moment; or do again."""

    def close(self) -> None:
        """Let go of the source."""
