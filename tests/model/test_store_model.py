"""Store and model agree in random histories: the ring alone."""

from __future__ import annotations

import pytest

from tests.model.machine import Machine, run


def test_store_and_model_agree(seed: int):
    """In 150 random histories of up to 50 steps store and model agree on every cursor, count and byte."""
    run(Machine, "model-ci", seed)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_store_and_model_agree_ten_thousand_times(seed: int):
    """The same for 10,000 histories."""
    run(Machine, "model-long", seed)
