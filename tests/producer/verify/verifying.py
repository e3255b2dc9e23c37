"""Comparisons for tests: one table at a time, or its source in small pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shmstore.producer.verify import source_rows
from shmstore.producer.verify.copy import ReadableCopy
from shmstore.producer.verify.result import TableResult
from shmstore.producer.verify.verification import Verification
from tests.producer.running import Running

Copies = Callable[[str, str], ReadableCopy]


def verified(run: Running, copies: Copies, database: str, table: str = "t", **options: Any) -> TableResult:
    given = {"subscription": None, "patience": 60.0, **options}
    with Verification(run.settings, copies, **given) as verification:
        return verification.verify(database, table)


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the source in small pieces."""
    monkeypatch.setattr(source_rows, "FIRST_ROWS", 50)
    monkeypatch.setattr(source_rows, "MOST_ROWS", 50)
