"""Names are the same where the servers say so."""

from __future__ import annotations

import random

import pymysql
import pytest

from shmstore.sql.names import folded, index_of, places_of, same
from tests.servers.server import Server

# Letters whose case every release of the servers knows: Latin, Greek, Cyrillic and more, without those that releases see differently.
KNOWN = [
    chr(code) for code in (*range(0x20, 0x180), *range(0x386, 0x3CF), *range(0x400, 0x460), *range(0x531, 0x588), 0x1E00, 0x1E01)
]
DIFFERENT = set("`ıſµς")


def duplicates(server: Server, pairs: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those of `pairs` that no table can have as columns side by side."""
    found = set()
    with server.connect() as connection, connection.cursor() as cursor:
        for one, other in pairs:
            try:
                cursor.execute(f"SELECT 1 FROM (SELECT 1 AS `{one}`, 2 AS `{other}`) AS t")
            except pymysql.err.MySQLError as error:
                if error.args[0] != 1060:
                    raise
                found.add((one, other))
    return found


@pytest.mark.server
def test_columns_are_the_same_where_the_server_takes_them_for_duplicates(any_server: Server, seed: int) -> None:
    """Every known letter with its other case and with a random one, inside a name; and letters of which Unicode's own functions make two."""
    chosen = random.Random(seed)
    letters = [letter for letter in KNOWN if letter not in DIFFERENT]
    pairs = {
        (one, other) for one in letters for other in (one.swapcase(), one.upper(), chosen.choice(letters)) if len(other) == 1
    }
    pairs |= {("e", "é"), ("É", "é"), ("ß", "s"), ("Ω", "ω"), ("ς", "σ"), ("İ", "i"), ("ı", "i"), ("\N{KELVIN SIGN}", "k")}
    named = [(f"x{one}x", f"X{other}x") for one, other in sorted(pairs)] + [("ΟΔΟΣ", "οδοσ"), ("ΟΔΟΣ", "οδος")]
    assert {pair for pair in named if same(*pair)} == duplicates(any_server, named)


def test_a_name_that_is_there_exactly_is_preferred() -> None:
    """No column takes the place of one that is there under its own name, and none is given twice."""
    assert places_of(["A", "b", "C"], ["a", "B", "x"]) == [0, 1, None]
    assert places_of(["ȼ", "Ȼ"], ["Ȼ", "ȼ"]) == [1, 0]
    assert places_of(["ȼ", "Ȼ"], ["Ȼ"]) == [None, 0]
    assert places_of(["a", "A"], ["Aa", "A"]) == [None, 1]
    assert index_of("COLA", ["id", "colA"]) == 1
    assert index_of("colé", ["cole"]) is None
    assert same("T", "t")
    assert not same("T", "t", any_case=False)
    assert folded("ÄÖ") == "äö"
