"""One binlog connection in, many independent readers out: MySQL and MariaDB changes in a shared-memory ring.

>>> from shmstore import EventStore
>>> with EventStore.create("orders") as store, store.subscribe("audit") as audit:
...     store.put(events)
...     batch = audit.get(timeout=1)
...     audit.ack(batch)

To read the code, begin with `layout` (the bytes), `ring` (put, get and ack as arithmetic) and `sync` (who may, and in what order
memory is seen); then `room` and `subscription` (waiting), `table` (who comes and goes) and `store` (all together). The rest hangs on these.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from shmstore.batch import Batch
    from shmstore.checkpoint import Checkpoint, CheckpointFile, checkpoints, state_directory
    from shmstore.errors import (
        AckError,
        BatchTooLarge,
        BinlogDisabled,
        BinlogPurged,
        LayoutMismatch,
        PositionNotFound,
        ProducerInUse,
        ProtocolError,
        SchemaUnknown,
        ShmStoreError,
        SourceError,
        StoreClosed,
        StoreCorrupt,
        StoreError,
        StoreExists,
        StoreFull,
        StoreNotFound,
        SubscriptionInUse,
        SubscriptionLost,
        SubscriptionNotFound,
        UnsupportedEvent,
    )
    from shmstore.event import ABSENT, Absent, Column, EntryType, Event, EventType, Position, Row, TableSchema
    from shmstore.layout import SLOT, BatchMode, SlotFlag
    from shmstore.ring import Cursor
    from shmstore.stat import StoreStat, StreamStat, SubscriptionStat
    from shmstore.store import EventStore
    from shmstore.subscription import Subscription
    from shmstore.view import StoreView

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "SLOT",
    "Absent",
    "AckError",
    "Batch",
    "BatchMode",
    "BatchTooLarge",
    "BinlogDisabled",
    "BinlogPurged",
    "Checkpoint",
    "CheckpointFile",
    "Column",
    "Cursor",
    "EntryType",
    "Event",
    "EventStore",
    "EventType",
    "LayoutMismatch",
    "Position",
    "PositionNotFound",
    "ProducerInUse",
    "ProtocolError",
    "Row",
    "SchemaUnknown",
    "ShmStoreError",
    "SlotFlag",
    "SourceError",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreExists",
    "StoreFull",
    "StoreNotFound",
    "StoreStat",
    "StoreView",
    "StreamStat",
    "Subscription",
    "SubscriptionInUse",
    "SubscriptionLost",
    "SubscriptionNotFound",
    "SubscriptionStat",
    "TableSchema",
    "UnsupportedEvent",
    "checkpoints",
    "state_directory",
]

# Where the names live, what loads quickly first: the command line needs no numpy to explain itself.
_HOMES = ("errors", "event", "checkpoint", "layout", "ring", "stat", "batch", "view", "store", "subscription")


def __getattr__(name: str) -> typing.Any:
    """Import a public name when it is first asked for."""
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"shmstore.{home}")
            if name in vars(module):
                globals()[name] = found = vars(module)[name]
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
