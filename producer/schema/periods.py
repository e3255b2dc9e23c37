"""The periods that tables of a MariaDB have for their application, of which information_schema shows little before MariaDB 11.4.

A period brings a constraint, which is shown; a user may have written one that looks the same. So where there is such a constraint the
table's own definition is asked. It has a line for each part, of which two count: servers garble others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shmstore.errors import SourceError
from shmstore.sql.catalog import Unreadable

__all__ = ["NO_PERIOD", "Period", "period_of", "periods"]

_FIRST = (10, 4)  # the MariaDB that had them first
_CONSTRAINTS = "SELECT constraint_schema, table_name, check_clause FROM information_schema.check_constraints"
_ORDERED = re.compile(r"`(?:[^`]|``)+` < `(?:[^`]|``)+`")
_NAME = r"""(`(?:[^`]|``)+`|"(?:[^"]|"")+"|[^\s`"(),]+)"""  # with ANSI_QUOTES, or without sql_quote_show_create
_PERIOD = re.compile(rf"^  PERIOD FOR (?!SYSTEM_TIME ){_NAME} \({_NAME}, {_NAME}\),?$", re.MULTILINE)
_KEY = re.compile(rf"^  PRIMARY KEY \((?:{_NAME}(?:\(\d+\))?(?: DESC)?,)+{_NAME} WITHOUT OVERLAPS\)", re.MULTILINE)

_Query = Callable[[str], Sequence[Sequence[Any]]]


class Period(NamedTuple):
    """Its name and the columns that begin and end it; empty where there is none. `overlapless`: of the primary key."""

    names: tuple[str, ...]
    overlapless: bool


NO_PERIOD = Period((), False)


def periods(query: _Query, version: str, database: str | None) -> dict[tuple[str, str], Period | Unreadable]:
    """Return the periods of tables that may have one, by database and table. `database`: of this one only."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _FIRST:
        return {}
    found: dict[tuple[str, str], Period | Unreadable] = {}
    for schema, table, clause in query(_CONSTRAINTS):
        if database in (None, schema) and _ORDERED.fullmatch(clause) and (schema, table) not in found:
            found[schema, table] = period_of(query, schema, table)
    return found


def period_of(query: _Query, database: str, table: str) -> Period | Unreadable:
    """Return the period that a table's definition has; Unreadable where that cannot be asked."""
    name = ".".join(["`" + part.replace("`", "``") + "`" for part in (database, table)])
    try:
        ((_, sql, *_),) = query(f"SHOW CREATE TABLE {name}")
    except (SourceError, KeyError) as error:  # gone or refused; KeyError: where answers are recorded, it had none
        return Unreadable(f"whether it has a period could not be asked ({error})")
    found = _PERIOD.search(sql)
    return Period(tuple(map(_unquoted, found.groups())), bool(_KEY.search(sql))) if found else NO_PERIOD


def _unquoted(name: str) -> str:
    mark = name[0]
    return name[1:-1].replace(mark * 2, mark) if mark in '`"' else name
