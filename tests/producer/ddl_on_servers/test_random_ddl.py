"""Random DDL as the servers' grammars have it: whatever the server takes, the followed tables are those of its information_schema.

Names, order, types with the width of texts, signs, character sets, members, nullability, keys, and the character sets of databases; in
random modes, client character sets and session defaults, read from the server's own binlog. A table may be unknown only where the
log does not say enough, and then it must be unknown. Rows that go into the tables fit them as they are followed, and are read as SELECT
shows them. The long form writes a million statements.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count, islice

import pytest

from tests.producer.ddl_on_servers.ddl_run import RandomDdl, ServerGone, options
from tests.servers.server import start_server

ANY_CASE = "--lower-case-table-names=1"


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mariadb", "mysql", "mariadb118"])
def test_random_statements_are_followed_as_the_server_does_them(kind: str, seed: int) -> None:
    """Some hundred statements, compared after each forty; on one server, names of tables in any case of letters."""
    any_case = kind == "mariadb"
    with start_server(kind, (*options(kind), *([ANY_CASE] if any_case else []))) as server:
        made = RandomDdl(server, seed, any_case=any_case)
        made.run(400)
        made.close()
        assert sum(made.reasons.values()) < made.taken / 5
        assert made.rows


@pytest.mark.long
@pytest.mark.server
@pytest.mark.parametrize("kind", ["mariadb", "mysql", "mariadb118", "mariadb105"])
def test_a_million_random_statements(kind: str, seed: int) -> None:
    """A quarter of a million on each server, in runs of their own that begin with empty databases."""
    runs, taken = count(seed), 0
    while taken < 250_000:
        with start_server(kind, options(kind)) as server, suppress(ServerGone):
            for number in islice(runs, 20):
                made = RandomDdl(server, number)
                try:
                    made.run(1500)
                finally:
                    taken += made.taken
                made.close()
