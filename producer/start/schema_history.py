"""Which schema history a stream uses, and how it begins: a snapshot of the tables at a known position of the binlog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shmstore import Position, PositionNotFound, SchemaUnknown
from shmstore.home.home import Home, May
from shmstore.producer.connection.server import Server
from shmstore.producer.connection.session import Session
from shmstore.producer.errors import SettingsError
from shmstore.producer.gtid import MariadbGtids
from shmstore.producer.schema.current import CurrentTables
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.settings import Settings
from shmstore.producer.start.gtid_position import current_position, gtid_at

ATTEMPTS = 20


def open_history(
    settings: Settings, session: Session, server: Server, folder: Path, *, empty: bool
) -> SchemaHistory | CurrentTables | None:
    """Return the history that the options and the server ask for, as a draft; `empty`: one without tables, which takes the old files' place.

    `folder`: where the source's files are in the store's home.
    Raises `SchemaUnknown` where the file is another server's.
    """
    identity = server.identity.replace("=", "-").replace("/", "-")
    path = folder / f"schemas-{identity}.jsonl"
    # A history that was begun is followed on, also while the log, or another server's, names its columns: it must not miss a DDL.
    wanted = server.variables.get("binlog_row_metadata") != "FULL" or bool(histories(folder))
    if settings.schema_history == "on" or (settings.schema_history == "auto" and wanted):
        with _kept(path):
            old = histories(folder) if empty else []  # DDLs since then were seen by nobody
            history = SchemaHistory(path, draft=True, aside=old)
        if history.first is not None:
            _require_same_server(session, server, history.first, path)
        return history
    if settings.schema_history == "auto":
        fold = server.variables.get("lower_case_table_names", "0") != "0"
        return CurrentTables(settings, session.endpoint, mariadb=server.mariadb, fold_case=fold)
    return None


def keep_history(history: SchemaHistory, home: Home, may: May) -> None:
    """Write `history` down in `home` where it is a draft, and from now on what is added; `may`: see `Home.replace`. Raises `SettingsError`,
    `StoreError`."""
    with _kept(history.path):
        history.keep(home, may)


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


def take_snapshot(
    history: SchemaHistory, session: Session, server: Server, where: Callable[[Session, Server], Position] = current_position
) -> Position:
    """Put the tables as they are into `history`, at a position where they were so; return it. `where` says where the server writes.

    The tables are read before and after the position is: where both are the same, they were so at the position.
    """
    before = _read(session)
    for _ in range(ATTEMPTS):
        position = where(session, server)
        after = _read(session)
        if before == after:
            history.snapshot(after.__getitem__, position)
            return position
        before = after
    raise SchemaUnknown(f"the tables changed {ATTEMPTS} times while their schema was read: try again when fewer DDLs run")


class _Recorder(dict[str, Sequence[tuple[Any, ...]]]):
    """Answers to queries, asked when first wanted."""

    def __init__(self, query: Callable[[str], Sequence[tuple[Any, ...]]]) -> None:
        super().__init__()
        self._query = query

    def __missing__(self, sql: str) -> Sequence[tuple[Any, ...]]:
        self[sql] = self._query(sql)
        return self[sql]


def _read(session: Session) -> dict[str, Sequence[tuple[Any, ...]]]:
    recorder = _Recorder(session.query)
    SchemaHistory().snapshot(recorder.__getitem__, Position("binlog.000001", 4))
    return dict(recorder)


def _require_same_server(session: Session, server: Server, first: Position, path: Path) -> None:
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
