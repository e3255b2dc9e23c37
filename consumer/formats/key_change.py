"""Updates that give a row another key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmstore import Row
from shmstore.event import ABSENT


def key_changes(row: Row, key: Sequence[int]) -> bool:
    """Whether an update gives the row another key. A part of the key that an image lacks did not change."""
    before, after = row
    if before is None or after is None:
        return False
    return any(before[i] != after[i] and before[i] is not ABSENT and after[i] is not ABSENT for i in key)


def filled(row: Row) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return both images of an update, each with what only the other has: that did not change."""
    assert row.before is not None
    assert row.after is not None
    pairs = list(zip(row.before, row.after, strict=True))
    return tuple([a if b is ABSENT else b for b, a in pairs]), tuple([b if a is ABSENT else a for b, a in pairs])
