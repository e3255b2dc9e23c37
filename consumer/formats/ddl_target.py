"""The table that a DDL is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s.,;(`\"]+)"
_TARGET: Final = re.compile(
    rf"""(?:\s|/\*.*?\*/|--[ ][^\n]*\n|\#[^\n]*\n)*
    (?: (?:CREATE|ALTER|DROP)\s+(?:OR\s+REPLACE\s+)?(?:(?:TEMPORARY|ONLINE|OFFLINE|IGNORE)\s+)*TABLE\s+
      | TRUNCATE\s+(?:TABLE\s+)? | RENAME\s+TABLES?\s+
      | (?:CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?(?:(?:UNIQUE|FULLTEXT|SPATIAL|ONLINE|OFFLINE)\s+)*INDEX\s+
        (?:IF\s+(?:NOT\s+)?EXISTS\s+)?{_NAME}\s+(?:USING\s+\w+\s+)?ON\s+
    )(?:IF\s+(?:NOT\s+)?EXISTS\s+)?
    (?P<first>{_NAME})(?:\s*\.\s*(?P<second>{_NAME}))?""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def ddl_target(sql: str, database: str, props: Mapping[str, str]) -> tuple[str, str]:
    """Return the (database, table) that a DDL event is about; the first one where there are several.

    The producer says it (`database`, and ``table`` in `props`). Of an event that does not, the statement is looked at,
    with `database` for names without one. The table is empty where the statement is about none (``CREATE DATABASE``)
    or is not understood; the statement itself always travels along.
    """
    if "table" in props:
        return database, props["table"]
    match = _TARGET.match(sql)
    if match is None:
        return database, ""
    first, second = _unquoted(match["first"]), match["second"]
    return (database, first) if second is None else (first, _unquoted(second))


def _unquoted(name: str) -> str:
    quote = name[0]
    return name[1:-1].replace(quote * 2, quote) if quote in '`"' else name
