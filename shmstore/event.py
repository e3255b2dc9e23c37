"""The values that travel through a store: Event, Row, Position, TableSchema, Column.

All are immutable named tuples: cheap to make by the million, comparable, and safe to share.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, Literal, NamedTuple, final


class EntryType(IntEnum):
    """What an event is. The first four have the numbers of Canal's ``EntryType``."""

    BEGIN = 1
    ROWS = 2
    END = 3
    HEARTBEAT = 4
    DDL = 5


class EventType(IntEnum):
    """What an event does. 1 to 15 are the numbers of Canal's ``EventType``; READ is a row of a snapshot.

    Where Canal's word is not SQL's, both name the same member: ``EventType.DROP is EventType.ERASE``. Its ``name`` is Canal's.
    """

    NONE = 0
    INSERT = 1
    UPDATE = 2
    DELETE = 3
    CREATE = 4
    ALTER = 5
    ERASE = 6
    QUERY = 7
    TRUNCATE = 8
    RENAME = 9
    CINDEX = 10
    DINDEX = 11
    GTID = 12
    XACOMMIT = 13
    XAROLLBACK = 14
    MHEARTBEAT = 15
    READ = 16

    DROP = ERASE
    CREATE_INDEX = CINDEX
    DROP_INDEX = DINDEX
    XA_COMMIT = XACOMMIT
    XA_ROLLBACK = XAROLLBACK


#: The property of a HEARTBEAT event that says which options of the producer's filters changed here: their names, comma separated.
FILTERS_CHANGED: Final = "filters_changed"


@final
class Absent:
    """Type of `ABSENT`: the column was not in the row image (MINIMAL, NOBLOB). It is not NULL, and it is false."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> Literal[False]:
        return False

    def __reduce__(self) -> str:
        return "ABSENT"  # pickled by name, so that `is ABSENT` holds in another process


ABSENT: Final = Absent()


class Position(NamedTuple):
    """A place in the binlog: the end of an event. Never a sequence of a store.

    `gtids` is the executed GTID set up to and including this place; it is filled at transaction ends, DDLs and
    heartbeats only (it advances at commit). `row` counts rows inside an event, for readers that stop within one.
    `sources`: at a transaction end or DDL in a store of several sources, where each of them continues after it, by name and in
    the order of the names; file, offset and `gtids` are those of the event's own source.
    """

    file: str
    offset: int
    gtids: str = ""
    row: int = 0
    sources: Sources = ()

    @property
    def file_number(self) -> int:
        """Number of the binlog file: 12 for ``binlog.000012``; 0 where the name has none. Order by this."""
        digits = self.file.rpartition(".")[2]
        return int(digits) if digits.isascii() and digits.isdigit() else 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key. File names are compared as numbers: ``.999999`` comes before ``.1000000``."""
        return (self.file_number, self.offset, self.row)

    @property
    def of_group(self) -> bool:
        """Whether it is a place in a store of several sources."""
        return bool(self.sources)


Sources = tuple[tuple[str, Position], ...]


class Cut(NamedTuple):
    """What the last event of a part says of its large transaction, for the producer: where each source continues after a restart, and what
    is in the store then.

    `sources`: the transaction's own source continues where the transaction began. Its name is "" where it is the store's only one.
    `order`, `row`: of the last event of the binlog that was read.
    """

    sources: Sources
    order: int
    row: int = 0


class Column(NamedTuple):
    """One column as the binlog described it.

    `type` is information_schema's DATA_TYPE in lower case (``bigint``, ``varchar``, ``datetime``, ``enum``, ``uuid``).
    `size` is the declared length: bytes of CHAR, VARCHAR, BINARY, VARBINARY; digits of DECIMAL; bits of BIT; else 0.
    `scale` is the digits after the point: of DECIMAL, and fractional seconds of TIME, DATETIME, TIMESTAMP.
    `charset` is the server's name of the character set for text, ENUM and SET, else empty.
    `members` are the members of ENUM and SET in definition order.
    `definition` is the type as the table's definition has it, with its display width and ZEROFILL (``tinyint(1)``, ``BOOLEAN``,
    ``int(8) unsigned zerofill``), where a definition was known and says more than the fields above; else empty. `column_type`
    gives the text in both cases.
    """

    name: str
    type: str
    unsigned: bool = False
    nullable: bool = True
    size: int = 0
    scale: int = 0
    charset: str = ""
    members: tuple[str, ...] = ()
    definition: str = ""


class TableSchema(NamedTuple):
    """A table as it was when the event was written. `primary_key` holds indexes into `columns`, in key order.

    `unique_key`: they are a UNIQUE key without NULLs, which the server takes for the primary key of a table that has none. Known
    where the table's definition was.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    primary_key: tuple[int, ...] = ()
    unique_key: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)


class Row(NamedTuple):
    """The images of one row: values in column order, `ABSENT` where the image lacks the column.

    INSERT and READ have only `after`, DELETE only `before`, UPDATE both.
    """

    before: tuple[Any, ...] | None
    after: tuple[Any, ...] | None


class _Event(NamedTuple):
    entry: EntryType
    type: EventType
    position: Position
    time_ms: int
    server_id: int = 0
    length: int = 0
    transaction: str = ""
    order: int = 0
    part: int = 0
    database: str = ""
    table: TableSchema | None = None
    rows: tuple[Row, ...] = ()
    sql: str = ""
    props: dict[str, str] = {}  # noqa: RUF012  shared and never written: values are immutable by contract
    cut: Cut | None = None


class Event(_Event):
    """One binlog event as a store keeps it (Canal's Entry), or one of your own. Immutable.

        for event in batch:
            for before, after in event.records():  # dicts by column name
                print(event.sequence, event.type.name, event.table.table, before, after)

    Attributes:
        entry: What it is: BEGIN, ROWS, END, HEARTBEAT or DDL.
        type: What it does, such as INSERT, UPDATE, DELETE or ALTER.
        position: The end of the event in the binlog.
        time_ms: The event's time, in milliseconds since 1970 UTC.
        server_id: The id of the server that wrote it.
        length: Its bytes in the binlog: it starts at ``position.offset - length``.
        transaction: The GTID of its transaction, or ``file:offset`` of the first event where there are no GTIDs.
        order: Its number in the transaction, from 0 (BEGIN).
        part: The number of its part, in a transaction larger than the producer's buffer.
        database: The database of a DDL.
        table: The table of a rows event.
        rows: The rows of a rows event, each a `Row`.
        sql: The statement of a DDL.
        props: The rest as text, by Canal's names where it has one (``xid``, ``thread_id``, ``rows_query``).
        cut: For the producer alone.

    Its fields are in this order; all after `time_ms` have defaults. `sequence` is its number in the store that it was read from. It is no
    part of the value: the event that was put and the one that is read are equal.
    """

    @property
    def sequence(self) -> int:
        """The event's sequence in the store that it was read from; -1 for an event that was not read from a store."""
        number: int = self.__dict__.get("sequence", -1)
        return number

    @property
    def ends_transaction(self) -> bool:
        """True at an ack point: the end of a transaction, a DDL outside of one, or a change of filters. Only here may a durable checkpoint stand."""
        return (
            self.entry is EntryType.END
            or (self.entry is EntryType.DDL and "in_transaction" not in self.props)
            or (self.entry is EntryType.HEARTBEAT and FILTERS_CHANGED in self.props)
        )

    def records(self) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
        """Yield (before, after) of each row as dicts by column name; columns absent from the image are left out."""
        names = self.table.names if self.table else ()
        for before, after in self.rows:
            yield _named(names, before), _named(names, after)


def _named(names: tuple[str, ...], values: tuple[Any, ...] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return {name: value for name, value in zip(names, values, strict=True) if value is not ABSENT}
