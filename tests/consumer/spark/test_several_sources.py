"""A store of several sources is no source of a Spark query."""

from __future__ import annotations

import pytest

from consumer.spark.offset import Offset
from shmstore import Position, StoreError


def test_a_store_of_several_sources_is_refused() -> None:
    """Files and offsets of different servers have no order, so there is no seq; said in one line, with what to do."""
    with pytest.raises(StoreError, match=r"store 's' holds several sources.* give each source a store of its own") as caught:
        Offset.at("s", 1, 1, Position("x.000001", 4, "a=x.000001:4/0-1-1;b=y.000001:4/0-2-1"))
    assert "\n" not in str(caught.value)
    assert Offset.at("s", 1, 1, Position("x.000001", 4, "0-1-1")).offset == 4
