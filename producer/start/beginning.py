"""Where a link begins, and with which tables: what the server and the store say, and what follows from it. Nothing is written here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from shmstore import Checkpoint, SchemaUnknown
from shmstore.producer.connection.server import SourceServer
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.settings import Settings
from shmstore.producer.start.choose import choose_start
from shmstore.producer.start.history_at_start import after_loss, go_to_start, needs_snapshot
from shmstore.producer.start.last_transaction import LastTransaction
from shmstore.producer.start.origin import Origin
from shmstore.producer.start.resume import Resume, StreamStart
from shmstore.producer.start.same_history import WantedTransaction, require_same_history
from shmstore.producer.start.schema_history import ONCE_NOW, begin_history, may_wait, open_history


class ServerFound(NamedTuple):
    """A server that answers, and what the store knows of its stream."""

    session: ServerSession
    server: SourceServer
    resume: Resume | None
    checkpoints: Mapping[str, Checkpoint]
    last: LastTransaction | None = None  # that the store has of this source
    origin: Origin | None = None  # the server that it was read from
    options: str = ""  # as `origin.options_of`; empty: a handler may change what is put

    @property
    def fresh(self) -> bool:
        """Whether the stream begins, instead of continuing."""
        return self.resume is None and not self.checkpoints


class StreamBeginning(NamedTuple):
    """What was chosen. A schema history is a draft: keep it before anything is put."""

    start: StreamStart
    schemas: SchemaHistory | None
    snapshot: str  # why all tables are to be read: initial or purged; empty: they are not


def choose_beginning(settings: Settings, found: ServerFound, folder: Path, log: logging.Logger) -> StreamBeginning:
    """Return where to begin on the server that was found. `folder`: where the source's files are in the store's home. Raises `ShmStoreError`."""
    session, server, fresh = found.session, found.server, found.fresh
    schemas = open_history(settings, session, server, folder, empty=fresh and settings.beginning == "latest")
    latest = None
    if schemas is not None and needs_snapshot(schemas, fresh=fresh):
        latest = begin_history(schemas, session, server)
    start = choose_start(settings, session, server, found.resume, log, saved=found.checkpoints, latest=latest)
    if start.lost is not None and schemas is not None:
        schemas, start = after_loss(start, settings, session, server, folder)
    snapshot = "purged" if start.lost is not None else "initial" if fresh and settings.snapshot == "initial" else ""
    if schemas is not None:
        try:
            start = go_to_start(schemas, start, session, server, fresh=fresh)
        except SchemaUnknown as unknown:
            if not may_wait(schemas, settings):
                raise SchemaUnknown(f"{unknown}; {ONCE_NOW}") from unknown
            if latest is None:
                schemas = open_history(settings, session, server, folder, empty=True)
                assert schemas is not None
                begin_history(schemas, session, server)
            schemas.waiting = True
    if not fresh and start.lost is None:
        origin, last = found.origin, found.last
        comparable = (
            origin is not None and last is not None and "" != origin.options == found.options and last.last > origin.since
        )
        wanted = WantedTransaction(last, settings, schemas, comparable) if last is not None else None
        require_same_history(wanted, origin, session, server, by_gtid=start.by_gtid, log=log)
    return StreamBeginning(start, schemas, snapshot)
