"""A client's cursor as it stands in ZooKeeper: where in the binlog the next active server continues, whatever store it has.

The node is Canal's own, a `LogPosition` in JSON, so that Canal's servers and tools read it, and what they wrote is read here. Canal's
position is the start of the last transaction's end, which it then sends again; so that ours does not, a member of our own, which
Canal's reader passes over, has its end, and what else is known here.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from shmstore import EventStore
from shmstore.errors import ProtocolError

_TYPE: Final = "com.alibaba.otter.canal.protocol.position.LogPosition"
_OURS: Final = "shmstore"


class ClusterCursor(NamedTuple):
    """A place in the binlog: wanted are the events that end behind `file`:`offset`, or with GTIDs the transactions that are not in `gtids`,
    or where that is empty, those from `transaction` on.

    `start` is where the last event began, `source` where it was read, `server_id` and `time_ms` are its own. `epoch` and `sequence` say the
    same for the store that it was in: what the client has acked there; 0 and -1 where Canal wrote the cursor.
    """

    file: str
    offset: int
    gtids: str = ""
    transaction: str = ""
    start: int = 0
    source: str = ""
    server_id: int = 0
    time_ms: int = 0
    epoch: int = 0
    sequence: int = -1

    def encode(self) -> bytes:
        """Return what stands in ZooKeeper."""
        at = urlsplit(self.source)
        address = {"address": at.hostname or "localhost", "port": _port(at.netloc)}
        position = {
            "gtid": self.gtids,
            "included": False,
            "journalName": self.file,
            "position": self.start,
            "serverId": self.server_id,
            "timestamp": self.time_ms,
        }
        ours = {"offset": self.offset, "transaction": self.transaction, "source": self.source}
        ours |= {"epoch": self.epoch, "sequence": self.sequence}
        identity = {"slaveId": -1, "sourceAddress": address}
        whole = {"@type": _TYPE, "identity": identity, "postion": position, _OURS: ours}
        return json.dumps(whole, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> ClusterCursor:
        """Read a cursor, ours or Canal's. Raises `ProtocolError` where it is none."""
        try:
            whole = json.loads(data)
            position = whole["postion"]
            ours: dict[str, Any] = whole.get(_OURS) or {}
            address = whole["identity"]["sourceAddress"]
            return cls(
                str(position["journalName"]),
                int(ours.get("offset", position["position"])),
                str(position.get("gtid") or ""),
                str(ours.get("transaction", "")),
                int(position["position"]),
                str(ours.get("source", f"//{address['address']}:{address['port']}/")),
                int(position.get("serverId") or 0),
                int(position.get("timestamp") or 0),
                int(ours.get("epoch", 0)),
                int(ours.get("sequence", -1)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(
                f"the client's cursor in ZooKeeper cannot be read ({type(error).__name__}: {error}): remove its node"
            ) from error


def _port(netloc: str) -> int:
    digits = netloc.rpartition(":")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else 3306


def cursor_behind(store: EventStore, sequence: int) -> ClusterCursor | None:
    """The cursor of a client that has acked up to `sequence`: at the last transaction end or DDL there; None where none is kept."""
    point = store.ack_point_until(sequence)
    if point is None:
        return None
    event = next(iter(store.peek(point, limit_events=1)))
    file, offset, gtids, *_ = event.position
    return ClusterCursor(
        *(file, offset, gtids, "", offset - event.length, store.source),
        *(event.server_id, event.time_ms, store.epoch, sequence),
    )


def cursor_before(store: EventStore, sequence: int) -> ClusterCursor | None:
    """The cursor of a client that has acked nothing, and begins with event `sequence`; None where nothing of that place is known yet."""
    found = cursor_behind(store, sequence - 1)
    if found is not None or store.newest < sequence:
        return found
    event = next(iter(store.peek(sequence, limit_events=1)))
    start = event.position.offset - event.length
    return ClusterCursor(
        *(event.position.file, start, "", event.transaction, start, store.source),
        *(event.server_id, event.time_ms, store.epoch, sequence - 1),
    )
