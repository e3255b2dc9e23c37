"""Which rows of a table change in the store while it is compared."""

from __future__ import annotations

from shmstore import EntryType, StoreError, StoreView
from shmstore.encoding.codec import decode
from shmstore.errors import PositionNotFound
from shmstore.producer.snapshot.changed_keys import Window
from shmstore.producer.verify.source_rows import SourceRows
from shmstore.sql.classify import classify
from shmstore.sql.tokens import SqlMode

BATCH_EVENTS = 4096


class Disturbed(Exception):
    """The table's definition changed."""


class ChangedRows:
    """The keys of a table that change in the store, from a moment on."""

    def __init__(self, view: StoreView, source: SourceRows) -> None:
        schema = source.schema
        self._view, self._name = view, (schema.database, schema.table)
        self._window = Window((schema.database, schema.table), tuple([column.name for column in source.key_columns]))
        self._next = 0

    def begin(self, first: int | None) -> int:
        """Note what comes behind event `first`, which may be past (None: behind the newest); return it."""
        since = self._view.newest if first is None else first
        self._segment, self._next = self._window.open(), since + 1
        return since

    def follow(self) -> None:
        """Read what has come. Raises `StoreError` where it is not kept any more, `Disturbed`."""
        try:
            for batch in self._view.read(self._next, self._view.newest, limit_events=BATCH_EVENTS):
                self._window.note(batch.raw, batch.slots)
                for payload, entry in zip(batch.payloads(), batch.slots["entry"].tolist(), strict=True):
                    if entry == int(EntryType.DDL):
                        event = decode(payload)
                        mode = SqlMode.named(event.props.get("sql_mode", ""))
                        default = event.props.get("default_database", event.database)
                        self._window.altered(classify(event.sql, default, mode), event.database)
                self._next = batch.last + 1
        except PositionNotFound as error:
            raise StoreError(
                f"store {self._view.name!r} does not keep event {self._next} any more, so the changes since then are not "
                "known: give its log more space (--log-size, --log-keep), or verify when less is written"
            ) from error
        if self._window.broken(self._segment):
            raise Disturbed

    @property
    def keys(self) -> list[bytes]:
        """The keys that changed so far."""
        return sorted(set().union(*self._window.keys(self._segment)))
