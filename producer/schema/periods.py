"""The periods that tables of a MariaDB have for their application, of which information_schema shows little before MariaDB 11.4.

A period brings a constraint, which is shown; a user may have written one that looks the same. So where there is such a constraint the
table's own definition is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from shmstore.errors import SourceError
from shmstore.sql.catalog import Catalog, Unreadable
from shmstore.sql.table_change import Table

__all__ = ["defined", "periods"]

_FIRST = (10, 4)  # the MariaDB that had them first
_CONSTRAINTS = "SELECT constraint_schema, table_name, check_clause FROM information_schema.check_constraints"
_ORDERED = re.compile(r"`(?:[^`]|``)+` < `(?:[^`]|``)+`")


def periods(
    query: Callable[[str], Sequence[Sequence[Any]]], version: str, database: str | None
) -> dict[tuple[str, str], Table | Unreadable]:
    """Return the tables with a period, as far as their definitions say it: `period` and `overlapless`. `database`: of this one only."""
    numbers = re.match(r"(\d+)\.(\d+)", version.removeprefix("5.5.5-"))
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _FIRST:
        return {}
    found: dict[tuple[str, str], Table | Unreadable] = {}
    for schema, table, clause in query(_CONSTRAINTS):
        if database in (None, schema) and _ORDERED.fullmatch(clause) and (schema, table) not in found:
            found[schema, table] = defined(query, schema, table)
    return found


def defined(query: Callable[[str], Sequence[Sequence[Any]]], database: str, table: str) -> Table | Unreadable:
    """Return a table as its own definition has it; Unreadable where that cannot be had."""
    name = ".".join(["`" + part.replace("`", "``") + "`" for part in (database, table)])
    try:
        ((_, sql, *_),) = query(f"SHOW CREATE TABLE {name}")
    except (SourceError, KeyError) as error:  # gone or refused; KeyError: where answers are recorded, it had none
        return Unreadable(f"its definition could not be asked ({error})")
    found = Catalog(mariadb=True).read(sql, database).get((database, table))
    return found if isinstance(found, (Table, Unreadable)) else Unreadable("its definition could not be read")
