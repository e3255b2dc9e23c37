"""Which tables: one grammar, for ``shmstore produce --include`` and its like, ``snapshot --tables``, ``tail --tables`` and Spark's ``tables``.

Patterns are separated by commas (not inside brackets) and match the whole of ``database.table`` (of columns: ``database.table.column``): the
producer's in any case of letters, as Canal's do, a reader's as the names are written. Each is

a glob                   ``shop.orders``, ``shop.*``, ``*.order_?``, and ``*`` for every table
a regular expression     as in Canal: ``shop\\..*``, ``(shop|crm)\\.orders``, ``.*\\..*``

It is read as a regular expression where it holds one of ``\\ | ( ) [ ] { } +`` or ``..``, begins with ``.`` or ``^`` or ends with ``$``, unless
it cannot be one or holds ``[!``; ``regex:`` or ``glob:`` in front says it outright. A table of exactly the pattern's name always matches.

Expressions are matched in bounded time (`shmstore.patterns.linear_regex`), since a request for a snapshot, a client or a browser may name them.

``!`` in front leaves out what the pattern names, wherever in the list it stands; of all tables where nothing else is listed: ``!shop.log``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from shmstore.patterns.linear_regex import Name, PatternRefused, compile_pattern

#: What a pattern is, for help texts.
FORMS = "patterns on DATABASE.TABLE, comma separated: globs (shop.*) or regular expressions as in Canal (shop\\..*); ! in front leaves out"

#: Characters of a list of patterns.
MOST_CHARACTERS: Final = 32768

_SIGNS = re.compile(r"[\\|(){}+]|\.\.|^[.^]|\$$")  # of a regular expression


class Patterns(NamedTuple):
    """What is wanted, and what is left out of it. Without any pattern nothing matches."""

    wanted: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    any_case: bool = True

    @classmethod
    def parse(cls, texts: str | Iterable[str]) -> Patterns:
        """Return the patterns that `texts` list. Raises ValueError for what is no regular expression, or is too long."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        if (length := sum(map(len, texts))) > MOST_CHARACTERS:
            raise ValueError(f"the table patterns have {length} characters; allowed are {MOST_CHARACTERS}")
        found = [part for text in texts for part in split_patterns(text)]
        wanted = [part for part in found if not part.startswith("!")]
        left_out = [part[1:].strip() for part in found if part.startswith("!")]
        for pattern in (*wanted, *left_out):
            _compiled(pattern, True)
        if left_out and not wanted:
            wanted = ["*"]
        return cls(tuple(wanted), tuple(left_out))

    @classmethod
    def of_tables(cls, texts: str | Iterable[str]) -> Patterns:
        """As `parse`, for a reader: raises ValueError, too, where nothing is named or a glob has no database."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        found = [part for text in texts for part in split_patterns(text)]
        if not found:
            raise ValueError("no table pattern given: write DATABASE.TABLE (as shop.orders, shop.*, *.orders, * or !shop.log)")
        for pattern in found:
            regex, bare = _reading(pattern.removeprefix("!").strip())
            if not regex and bare != "*" and "." not in bare.strip("."):
                raise ValueError(
                    f"table pattern {pattern!r} is not DATABASE.TABLE (as shop.orders, shop.*, *.orders, * or !shop.log): "
                    "write * for any database"
                )
        return cls.parse(texts)._replace(any_case=False)

    def __bool__(self) -> bool:
        return bool(self.wanted)

    def match(self, name: str) -> bool:
        """Whether `name` is wanted and not left out. Raises `PatternRefused`, a ValueError, where that takes too long."""
        return self._any(self.wanted, name) and not self._any(self.left_out, name)

    def _any(self, patterns: tuple[str, ...], name: str) -> bool:
        return name in patterns or any(_compiled(pattern, self.any_case)(name) for pattern in patterns)

    def match_some_of(self, database: str) -> bool:
        """Whether a table of `database` may match."""
        heads = [("*" if regex else bare).split(".")[0].lower() for regex, bare in map(_reading, self.wanted)]
        return any(fnmatch.fnmatchcase(database.lower(), head) for head in heads)

    @property
    def everything(self) -> bool:
        """Whether every table matches."""
        return "*" in self.wanted and not self.left_out

    @property
    def one(self) -> str:
        """The table, where exactly one is named; else an empty string."""
        if len(self.wanted) != 1:
            return ""
        regex, bare = _reading(self.wanted[0])
        return "" if regex or set(bare) & set("*?[") else bare


def exactly(name: str) -> str:
    """Return the pattern that matches the table `name`, as ``database.table``, and no other."""
    return "regex:" + re.escape(name).replace(",", "\\,").replace("\\ ", "\\x20")


def split_patterns(text: str) -> list[str]:
    """Split at commas that stand outside of ``() [] {}`` and are not escaped."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _reading(pattern: str) -> tuple[bool, str]:
    """(whether it is a regular expression, the pattern without what says so)."""
    kind, _, rest = pattern.partition(":")
    if kind in ("regex", "glob"):
        return kind == "regex", rest
    if _SIGNS.search(pattern) or "[" not in pattern:
        return bool(_SIGNS.search(pattern)), pattern
    try:  # brackets alone: globs have them, too
        compile_pattern(pattern)
    except PatternRefused:
        return "]" not in pattern, pattern
    return "[!" not in pattern, pattern


@lru_cache(maxsize=1024)
def _compiled(pattern: str, any_case: bool) -> Callable[[str], bool]:
    regex, bare = _reading(pattern)
    if not regex:  # never takes long: what fnmatch makes of a * does not go back
        match = re.compile(fnmatch.translate(bare), re.DOTALL | (re.IGNORECASE if any_case else 0)).fullmatch
        return lambda name: match(name) is not None
    try:
        fits = compile_pattern(bare, any_case=any_case)
    except PatternRefused as error:
        why = str(error).rpartition(" understood: ")[2]
        text = f"filter pattern {pattern!r} is no regular expression: {why}; write glob:{pattern} to mean it literally"
        raise PatternRefused(text) from error
    return lru_cache(maxsize=4096)(lambda name: fits(Name(name)))
