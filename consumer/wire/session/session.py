"""One canal client's reading of one store: its batches, ids and filter, over a subscription of its own.

Plan. Events are taken from the subscription in steps of bounded size, encoded, and kept in `_ready` until a GET is
answered from them; what a batch did not take waits there for the next. A batch is a run of sequences, so acking one
acks the events in between that the filter dropped. A session serves one call at a time: the server sees to it.

Nothing here waits but `wait`, which the server calls in a thread.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Final

from shmstore import Batch, BatchMode, CheckpointFile, EventStore, PositionNotFound, ProtocolError, StoreError, Subscription
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.consumer.wire.protocol.connection_state import Client
from shmstore.consumer.wire.session.entry_cache import MISSING, EntryCache
from shmstore.consumer.wire.session.filter import FilterRefused, Wanted, compile_filter, expressions
from shmstore.consumer.wire.session.outbox import Limit, Ready, Run
from shmstore.consumer.wire.session.unacked import MOST_BATCHES, NOTHING_ACKED, STAYED, Given, Record, RecordFile, boot_id
from shmstore.event import EntryType
from shmstore.home.reader_state import keep_filter
from shmstore.memory.layout import DISARMED, header_word

_STEP_EVENTS: Final = 512
_STEP_BYTES: Final = 256 * 1024
#: Bytes of a batch (a single event can be so large) from which on it is encoded in a thread, and not shared.
LARGE: Final = 1 << 20
_ACK_WANTED: Final = header_word("ack_wanted")
#: Seconds between two durable acks; each waits for the disk, so that `save` makes them, in a thread, and an ack makes none.
SAVING: Final = 1.0
_NEVER: Final = 1e9
_TRANSACTION: Final = (EntryType.BEGIN, EntryType.END)


def subscription_name(client: Client) -> str:
    """Name of a client's subscription: ``canal-1001``."""
    return f"canal-{client.client_id}"


class ClientSession:
    """A client's reading of a store; it outlives connections, and (through the record file) the server."""

    def __init__(
        self,
        store: EventStore,
        client: Client,
        encoder: Encoder,
        cache: EntryCache,
        *,
        start: str,
        filter: str,
        max_outstanding: int,
        max_reply: int,
        first: int | None = None,
        transaction_entries: bool = True,
    ) -> None:
        """Take `client`'s subscription in `store`, continuing where it stood, or at the sequence `first`. The session owns `store` from here on.

        Raises what `EventStore.subscribe` raises.
        """
        self.client = client
        self.store = store
        self.closed = False
        #: Of a server in a cluster: the term of its being active in which the session was opened, up to where the client's cursor says
        #: what is acked, and whether there is a cursor.
        self.term = 0
        self.reported = -1
        self.has_cursor = False
        self._encoder = encoder
        self._cache = cache
        self._max_outstanding = min(max_outstanding, MOST_BATCHES)
        self._max_reply = max_reply
        self._default_filter = filter
        self._transaction_entries = transaction_entries
        self._isolates = store.ddl_isolation
        self._ready = Ready()
        name = subscription_name(client)
        self._record_file = RecordFile(store.home, name)
        #: The record file's number as this session found it: another than the session before it left means that another server wrote it.
        self.found_number = self._record_file.number
        self._checkpoint = CheckpointFile.of(store.home, name)
        self._saved = time.monotonic(), -2
        self.subscription = self._subscribe(name, start, first)
        try:
            self._given = self._recover(moved=first is not None)
        except BaseException:
            self.subscription.close()
            raise
        self._wanted: Wanted | None = None
        self.filter(self._record_file.record.filter)
        cache.readers.add(self)

    def _subscribe(self, name: str, start: str, first: int | None) -> Subscription:
        record, known = self._record_file.record, False
        begin: str | int = start
        if first is not None:
            begin, known = first, any(stat.name == name for stat in self.store.subscriptions())
        elif record.epoch == self.store.epoch and record.resume >= 0:
            # Unsubscribed in this life of the store: on from what it had acked, while that is there.
            with suppress(PositionNotFound):
                begin = self.store.find(record.resume + 1)
        if known:
            self.store.seek(name, begin)
        return self.store.subscribe(name, start=begin, checkpoint=self._checkpoint, checkpoint_interval=_NEVER)

    def _recover(self, *, moved: bool) -> deque[Given]:
        """Go back to where the client was: the batches it holds count as given, unless the subscription was moved."""
        record, boot = self._record_file.record, boot_id()
        ack = self.subscription.ack_cursor.sequence
        held = () if moved else record.batches_after(self.store.epoch, ack, self.store.newest, boot)
        left = record.resume != STAYED
        given = deque(() if left else held)
        #: Batches from before the client unsubscribed, by id: their events come again, and as with Canal it may still ack them.
        self._former = {batch.id: batch.last for batch in held} if left else {}
        self.subscription.advance(given[-1].last if given else ack)
        self._write(record._replace(epoch=self.store.epoch, resume=STAYED, batches=tuple(given), boot=boot))
        return given

    def _write(self, record: Record) -> None:
        """Write the client's record, which the owner of its subscription alone may. Raises `StoreClosed`, `StoreError`."""
        self.subscription.may_write()
        self._record_file.write(record)

    # ------------------------------------------------------------ filter

    def filter(self, text: str) -> None:
        """Use this filter from the next event not yet given on; empty is the server's own. Raises `ProtocolError`."""
        wanted = compile_filter(text or self._default_filter)
        self._back()
        self._wanted = wanted
        if text != self._record_file.record.filter:
            self._write(self._record_file.record._replace(filter=text))
        keep_filter(self.store.home, self.subscription.name, expressions(text), self.subscription.may_write)

    def _back(self) -> None:
        """Go back to what the client was given last, or has acked: what came after it will be got again."""
        given = self._given[-1].last if self._given else self.subscription.ack_cursor.sequence
        if self.subscription.get_cursor.sequence > given:
            self._ready.clear()
            self.subscription.rollback()
            self.subscription.advance(given)

    # ------------------------------------------------------------ get

    def limit(self, size: int) -> Limit:
        """What a GET of `size` asks for: entries in an ITEMSIZE store, memory units (KiB) of entries in a MEMSIZE store."""
        if self.store.batch_mode is BatchMode.ITEMSIZE:
            return Limit(size, self._max_reply, self._max_reply)
        return Limit(1 << 62, min(size * self.store.memory_unit, self._max_reply), self._max_reply)

    def full(self, limit: Limit) -> bool:
        """True where waiting longer would not make the batch larger, or where the producer waits for free space."""
        ready = self._ready
        if ready.count >= limit.entries or ready.bytes >= limit.bytes:
            return True
        if not ready.count:
            return False
        return (self._isolates and ready.has_alone) or self.store.segment.words[_ACK_WANTED] != DISARMED

    def take(self, limit: Limit) -> Batch | None:
        """Return the next events that are there, for `absorb`; None where the batch is full already, or nothing is there."""
        if self.full(limit):
            return None
        return self.subscription.get(limit_events=_STEP_EVENTS, limit_bytes=_STEP_BYTES, timeout=0) or None

    @property
    def partial(self) -> bool:
        """True where entries are ready, and too few."""
        return self._ready.count > 0

    def wait(self, timeout: float | None, limit: Limit) -> Batch:
        """Wait for events and return them, for `absorb`; perhaps none. Blocks: call it in a thread."""
        self.save()
        missing = 1
        if self._wanted is None and limit.entries < 1 << 62:
            missing = max(1, min(limit.entries - self._ready.count, _STEP_EVENTS, self.store.capacity // 4))
        return self.subscription.get(limit_events=_STEP_EVENTS, limit_bytes=_STEP_BYTES, timeout=timeout, min_events=missing)

    def interrupt(self) -> None:
        """Let `wait` in another thread return at once."""
        if not self.closed:
            self.subscription.interrupt()

    def absorb(self, batch: Batch) -> None:
        """Encode `batch` and keep it ready. Raises `StoreCorrupt`, or `FilterRefused` where the filter takes too long."""
        if not batch:
            return
        try:
            run = self._encoded(batch)
        except BaseException as error:
            self._back()  # or the next batch would leave these events out
            if isinstance(error.__cause__, FilterRefused):
                raise error.__cause__ from None  # the event is whole
            raise
        self._ready.add(run)
        self._pass_dropped()

    def _encoded(self, batch: Batch) -> Run:
        wanted = self._wanted
        if wanted is None and len(self._cache.readers) > 1 and len(batch.raw) <= LARGE:
            entries = self._shared(batch)
        else:
            encode = self._encoder.encode
            entries = [encode(payload, wanted) for payload in batch.payloads()]
        slots = batch.slots
        alone: frozenset[int] = frozenset()
        if wanted is not None or self._isolates or not self._transaction_entries:
            kinds = slots["entry"].tolist()
            if not self._transaction_entries:
                entries = [None if kind in _TRANSACTION else entry for kind, entry in zip(kinds, entries, strict=True)]
            elif wanted is not None:
                _drop_empty_transactions(entries, kinds)
            if self._isolates:
                alone = frozenset(n for n, kind in enumerate(kinds, batch.first) if kind == EntryType.DDL)
        return Run(batch.first, entries, slots["rows"].tolist(), alone)

    def _shared(self, batch: Batch) -> list[bytes | None]:
        """The entries of `batch`, encoded by whichever client came first."""
        cache, encode = self._cache, self._encoder.encode
        entries: list[bytes | None] = []
        for sequence, payload in enumerate(batch.payloads(), batch.first):
            found = cache.find(sequence)
            if found is MISSING:
                found = encode(payload)
                cache.keep(sequence, found)
            entries.append(found)
        return entries

    def _pass_dropped(self) -> None:
        """Ack what the filter dropped at the front, so that a client that wants little holds up no reader."""
        ready = self._ready
        ready.skip()
        # With batches out, only the acks of those can free it.
        if not self._given and ready.next - 1 > self.subscription.ack_cursor.sequence:
            self.subscription.ack(ready.next - 1)

    def deliver(self, limit: Limit) -> tuple[int, list[bytes], int] | None:
        """Make a batch of what is ready: (id, entries, rows), or None where there is nothing. Raises `ProtocolError`."""
        portion = self._ready.portion(limit)
        if portion is None:
            return None
        if len(self._given) >= self._max_outstanding:
            raise ProtocolError(
                f"{len(self._given)} batches are out and not acked; allowed are {self._max_outstanding}: ack or roll back first"
            )
        record = self._record_file.record
        given = Given(record.next_id, portion.last)
        # Before anything is taken: a record that cannot be written leaves the events ready for the next GET.
        self._write(record._replace(next_id=given.id + 1, batches=(*self._given, given)))
        self._given.append(given)
        self._ready.drop(portion)
        return given.id, portion.entries, portion.rows

    # ------------------------------------------------------------ ack, rollback

    def ack(self, batch_id: int) -> None:
        """The client is done with its oldest batch. Raises `ProtocolError` where `batch_id` is not that one."""
        if batch_id in self._former:
            self._ack_former(batch_id)
        else:
            self._oldest(batch_id, "acked")
            self.subscription.ack(self._given[0].last)
            self._given.popleft()
            self._keep()
        self._pass_dropped()

    def _ack_former(self, batch_id: int) -> None:
        if batch_id != (oldest := min(self._former)):
            raise ProtocolError(f"batchId:{batch_id} is not the firstly:{oldest}: batches are acked oldest first")
        last = self._former.pop(batch_id)
        # Events that were given again since then are those of another batch, whose ack counts.
        if not self._given and last > self.acked:
            self._back()
            self.subscription.advance(last)
            self.subscription.ack(last)

    def rollback(self, batch_id: int) -> None:
        """Give again all that is not acked, under new ids. `batch_id` is 0, or the oldest batch's. Raises `ProtocolError`."""
        if batch_id != 0 and batch_id not in self._former:
            self._oldest(batch_id, "rolled back")
        self._former.clear()
        self.subscription.rollback()
        self._ready.clear()
        if self._given:
            self._given.clear()
            self._keep()

    def _oldest(self, batch_id: int, done: str) -> None:
        if not any(batch.id == batch_id for batch in self._given):
            raise ProtocolError(
                f"batchId:{batch_id} is not exist, and cannot be {done}: given and not acked are {[batch.id for batch in self._given][:10]}"
            )
        if self._given[0].id != batch_id:
            raise ProtocolError(f"batchId:{batch_id} is not the firstly:{self._given[0].id}: batches are {done} oldest first")

    def _keep(self) -> None:
        # The cursor has moved already, and a record that lags behind it is corrected when it is read.
        with suppress(StoreError):
            self._write(self._record_file.record._replace(batches=tuple(self._given)))

    @property
    def outstanding(self) -> tuple[Given, ...]:
        """The batches given and not acked, oldest first."""
        return tuple(self._given)

    # ------------------------------------------------------------ what is durable

    @property
    def acked(self) -> int:
        """The last sequence that the client is done with."""
        return self.subscription.ack_cursor.sequence

    @property
    def undurable(self) -> bool:
        """True where something is acked and not durable."""
        return self.acked > self._saved[1]

    @property
    def unsaved(self) -> bool:
        """True where that is due: `save` it."""
        return self.undurable and time.monotonic() - self._saved[0] >= SAVING

    def save(self) -> None:
        """Make durable what was acked, if that is due. Blocks: call it in a thread."""
        if self.unsaved:
            acked = self.acked
            self._saved = time.monotonic(), min(acked, self.store.sync(acked, 0.0)) if self.store.has_log else acked
            # What the disk refuses is tried again with the next ack, and at the end.
            with suppress(StoreError):
                self.subscription.save_checkpoint()

    # ------------------------------------------------------------ end

    @property
    def record_number(self) -> int:
        """The number of the record file, for the client that opens the client's next session: see `found_number`."""
        return self._record_file.number

    def close(self) -> None:
        """Give the subscription up; the client continues from here with the next server. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._cache.readers.discard(self)
        try:
            self.subscription.close()
        finally:
            self.store.close()

    def forget(self) -> None:
        """Remove the subscription, so that it holds nothing in the store. What the client has acked is kept for a later one, and which
        batches it holds."""
        if self.closed:
            return
        self.closed = True
        self._cache.readers.discard(self)
        acked = self.subscription.ack_cursor.sequence
        try:
            self.subscription.close()
            if self.store.has_log:  # behind what is on disk stands nothing that outlives the host
                acked = min(acked, self.store.sync(acked, 0.0))
            self.store.unsubscribe(subscription_name(self.client))
            # Removed with the subscription: a producer must not start over for a reader that has left.
            self._checkpoint.remove()
            with suppress(StoreError):  # it starts again then, at worst seeing again what it has acked
                if self.store.lost:
                    return  # the next store of that name is not this client's
                self._record_file.write(
                    self._record_file.record._replace(
                        epoch=self.store.epoch, resume=acked if acked >= 0 else NOTHING_ACKED, batches=tuple(self._given)
                    )
                )
        finally:
            self.store.close()


def _drop_empty_transactions(entries: list[bytes | None], kinds: list[int]) -> None:
    """Drop a BEGIN and its END where the filter left nothing in between and both are here, as Canal does mostly."""
    begin = -1
    for i, kind in enumerate(kinds):
        if kind == EntryType.BEGIN:
            begin = i
        elif kind == EntryType.END and begin >= 0:
            entries[begin] = entries[i] = None
            begin = -1
        elif entries[i] is not None:
            begin = -1
