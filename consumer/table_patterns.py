"""Which tables: one grammar, for ``shmstore tail --tables`` and for Spark's ``tables``.

``shop.orders,log.*`` names tables, with * and ? for any letters and [ab] for one of some; ``!`` before a pattern leaves out what it
names of them, wherever it stands, and of all tables where nothing else is there: ``!shop.log``. A bare ``*`` is every table.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class Patterns(NamedTuple):
    """What is wanted, and what is left out of it."""

    wanted: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Patterns:
        """Return the patterns that `text` lists. Raises `ValueError`, which says what one looks like."""
        found = [part.strip() for part in text.split(",") if part.strip()]
        if not found:
            raise ValueError("no table pattern given: write DATABASE.TABLE (as shop.orders, shop.*, *.orders, * or !shop.log)")
        for pattern in found:
            bare = pattern.removeprefix("!").strip()
            if bare != "*" and "." not in bare.strip("."):
                raise ValueError(
                    f"table pattern {pattern!r} is not DATABASE.TABLE (as shop.orders, shop.*, *.orders, * or !shop.log): "
                    "write * for any database"
                )
        wanted = tuple(pattern for pattern in found if not pattern.startswith("!"))
        return cls(wanted or ("*",), tuple(pattern[1:].strip() for pattern in found if pattern.startswith("!")))

    def fit(self, name: str) -> bool:
        """Whether the table ``database.table`` is wanted and not left out."""
        return any(fnmatchcase(name, each) for each in self.wanted) and not any(fnmatchcase(name, each) for each in self.left_out)
