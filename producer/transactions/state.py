"""Where the stream stands, and how far its transaction has come: all that is known between two events.

One object, which the decoder, the writer and the compiled fast path share and change by these transitions alone:

    outside --begin--> begun --opened--> open --over--> outside
                         ^                 |
                         +----restarted----+

`begin` comes with the GTID, or the first event; `opened` with BEGIN; `over` with XID, COMMIT or XA PREPARE, and straight from `begun` with
a DDL; `restarted` with ROLLBACK, of which the store gets an empty transaction.

`compiled.TransactionState` is the same with its fields where C reads them. It is used with the compiled buffer.
"""

from __future__ import annotations

from typing import NamedTuple

from shmstore import Event, Position
from shmstore.encoding.codec import Header
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.native_code import compiled
from shmstore.producer.transactions.replay import Replay

NO_PROPS: dict[str, str] = {}
_WRAP = 1 << 32


class HalfTransaction(NamedTuple):
    """The last event of a store that ends inside a transaction."""

    transaction: str
    order: int
    part: int
    source: str = ""  # whose transaction it is, in a store of several
    row: int = 0  # of the binlog's event, the first one in this: a row filter may have made several of one
    replay: Replay | None = None  # what the store has of the transaction; None: what comes is not compared

    @classmethod
    def of(cls, last: Event | Header, replay: Replay | None = None) -> HalfTransaction:
        """Return the tail that an event is; it has a `cut`."""
        assert last.cut is not None
        return cls(last.transaction, last.cut.order, last.part, last.props.get("source", ""), last.cut.row, replay)


class TransactionState:
    """The state of one stream."""

    __slots__ = (
        *("file", "file_number", "offset", "executed", "gtids", "tail"),
        *("in_transaction", "open", "begun", "transaction", "has_gtid", "unfinished"),
        *("order", "events", "rows", "differing", "marks", "props", "xa", "xa_end"),
        *("filtered_events", "filtered_rows"),
    )

    def __init__(self) -> None:
        self.file, self.file_number, self.offset = "", 0, 0
        self.executed: ExecutedSet | None = None
        self.gtids = ""  # the executed set as text
        self.tail: HalfTransaction | None = None  # where the store ends inside the transaction that is read again
        self.marks: dict[str, tuple[int, int, int]] = {}  # savepoint -> events, rows, differing
        self.filtered_events = self.filtered_rows = (
            0  # as `StreamStat` has them; counted permanently, whatever becomes of the transaction
        )
        self.over()

    # ------------------------------------------------------------ the stream

    def start(self, position: Position, executed: ExecutedSet | None, tail: HalfTransaction | None) -> None:
        """Begin at `position`, with `executed` seen before it."""
        self.move(position.file, position.offset)
        self.set_executed(executed.copy() if executed is not None else None)
        self.tail = tail
        self.over()

    def set_executed(self, executed: ExecutedSet | None) -> None:
        """Take `executed` as what was executed so far. It belongs to the state from now on."""
        self.executed, self.gtids = executed, "" if executed is None else str(executed)

    def move(self, file: str, offset: int) -> None:
        """Go to another place."""
        if file != self.file:
            self.file, self.file_number = file, Position(file, 0).file_number
        self.offset = offset

    def advance(self, end: int) -> None:
        """Continue to the end of an event. Its log_pos has 32 bits, a file can be longer: wraps are counted."""
        offset = self.offset & ~(_WRAP - 1) | end
        self.offset = offset if offset >= self.offset else offset + _WRAP

    # ------------------------------------------------------------ the transaction

    def begin(self, gtid: str, length: int) -> None:
        """A transaction begins, with an event of `length` bytes that ends here."""
        self.in_transaction, self.begun = True, self.offset - length
        self.has_gtid, self.transaction = bool(gtid), gtid or f"{self.file}:{self.begun}"

    def opened(self) -> None:
        """Its BEGIN was read."""
        self.open = True

    def count(self, rows: int) -> None:
        """An event with `rows` rows is written."""
        self.events += 1
        self.rows += rows

    def mark(self, name: str) -> None:
        """Remember what was counted up to here as savepoint `name`."""
        self.marks[name] = self.events, self.rows, self.differing

    def rolled_back_to(self, name: str) -> None:
        """What came after savepoint `name` did not happen."""
        self.events, self.rows, self.differing = self.marks[name]

    def restarted(self) -> None:
        """Nothing of it happened; it stands where its first event had been read."""
        gtid, length = self.transaction if self.has_gtid else "", self.offset - self.begun
        self.over()
        self.begin(gtid, length)

    def commit(self) -> str:
        """Add it to the executed set; return the set's text. Raises ValueError where it does not belong into such a set.

        `gtids` is for the caller to set, once the event that says so is written: a part of the transaction that is cut before
        must not be resumed behind it.
        """
        if not self.has_gtid or self.executed is None:
            return self.gtids
        self.executed.add(self.transaction)
        return str(self.executed)

    def over(self) -> None:
        """The transaction is over, or never was."""
        self.in_transaction = self.open = self.has_gtid = False
        self.unfinished = False  # the statement that comes is half of a MariaDB ALTER
        self.transaction, self.begun = "", 0  # its name, which is its GTID or where its first event begins; there
        self.order = 0  # of the event that comes, or was written last
        self.events = self.rows = 0  # written
        self.differing = 0  # events of the tail's transaction, of those before it, that are not as the store has them
        self.marks.clear()
        self.props = NO_PROPS  # of its rows
        self.xa = self.xa_end = ""  # the XID, where it is prepared by its end; where its XA END ended, and the bytes of that


def new_state(*, compiled_code: bool) -> TransactionState:
    """Return the state of a new stream."""
    made: TransactionState = compiled.TransactionState() if compiled_code else TransactionState()
    return made
