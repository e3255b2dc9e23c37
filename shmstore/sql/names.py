"""When two names are the same, as the servers decide it.

Columns: in any case of letters, always. Tables and databases: letter by letter, but in any case on a server whose lower_case_table_names
is not 0. Letters are compared one by one, in their simple lower case, and accents count: MySQL and MariaDB up to 11.4 agree with this for
every letter that their tables of Unicode have. MariaDB 11.5 takes a few more for the same (ı and I, ſ and s, µ and μ), and K (Kelvin) and k
for different; a name that is there exactly is always preferred, so that this matters to no table that has both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

__all__ = ["folded", "free", "index_of", "places_of", "same"]


@lru_cache(maxsize=1 << 14)
def folded(name: str) -> str:
    """Return what all spellings of a name have in common: one text for each column of a table."""
    if name.isascii():
        return name.lower()
    # letter by letter: str.lower() writes a sigma at a word's end in another way, and some letters as two
    return "".join([letter.lower()[:1] for letter in name])


def same(one: str, other: str, *, any_case: bool = True) -> bool:
    """Whether two names are those of one column; without `any_case` those of one table on a server that tells cases apart."""
    return one == other or (any_case and folded(one) == folded(other))


def places_of(wanted: Sequence[str], there: Sequence[str]) -> list[int | None]:
    """Return for each of the `wanted` columns where it is among those that are `there`; None where it is not. No place is given twice."""
    exact = {name: i for i, name in enumerate(there)}
    if all(name in exact for name in wanted):
        return [exact[name] for name in wanted]
    taken = exact.keys() & set(wanted)
    others = {folded(name): i for name, i in exact.items() if name not in taken}
    return [exact[name] if name in exact else others.pop(folded(name), None) for name in wanted]


def free(name: str, taken: Iterable[str]) -> str:
    """Return `name`, longer by underscores where one of the names that are `taken` is the same."""
    others = set(map(folded, taken))
    while folded(name) in others:
        name += "_"
    return name


def index_of(name: str, there: Sequence[str]) -> int | None:
    """Return where the column `name` is among those that are `there`; None where it is not."""
    return places_of([name], there)[0]
