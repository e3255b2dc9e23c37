"""A statement about a shard as one about its target: what of its text is the table's name, and what it may do besides."""

from __future__ import annotations

from itertools import pairwise

from shmstore.sql.tokens import SqlMode, located

# What takes rows away, or makes others of them, and leaves the definition as it is.
_OF_ROWS = frozenset(("CONVERT", "DISCARD", "EXCHANGE", "IGNORE", "IMPORT", "PERIOD", "TRUNCATE", "VERSIONING"))


def retargeted(sql: str, mode: SqlMode, target: tuple[str, str]) -> str | None:
    """Return CREATE TABLE or ALTER TABLE with the name of `target` in place of the table's; None for another statement."""
    tokens = [(at, token) for at, token in located(sql, mode)]
    words = [token.upper for _, token in tokens]
    if words[:1] not in (["CREATE"], ["ALTER"]) or "TABLE" not in words[:5]:
        return None
    first = words.index("TABLE") + 1
    if words[first : first + 3] == ["IF", "NOT", "EXISTS"]:
        first += 3
    elif words[first : first + 2] == ["IF", "EXISTS"]:
        first += 2
    last = first + 1  # behind the name
    while words[last : last + 1] == ["."] or words[last - 1 : last] == ["."]:
        last += 1
    if first >= len(tokens):
        return None
    begin, end = tokens[first][0], tokens[last][0] if last < len(tokens) else len(sql)
    head, name = sql[:begin], ".".join(["`" + part.replace("`", "``") + "`" for part in target])
    behind = sql[begin:end]
    return head + name + behind[len(behind.rstrip()) :] + sql[end:]


def changes_rows(sql: str, mode: SqlMode) -> bool:
    """Whether a DDL may take rows away or change their values though the table is defined as before."""
    words = [token.upper for _, token in located(sql, mode)]
    return (
        not _OF_ROWS.isdisjoint(words)
        or words[:3] == ["CREATE", "OR", "REPLACE"]
        or any(pair == ("DROP", "PARTITION") for pair in pairwise(words))
    )


def gives_values(sql: str, mode: SqlMode) -> bool:
    """Whether a column that a statement adds may have other values than NULL in the rows that are there."""
    words = [token.upper for _, token in located(sql, mode)]
    following = [*words[1:], ""]
    return any(
        word in ("AS", "GENERATED") or (word == "DEFAULT" and then != "NULL") for word, then in zip(words, following, strict=True)
    )
