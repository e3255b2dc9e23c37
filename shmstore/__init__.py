"""One binlog connection in, many independent readers out: MySQL and MariaDB changes in a shared-memory ring with a log on disk.

>>> from shmstore import EventStore
>>> with EventStore.create("orders") as store, store.subscribe("audit") as audit:
...     store.put(events)
...     batch = audit.get(timeout=1)
...     audit.ack(batch)

To read the code, begin with `memory.layout` (the bytes), `ring` (put, get and ack as arithmetic), `memory.locks` (who may) and
`memory.ordering` (in what order memory is seen); then `store.backpressure` and `store.subscription` (waiting), `store.subscription_table` (who comes and goes)
and `store.store` (all together). The rest hangs on these.
"""

import typing

from shmstore import lazy_names

if typing.TYPE_CHECKING:
    from shmstore.consumer.consumer import Consumer
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
        StoreUnreachable,
        SubscriptionInUse,
        SubscriptionLost,
        SubscriptionNotFound,
        SyncTimeout,
        UnsupportedEvent,
    )
    from shmstore.event import ABSENT, Absent, Column, EntryType, Event, EventType, Position, Row, TableSchema
    from shmstore.home.acks import Checkpoint, CheckpointFile, checkpoints
    from shmstore.home.home import state_directory
    from shmstore.memory.layout import SLOT, BatchMode, SlotFlag
    from shmstore.ring.cursors import Cursor
    from shmstore.store.batch import Batch
    from shmstore.store.stats import LogStat, StoreStat, StreamStat, SubscriptionStat
    from shmstore.store.store import EventStore
    from shmstore.store.subscription import Subscription
    from shmstore.store.view import StoreView

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
    "Consumer",
    "Cursor",
    "EntryType",
    "Event",
    "EventStore",
    "EventType",
    "LayoutMismatch",
    "LogStat",
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
    "StoreUnreachable",
    "StoreView",
    "StreamStat",
    "Subscription",
    "SubscriptionInUse",
    "SubscriptionLost",
    "SubscriptionNotFound",
    "SubscriptionStat",
    "SyncTimeout",
    "TableSchema",
    "UnsupportedEvent",
    "checkpoints",
    "state_directory",
]

# Where each public name is defined. The command line needs no numpy to explain itself.
__getattr__, __dir__ = lazy_names.of(
    __name__,
    {
        "shmstore.consumer.consumer": "Consumer",
        "shmstore.errors": "AckError BatchTooLarge BinlogDisabled BinlogPurged LayoutMismatch PositionNotFound ProducerInUse "
        "ProtocolError SchemaUnknown ShmStoreError SourceError StoreClosed StoreCorrupt StoreError "
        "StoreExists StoreFull StoreNotFound StoreUnreachable SubscriptionInUse SubscriptionLost SubscriptionNotFound "
        "SyncTimeout UnsupportedEvent",
        "shmstore.event": "ABSENT Absent Column EntryType Event EventType Position Row TableSchema",
        "shmstore.memory.layout": "BatchMode SLOT SlotFlag",
        "shmstore.ring.cursors": "Cursor",
        "shmstore.store.batch": "Batch",
        "shmstore.home.acks": "Checkpoint CheckpointFile checkpoints",
        "shmstore.home.home": "state_directory",
        "shmstore.store.stats": "LogStat StoreStat StreamStat SubscriptionStat",
        "shmstore.store.store": "EventStore",
        "shmstore.store.subscription": "Subscription",
        "shmstore.store.view": "StoreView",
    },
)
