"""Random DDL as the servers' grammars have it: whatever the server takes, the followed tables are those of its information_schema.

Names, order, types with the width of texts, signs, character sets, members, nullability, keys, and the character sets of databases; in
random modes, client character sets and session defaults, read from the server's own binlog. A table may be unknown only where the
log does not say enough, and then it must be unknown. The long form writes a million statements.
"""

from __future__ import annotations

import pytest

from tests.producer.ddl_on_servers.ddl_run import RandomDdl, options
from tests.servers.server import start_server


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mariadb", "mysql", "mariadb118"])
def test_random_statements_are_followed_as_the_server_does_them(kind: str, seed: int) -> None:
    """Some hundred statements, compared after each hundred."""
    with start_server(kind, options(kind)) as server:
        made = RandomDdl(server, seed)
        made.run(400)
        made.close()
        assert sum(made.reasons.values()) < made.taken / 5


@pytest.mark.long
@pytest.mark.server
@pytest.mark.parametrize("kind", ["mariadb", "mysql", "mariadb118"])
def test_a_million_random_statements(kind: str, seed: int) -> None:
    """A third of a million on each server, in runs of their own that begin with empty databases."""
    with start_server(kind, options(kind)) as server:
        for number in range(34):
            made = RandomDdl(server, seed + number)
            made.run(10_000)
            made.close()
