"""producer/pipeline/statistics.py: the figures of several streams as those of one producer."""

from __future__ import annotations

from shmstore import StreamStat
from shmstore.producer.pipeline.statistics import combined


def test_several_streams_as_one() -> None:
    """The link is up where all are, the source was heard when the most silent one was; what was counted adds up; puts are the producer's own."""
    one = StreamStat(True, heard_ms=50, behind_ms=7, reconnects=1, transactions=3, skipped=1, filtered_events=10, filtered_rows=4)
    other = StreamStat(False, heard_ms=40, behind_ms=2, transactions=5, purge_ms=900, filtered_events=1, filtered_rows=2)
    own = StreamStat(put_ms=60, behind_ms=3, blocked_ms=20)
    assert combined([], own) == own
    assert combined([one, other], own) == StreamStat(
        False, 40, 60, 7, 20, 1, 8, 1, purge_ms=900, filtered_events=11, filtered_rows=6
    )
