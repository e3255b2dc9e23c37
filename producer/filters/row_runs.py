"""What a row filter makes of a rows event: runs of rows that stay, each of one kind, in the order of the rows.

A row that an UPDATE takes out of the filter is deleted, with its image before; one that it brings in is inserted, with its image after.
That takes whole images: of a row that comes in, all columns are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shmstore import EventType, UnsupportedEvent
from shmstore.encoding.codec import unpack_rows
from shmstore.producer.filters.condition import Bound


class RowsRun(NamedTuple):
    """Rows of an event that stay together."""

    type: EventType
    first: int  # index of the first one in the binlog's event
    count: int  # type: ignore[assignment]  # it takes the place of tuple.count
    body: list[Any]  # as `DecodedRows` has it


def runs(condition: Bound, type_: EventType, body: list[Any], name: str) -> Iterator[RowsRun]:
    """Yield what stays of an event of table `name`. Raises `UnsupportedEvent` where its images are not whole."""
    before_columns, before, after_columns, after = body
    if before_columns is not None or after_columns is not None:
        raise UnsupportedEvent(
            f"rows of {name}, which has a row filter, came with some of their columns only: SET GLOBAL binlog_row_image = FULL "
            "(and of MySQL binlog_row_value_options = ''; sessions may have set their own), or leave the row filter out"
        )
    old = None if before is None else unpack_rows(before)
    new = None if after is None else unpack_rows(after)
    found: list[tuple[int, EventType]] = []
    test = condition.test
    for i in range(len(old if old is not None else new or ())):
        was, is_ = old is not None and test(old[i]) is True, new is not None and test(new[i]) is True
        if type_ is EventType.UPDATE:
            if was or is_:
                found.append((i, type_ if was and is_ else EventType.DELETE if was else EventType.INSERT))
        elif was or is_:
            found.append((i, type_))
    if len(found) == len(old if old is not None else new or ()) and all(kind is type_ for _, kind in found):
        if found:
            yield RowsRun(type_, 0, len(found), body)  # as it is
        return
    at = 0
    while at < len(found):
        first, kind = found[at]
        end = at + 1
        while end < len(found) and found[end][1] is kind:
            end += 1
        rows = [i for i, _ in found[at:end]]
        yield RowsRun(
            kind,
            first,
            len(rows),
            [
                None,
                [old[i] for i in rows] if old is not None and kind is not EventType.INSERT else None,
                None,
                [new[i] for i in rows] if new is not None and kind is not EventType.DELETE else None,
            ],
        )
        at = end
