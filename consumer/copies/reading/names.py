"""What a copy calls the columns of its table: letters may be in another case, as the servers take names for the same."""

from __future__ import annotations

from collections.abc import Sequence

from shmstore.errors import CopyUnreadable
from shmstore.event import TableSchema
from shmstore.sql.names import places_of


def own_names(table: TableSchema, names: Sequence[str], what: str) -> list[str]:
    """Return the names of the columns of `table` in the copy `what`, which has columns of these `names`. Raises `CopyUnreadable` where it lacks one."""
    places = places_of(table.names, names)
    if lacking := [name for name, i in zip(table.names, places, strict=True) if i is None]:
        raise CopyUnreadable(f"{what} has no column {lacking[0]}: it has {', '.join(sorted(names))}")
    return [names[i] for i in places if i is not None]
