"""A schema history at another server: when a replica takes over, its files have other names and offsets.

What was known of the tables after the same transactions, by GTIDs, is known here too: it becomes the beginning of this
server's history, at the position of its binlog that holds no other transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from shmstore import Position, SchemaUnknown
from shmstore.producer.connection.server import SourceServer
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.gtid import ExecutedSet, parse
from shmstore.producer.positions.scan import scan_to_set
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.settings import Settings
from shmstore.producer.start.choose import configured
from shmstore.producer.start.resume import StreamStart
from shmstore.producer.start.schema_history import begin_history, histories, open_history, require_covered


def needs_snapshot(history: SchemaHistory, *, fresh: bool) -> bool:
    """Whether an empty history begins with the tables as they are: unless the stream continues from another server's history."""
    return history.first is None and (fresh or history.folder is None or not histories(history.folder))


def go_to_start(
    history: SchemaHistory, start: StreamStart, session: ServerSession, server: SourceServer, *, fresh: bool
) -> StreamStart:
    """Bring `history` to the tables as they were at `start`; return `start`, as a position on this server. Raises `SchemaUnknown`."""
    if not start.by_gtid or start.executed is None:
        if history.first is None:
            raise SchemaUnknown(
                f"{server.endpoint.where} is not the server whose schema history is kept, and without GTIDs it is unknown "
                "what of that holds here: start again with start = latest and a new store"
            )
        history.seek(start.position)
    else:
        has = partial(_is_part, start.executed)
        if history.first is None:
            start = _carry(history, start, session, server, has)
        history.seek(start.position, has)
    if fresh and start.position.file:
        require_covered(history, start.position)
    elif fresh and history.last is not None and not _is_part(parse(history.last.gtids), str(start.executed)):
        raise SchemaUnknown(
            f"the schema history ends at GTID set {history.last.gtids}, before the start position {start.executed}: DDLs between are "
            "unknown; start there or earlier, or with start = latest"
        )
    return start


def after_loss(
    start: StreamStart, settings: Settings, session: ServerSession, server: SourceServer, folder: Path
) -> tuple[SchemaHistory | None, StreamStart]:
    """Begin a new history at the present position, which replaces `start`: the old one has not seen the DDLs that were lost."""
    schemas = open_history(settings, session, server, folder, empty=True)
    assert schemas is not None
    position = begin_history(schemas, session, server)
    if schemas.current is not None:
        return schemas, start  # the log names what it may lack
    now = configured(replace(settings, start="latest"), session, server, position)
    return schemas, now._replace(lost=start.lost)


def _is_part(executed: ExecutedSet, gtids: str) -> bool:
    try:
        return executed.covers(parse(gtids))
    except ValueError:
        return False


def _carry(
    history: SchemaHistory, start: StreamStart, session: ServerSession, server: SourceServer, has: Callable[[str], bool]
) -> StreamStart:
    """Begin the history of a server that took over with what was known of the one before, after the same transactions.

    That one's file is put aside, so that the one in use is the only one: what is executed from here on it would miss.
    """
    assert history.folder is not None
    assert start.executed is not None
    found = histories(history.folder)
    if len(found) != 1:
        raise SchemaUnknown(
            f"which of the schema histories {', '.join(path.name for path in found)} was in use last is unknown: move the others away"
        )
    end, executed = scan_to_set(session, server, start.executed)
    there = Position(end.file, end.offset, str(executed or ""))
    history.carry(SchemaHistory(found[0]), there, has)
    history.aside.append(found[0])
    return start._replace(position=Position(end.file, end.offset, start.position.gtids))
