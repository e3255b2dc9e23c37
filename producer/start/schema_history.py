"""Which schema history a stream uses, and how it begins: a snapshot of the tables at a known position of the binlog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shmstore import Position, PositionNotFound, SchemaUnknown
from shmstore.home.home import Home, May
from shmstore.producer.connection.server import SourceServer
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import PrivilegeMissing, SettingsError
from shmstore.producer.gtid import MariadbGtids
from shmstore.producer.positions.gtid_position import current_position, gtid_at
from shmstore.producer.schema.current import CurrentTables
from shmstore.producer.schema.history import WHAT, SchemaHistory
from shmstore.producer.schema.snapshot import take_snapshot
from shmstore.producer.settings import Settings

ONCE_NOW = (
    "or start once with --schema-history now: rows from before are read with the present tables of the server, if they fit; do so "
    "if no column was renamed or moved since"
)


def open_history(
    settings: Settings, session: ServerSession, server: SourceServer, folder: Path, *, empty: bool
) -> SchemaHistory | None:
    """Return the schema history as a draft; `empty`: one without tables, which takes the old files' place. None: it is off.

    While the server names columns in its log, the history is kept for the rows in which it does not: before, or after a restart without
    that setting. `folder`: where the source's files are in the store's home.
    Raises `SchemaUnknown` where the file is another server's, unless its names make up for it.
    """
    if settings.schema_history == "off":
        return None
    identity = server.identity.replace("=", "-").replace("/", "-")
    path = folder / f"schemas-{identity}.jsonl"
    current = None
    if settings.schema_history != "on" and server.variables.get("binlog_row_metadata") == "FULL":
        fold = server.variables.get("lower_case_table_names", "0") != "0"
        current = CurrentTables(settings, session.endpoint, mariadb=server.mariadb, fold_case=fold)
    try:
        history = _draft(path, histories(folder) if empty else [])  # DDLs since then were seen by no process
        if history.snapshotted is not None:
            _require_same_server(session, server, history.snapshotted, path)
    except SchemaUnknown:
        if current is None:
            raise
        history = _draft(path, histories(folder))
    history.current = current
    return history


def _draft(path: Path, aside: Sequence[Path]) -> SchemaHistory:
    with _kept(path):
        return SchemaHistory(path, draft=True, aside=aside)


def keep_history(history: SchemaHistory | None, folder: Path, home: Home, may: May) -> None:
    """Write `history` down in `home` where it is a draft, and from now on what is added; `may`: see `Home.replace`.

    None: the histories in `folder` are put aside, as they miss the DDLs from now on. Raises `SettingsError`, `StoreError`.
    """
    if history is not None:
        with _kept(history.path):
            history.keep(home, may)
        return
    for path in histories(folder):
        with _kept(path):
            home.put_aside(path, WHAT, may)


@contextmanager
def _kept(path: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"the schema history {path} cannot be kept: {error.strerror}; name another folder with state"
        ) from error


def histories(folder: Path) -> list[Path]:
    """Return the files of `folder` that are schema histories, one for each server; not those put aside."""
    return sorted(folder.glob("schemas-*.jsonl"))


def require_covered(history: SchemaHistory, position: Position) -> None:
    """Raise `SchemaUnknown` when `position`, which no producer has reached, is behind all that the history has seen."""
    if history.last is not None and position.order > history.last.order:
        raise SchemaUnknown(
            f"the schema history ends at {history.last.file}:{history.last.offset}, before the start position {position.file}:"
            f"{position.offset}: DDLs between are unknown; start there or earlier, or with start = latest"
        )


def may_wait(history: SchemaHistory, settings: Settings) -> bool:
    """Whether a stream may begin before `history`: rows in between are named by the log, or read with the present tables."""
    return history.current is not None or settings.schema_history == "now"


def begin_history(history: SchemaHistory, session: ServerSession, server: SourceServer) -> Position | None:
    """Put the tables as they are into `history`; return where. None: they cannot be read, and the log's names make up for it."""
    try:
        return take_snapshot(history, session, lambda: current_position(session, server))
    except (PrivilegeMissing, SchemaUnknown):
        if history.current is None:
            raise
        return None


def _require_same_server(session: ServerSession, server: SourceServer, first: Position, path: Path) -> None:
    """MySQL's UUID is in the file's name; a MariaDB is known by what it logged at the history's beginning."""
    if not server.mariadb:
        return
    try:
        if MariadbGtids(gtid_at(session, first.file, first.offset)) == MariadbGtids(first.gtids):
            return
    except PositionNotFound:
        files = {str(row[0]) for row in session.query("SHOW BINARY LOGS")}
        if first.file not in files:
            return  # purged
    raise SchemaUnknown(f"{path} is the schema history of another server: move it away, and start again with start = latest")
