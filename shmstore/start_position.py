"""Where to begin: one grammar, for `EventStore.subscribe`, `find` and `seek`, for ``shmstore tail --from``, ``shmstore produce --start``
and Spark's ``startingOffsets``.

earliest, latest                 the oldest event that is kept; what comes from now on
4711                             a sequence: that event (of a store; a binlog has none)
binlog.000003:1520               a place in the binlog: the first event after it
0-1-4711, gtid:UUID:1-4711       a GTID set: what follows the transaction with which it was complete
gtid:NAME=FILE:OFFSET/SET;...    of a store of several sources, where each of them is: what follows the transaction that ended there
2026-01-31T12:00:00Z, time:...   ISO 8601, UTC without a zone: the first transaction that has an event then or later
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from shmstore.errors import did_you_mean
from shmstore.event import Position
from shmstore.gtids import well_formed
from shmstore.sources import parse_sources

Start = str | int | Position | datetime
PLACES = "FILE:OFFSET (binlog.000003:1520), a GTID set (gtid:SET) or a time (2026-01-31T12:00:00Z)"
FORMS = f"earliest, latest, a sequence (4711), {PLACES}"
_DATED: Final = re.compile(r"\d{4}-?(\d\d|W\d\d)-?\d{1,2}([T ]|$)")  # how a time begins, right or wrong


def parse_start(text: str, *, sequences: bool = True) -> Start:
    """Return the place that `text` names; of text only "earliest" and "latest" stay. Without `sequences` there are none, as in a binlog.

    Raises `ValueError`, which lists the forms.
    """
    text, forms = text.strip(), FORMS if sequences else f"latest, earliest, {PLACES}"
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():  # before times: 20260131 has the form of both
        if not sequences:
            raise ValueError(
                f"start is {text!r}, a sequence: it counts the events of a store, and a binlog has none; give {forms}"
            )
        return int(text)
    kind, _, rest = text.partition(":")
    if kind == "gtid" and "=" in rest:
        return Position("", 0, sources=parse_sources(rest))
    if kind == "gtid" and rest:
        return Position("", 0, rest)
    written = rest if kind == "time" else text
    try:
        moment = datetime.fromisoformat(written)  # before GTIDs: 2026-01-31 has the form of both
    except ValueError as error:
        if kind == "time" or _DATED.match(text):  # 25:00 at its end is no offset in a file, and 2026-02-31 is no GTID by mistake
            other = f"; a GTID set is gtid:{text}" if well_formed(text) else ""
            raise ValueError(f"start is {text!r}, which is no time: {error}; give {forms}{other}") from None
        if well_formed(text):
            return Position("", 0, text)
    else:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    file, _, offset = text.rpartition(":")
    if file and not any(map(str.isspace, file)) and offset.isascii() and offset.isdigit():
        return Position(file, int(offset))
    raise ValueError(f"start is {text!r}, which is not understood: give {forms}{did_you_mean(text, ('earliest', 'latest'))}")
