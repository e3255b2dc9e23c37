"""What the scenarios share: trying them on a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.interleavings.process import Scenario
from tests.interleavings.scheduler import explore
from tests.interleavings.stage import staged


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[Any]]:
    """Explore a scenario on a stage, with both kinds of fences where `asymmetric` is not given; a schedule for each outcome is printed.

    In the order of x86; in the weak order where `weak` says so. `plain` are words without release and acquire.
    """

    def run(
        scenario: Scenario, *, asymmetric: bool | None = None, plain_stores: Any = (), plain_loads: Any = (), **limits: Any
    ) -> set[Any]:
        found: set[Any] = set()
        for kind in (True, False) if asymmetric is None else (asymmetric,):
            with staged(monkeypatch, asymmetric=kind, plain_stores=plain_stores, plain_loads=plain_loads):
                findings = explore(scenario, **limits)
            print(f"{findings.states} states, {findings.schedules} schedules, {findings.runs} runs of the code")
            for outcome, schedule in findings.outcomes.items():
                print(outcome, *schedule, sep="\n    ")
            found |= set(findings.outcomes)
        return found

    return run
