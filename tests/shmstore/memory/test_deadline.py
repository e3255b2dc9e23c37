"""How long a call may wait, and how often it is tried."""

from __future__ import annotations

import time

import pytest

from shmstore import LayoutMismatch, StoreError, SubscriptionLost
from shmstore.memory.deadline import retried


class Failing:
    """Fails `times` times with `error`, then returns how often it was called."""

    def __init__(self, times: float, error: type[Exception] = StoreError) -> None:
        self.times, self.error, self.calls = times, error, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error(f"call {self.calls}")
        return self.calls


def test_a_call_is_tried_until_it_is_done() -> None:
    """Once where it works; again while it does not."""
    assert retried(Failing(0), 0.0) == 1
    assert retried(Failing(3), 30.0) == 4


def test_tries_end_with_the_last_error() -> None:
    """At the deadline, after one try at least, and as soon as they are to end."""
    for seconds, calls in ((0.0, 1), (0.2, 2)):
        call = Failing(1e9)
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"call \d+$"):
            retried(call, seconds)
        assert call.calls >= calls
        assert seconds <= time.monotonic() - began < 10
    call = Failing(1e9)
    with pytest.raises(StoreError, match="call 3"):
        retried(call, 60.0, lambda: call.calls == 3)


@pytest.mark.parametrize("error", [LayoutMismatch, SubscriptionLost, ValueError, KeyError])
def test_what_stays_is_not_tried_again(error: type[Exception]) -> None:
    """Another layout and an eviction do not pass, and what is no error of a store is none of a store that comes back."""
    call = Failing(1, error)
    with pytest.raises(error, match="call 1"):
        retried(call, 60.0)
