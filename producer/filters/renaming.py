"""Rules that give tables another name for readers: ``shop_(\\d+).orders_(\\d+) -> shop.orders`` makes many tables, shards, one target.

The left side is a regular expression that matches the whole of ``database.table``, in any case of letters. The right side is the target;
``\\1`` and ``\\g<name>`` in it are what the groups of the left side matched. Of several rules that match a table the first one holds.

Filters, conditions and all that is kept in the home know tables by the names that the server has. Readers know the target alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from shmstore.errors import UnsupportedEvent
from shmstore.patterns.linear_regex import Name, PatternRefused, compile_pattern
from shmstore.producer.errors import PatternError

__all__ = ["RenameRule", "Renaming", "TableName"]

TableName = tuple[str, str]  # database, table

LONGEST: Final = 64  # characters of a name, as the servers have it


class RenameRule:
    """One rule."""

    def __init__(self, text: str) -> None:
        """Raises `PatternError`."""
        self.text = text
        pattern, arrow, target = text.rpartition("->")
        self.pattern, self.target = pattern.strip(), target.strip()
        database, dot, table = self.target.partition(".")
        if not (arrow and self.pattern and dot and database and table) or "." in table:
            raise PatternError(
                rf"rename {text!r} is not PATTERN -> DATABASE.TABLE, as in 'shop_(\d+)\.orders_(\d+) -> shop.orders'"
            )
        try:
            self._fits = compile_pattern(self.pattern)
            self._groups = re.compile(self.pattern, re.IGNORECASE)
        except (PatternRefused, re.error) as error:
            raise PatternError(f"rename {text!r}: {self.pattern!r} is not a valid regular expression: {error}") from error
        self._parts = database, table
        try:
            for part in self._parts:
                self._groups.sub(part, "")  # which reads the target, whatever it finds
        except (re.error, IndexError) as error:
            raise PatternError(
                f"rename {text!r}: target {self.target!r} names a group that {self.pattern!r} does not have: {error}"
            ) from error

    def target_of(self, database: str, table: str) -> TableName | None:
        """Return the target of a table; None where the rule is not for it. Raises `UnsupportedEvent` where what it makes is not a name."""
        name = f"{database}.{table}"
        if not self._fits(Name(name)):
            return None
        if "\\" not in self.target:
            return self._parts
        match = self._groups.fullmatch(name)
        found = tuple([match.expand(part) for part in self._parts]) if match is not None else ("", "")
        if not all(0 < len(part) <= LONGEST for part in found):
            raise UnsupportedEvent(
                f"rename {self.text!r} makes {'.'.join(found)!r} of table {name}, which is not a name of 1 to {LONGEST} characters: "
                "change the rule, or leave the table out with --exclude"
            )
        return found[0], found[1]


class TwoRules(NamedTuple):
    """A table that several rules match, of which the first holds."""

    table: TableName
    first: RenameRule
    other: RenameRule


class Renaming:
    """The rules, and the column that says where a row is from."""

    def __init__(self, rules: Iterable[str] = (), origin: str = "") -> None:
        """`origin`: the name of that column; empty: there is none. Raises `PatternError`."""
        self.rules, self.origin = tuple(map(RenameRule, rules)), origin
        if origin and not self.rules:
            raise PatternError(f"rename_origin is {origin!r}, but rename has no rule whose tables the column would be added to")
        if len(origin) > LONGEST or origin != origin.strip():
            raise PatternError(
                f"rename_origin is {origin!r}: a column's name has 1 to {LONGEST} characters, and no space at its ends"
            )
        self._targets: dict[TableName, TableName | None] = {}

    def __bool__(self) -> bool:
        return bool(self.rules)

    def target_of(self, database: str, table: str) -> TableName | None:
        """Return the name that readers see for a table; None where no rule is for it. Raises `UnsupportedEvent`."""
        if not self.rules:
            return None
        name = (database, table)
        if name not in self._targets:
            if len(self._targets) > 100_000:
                self._targets.clear()
            self._targets[name] = next((found for rule in self.rules if (found := rule.target_of(*name)) is not None), None)
        return self._targets[name]

    def seen_as(self, database: str, table: str) -> TableName:
        """Return the name that readers see for a table, whether a rule is for it or not. Raises `UnsupportedEvent`."""
        return self.target_of(database, table) or (database, table)

    def unused(self, tables: Sequence[TableName]) -> list[str]:
        """Return the rules that are for none of `tables`, as written: those that only match tables of an earlier rule, too."""
        used = {next((rule.text for rule in self.rules if rule.target_of(*name) is not None), "") for name in tables}
        return [rule.text for rule in self.rules if rule.text not in used]

    def doubly(self, tables: Iterable[TableName]) -> Iterable[TwoRules]:
        """Yield each of `tables` that several rules match."""
        for name in tables:
            matching = [rule for rule in self.rules if rule.target_of(*name) is not None]
            for other in matching[1:]:
                yield TwoRules(name, matching[0], other)

    @cached_property
    def origin_bytes(self) -> int:
        """The longest value of the origin column, as a VARCHAR of utf8mb4 counts it."""
        return 4 * (2 * LONGEST + 1)
