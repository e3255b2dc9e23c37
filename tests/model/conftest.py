"""Hypothesis profiles of the model: a short one, and the long run."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
settings.register_profile("model-ci", max_examples=150, stateful_step_count=50, suppress_health_check=CHECKS)
settings.register_profile("model-long", max_examples=10_000, stateful_step_count=50, suppress_health_check=CHECKS)
settings.register_profile("log-model-ci", max_examples=25, stateful_step_count=50, suppress_health_check=CHECKS)
settings.register_profile("log-model-long", max_examples=1_000, stateful_step_count=50, suppress_health_check=CHECKS)
