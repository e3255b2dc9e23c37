"""What a server of Arrow Flight and its clients say to each other.

Requests (tickets of DoGet, bodies of DoAction) and answers are JSON objects; events and rows are Arrow. An error is a Flight error whose
extra info is ``{"error": NAME, "message": TEXT}``, where NAME is one of `shmstore.errors`.

    ticket   {"store": S, "first": F, "last": L}                     events as they are, a row each (`events.SCHEMA`)
             {"store": S, "table": "shop.orders", "first": F}        the rows of one table, typed
             {"session": T, "got": G, "limit_events": N, ...}        the next events of a subscription: `GET`
    action   store      {"store": S}                                 what the store is
             subscribe  {"store": S, "subscription": N, "session": T, "start": F, ...}
             ack        {"session": T, "sequence": Q}                everything up to Q is done
             seek state cursor save sync renew close                  {"session": T, ...}

A session is a client's hold on one subscription. Its id is the client's to choose, at random, so that a `subscribe` whose answer was lost can be
repeated. It belongs to no connection: it ends by `close`, or when its client has has been silent for its lease.

Every request of a session may say up to where its client has got: what the server gave behind that never arrived, and is given again. So no
request needs to arrive, and each may be repeated.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from shmstore import Position, errors
from shmstore.sources import pack_sources, unpack_sources
from shmstore.start_position import Start

Request = dict[str, Any]

#: What a request of a session's next events may hold besides, with what it is.
GET: Final = {
    "got": "up to where the client has got",
    "ack": "a sequence to ack before",
    "limit_events": "most events",
    "limit_bytes": "most bytes",
    "min_events": "how many to wait for",
    "timeout": "seconds to wait",
    "table": "give this table's rows, typed",
    "zero_dates": "null: a date that does not exist is NULL",
    "partial": "null: columns that an image lacks are NULL",
}

_NAMES: Final = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.ShmStoreError)
}


class SessionUnknown(errors.ProtocolError):
    """The server has no session of this id (any more): its lease is over, or the server was started again."""


def pack(message: Request) -> bytes:
    """Return a request or an answer as its bytes."""
    return json.dumps(message, separators=(",", ":")).encode()


def unpack(body: bytes) -> Request:
    """Return the request or answer in `body`. Raises `ProtocolError`."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise errors.ProtocolError(f"not JSON: {'too deep' if isinstance(error, RecursionError) else error}") from error
    if not isinstance(message, dict):
        raise errors.ProtocolError("not a JSON object")
    return message


def error_name(error: Exception) -> str:
    """Return the name that a client knows an error by."""
    known = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _NAMES or kind is SessionUnknown)
    return next(known, "ValueError")


def pack_error(error: Exception) -> bytes:
    """Return `error` as a Flight error's extra info."""
    return pack({"error": error_name(error), "message": str(error)})


def unpack_error(extra: bytes) -> Exception | None:
    """Return the error in a Flight error's extra info; None where there is none."""
    try:
        found = unpack(extra)
        name, message = found["error"], str(found["message"])
    except (errors.ProtocolError, LookupError):
        return None
    if name == SessionUnknown.__name__:
        return SessionUnknown(message)
    return _NAMES[name](message) if name in _NAMES else ValueError(message)


def pack_start(start: Start) -> Any:
    """Return where to begin as JSON has it: a sequence, a text in one of the forms of `start_position`, or a position's fields."""
    if isinstance(start, Position):
        return [start.file, start.offset, start.gtids, start.row, pack_sources(start.sources)]
    return f"time:{start.isoformat()}" if isinstance(start, datetime) else start


def unpack_start(packed: Any) -> Start:
    """Return where to begin. Raises `ProtocolError`; what a text says is for the store to find out."""
    if isinstance(packed, str) or (isinstance(packed, int) and not isinstance(packed, bool)):
        return packed
    try:
        file, offset, gtids, row, sources = packed
        return Position(str(file), int(offset), str(gtids), int(row), unpack_sources(sources))
    except (TypeError, ValueError, AttributeError) as error:
        raise errors.ProtocolError(
            f"start is {packed!r}: give a sequence, a text, or [file, offset, gtids, row, {{source: [file, offset, gtids]}}]"
        ) from error
