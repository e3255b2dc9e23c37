"""What the stream changes in a table between the moment when a chunk of it is begun and the one when it is put.

A row of the chunk whose key is noted here is left out: the stream has brought a newer one, or has deleted it. That takes full
row images; after a partial one, or a DDL of the table, the chunk is read again.

Several chunks of a table are under way at once, each begun at a place of its own. So what is noted is kept in segments: one begins
with each chunk, and what concerns a chunk is its own segment and all behind. A key is noted once, however many chunks there are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shmstore import EntryType, EventType
from shmstore.encoding.codec import Header, decode_schema, decode_stored, pack
from shmstore.sql.classify import Statement
from shmstore.sql.names import folded

_XA = pack("xa_xid")
_CHANGES = [int(EventType.INSERT), int(EventType.UPDATE), int(EventType.DELETE)]


class _Segment:
    """What was put between the beginnings of two chunks."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()  # each the key's values as MessagePack, one behind the other
        self.prepared: set[str | None] = set()  # XA transactions
        self.changed = False  # any row
        self.broken = ""  # why no chunk that began here, or before, can be used
        self.missed = ""  # why the one that began here cannot


class Window:
    """The keys of one table's rows that were put, while chunks of it are under way."""

    def __init__(
        self, name: tuple[str, str], key: tuple[str, ...], seen_as: tuple[str, str] | None = None, origin: str | None = None
    ) -> None:
        """`name` is the table's on the server, `seen_as` the one that its events have. `origin`: what rows of this table have in the last column, which
        says where a row is from; None: there is none, and all rows of that name may be of this table."""
        self._name, self._key, self._seen_as, self._origin = name, key, seen_as or name, origin
        self._mark = pack(self._seen_as[0]) + pack(self._seen_as[1])  # so the schema of each event of the table has it
        self._key_indexes: dict[bytes, tuple[int, ...] | None] = {}
        self._segments: list[_Segment] = []
        self._first = 0  # number of the first segment that is kept

    # ------------------------------------------------------------ chunks

    def open(self) -> int:
        """A chunk begins; return its segment's number."""
        self._segments.append(_Segment())
        return self._first + len(self._segments) - 1

    def forget_before(self, segment: int) -> None:
        """No chunk is under way any more that began before this segment."""
        del self._segments[: segment - self._first]
        self._first = max(self._first, segment)

    def keys(self, segment: int) -> list[set[bytes]]:
        """The keys noted since `segment` began."""
        return [one.keys for one in self._since(segment) if one.keys]

    def changed(self, segment: int) -> bool:
        """Whether any row of the table was put since `segment` began."""
        return any(one.changed for one in self._since(segment))

    def broken(self, segment: int) -> str:
        """Why a chunk that began with `segment` cannot be used; empty where it can."""
        since = self._since(segment)
        return since[0].missed or next((one.broken for one in since if one.broken), "")

    def _since(self, segment: int) -> list[_Segment]:
        return self._segments[segment - self._first :]

    # ------------------------------------------------------------ what is put

    def note(self, blob: bytes | memoryview, slots: NDArray[np.void]) -> None:
        """Note what is being put. What a snapshot puts is most of it, and is passed over without a look at its bytes."""
        types = slots["type"]
        if not self._segments or (types == int(EventType.READ)).all():
            return
        raw, changed = bytes(blob), np.isin(types, _CHANGES)
        ends = np.cumsum(slots["size"], dtype=np.int64)
        for i in np.flatnonzero(changed).tolist():
            end = int(ends[i])
            start = end - int(slots["size"][i])
            if raw.find(self._mark, start, end) >= 0:
                self._event(raw[start:end])
        if raw.find(_XA) >= 0:
            for i in np.flatnonzero(~changed & (types != int(EventType.READ))).tolist():
                end = int(ends[i])
                start = end - int(slots["size"][i])
                if raw.find(_XA, start, end) >= 0:
                    self._two_phase(decode_stored(raw[start:end])[0])

    def _two_phase(self, header: Header) -> None:
        """Rows of an XA transaction came when it was prepared, and are seen by a read only once it is committed."""
        name = header.props.get("xa_xid")
        if header.entry == int(EntryType.END):
            self._segments[-1].prepared.add(name)
        elif header.type == int(EventType.XACOMMIT):
            # A chunk begun before the prepare has its keys noted; one begun behind it has not, and its read may show older rows.
            at = max((i for i, one in enumerate(self._segments) if name in one.prepared), default=-1)
            for one in self._segments[at + 1 :]:
                one.missed = "an XA transaction prepared before was committed"

    def _event(self, payload: bytes) -> None:
        _, schema, body = decode_stored(payload)
        if schema is None or body is None:
            return
        if schema not in self._key_indexes:
            self._key_indexes[schema] = self._find_key(schema)
        key_indexes = self._key_indexes[schema]
        if key_indexes is None:
            return  # another table's
        before_columns, before, after_columns, after = body
        if self._origin is not None and all(row[-1] != self._origin for row in after or before or ()):
            return  # of one event all rows are of one table
        last = self._segments[-1]
        last.changed = True
        if -1 in key_indexes:
            last.broken = "its columns changed"
        elif before_columns is not None or after_columns is not None:
            last.broken = "its rows came with some columns only: SET GLOBAL binlog_row_image = FULL"
        elif key_indexes:
            for rows in (before, after):
                last.keys.update(b"".join([pack(row[i]) for i in key_indexes]) for row in rows or ())

    def _find_key(self, schema: bytes) -> tuple[int, ...] | None:
        """Where the key's columns are, -1 where they are not; None for another table."""
        found = decode_schema(schema)
        if (found.database, found.table) != self._seen_as:
            return None
        return tuple([found.names.index(name) if name in found.names else -1 for name in self._key])

    def altered(self, statement: Statement, database: str) -> bool:
        """A DDL goes by, with this default database; True where it may concern the table."""
        names = {(folded(base), folded(name)) for base, name in (*statement.tables, *statement.targets)}
        own = (folded(self._name[0]), folded(self._name[1]))  # a server may fold names' case
        mine = own in names or (not names and folded(statement.name or database) == own[0])
        if mine and self._segments:
            self._segments[-1].broken = "a DDL changed it"
        return mine
