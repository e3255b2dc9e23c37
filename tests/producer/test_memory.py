"""Memory stays flat: what passes through the producer and the readers does not stay in them, however large it is."""

from __future__ import annotations

import pytest

from scripts.benchmarks.producer import growth, memory
from tests.servers.server import start_server


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_large_transactions_and_rows_pass_through_bounded_memory(kind: str) -> None:
    """Producer, counting, Arrow and printing reader keep under 150 MB of their own: 10^6 rows, rows of 8 MB, compressed too."""
    with start_server(kind, ["--max-allowed-packet=1G"]) as server:
        growth._numbers(server)
        for case in memory.CASES:
            peaks = memory.peak_of_all(server.port, memory.write(server, case, 1_000_000, 8), counted=memory.OWN)
            assert max(peaks.values()) < memory.BOUND_MB, (case, peaks)
            assert min(peaks.values()) > 10, "a process was not watched"


@pytest.mark.timeout(300)
def test_a_compressed_transaction_is_never_held_whole() -> None:
    """MySQL: a compressed transaction of 100,000 rows, whose events take 25 MB, costs the producer no more than a plain one."""
    with start_server("mysql") as server:
        growth._numbers(server)
        plain, packed = (
            memory.peak_of_all(server.port, memory.write(server, case, 100_000, 0), readers=("count",), counted=memory.OWN)[
                "producer"
            ]
            for case in ("rows", "rows/compressed")
        )
    assert packed < plain + 18  # held whole it would add 25
