"""The run times of a queue: how long its work may run, and how long it is protected from eviction."""

import pytest

from slipway.facts.custom_resources import queue_fact
from tests.unit.crd.test_flavors import a_queue


def test_a_min_runtime_of_nothing_is_not_none() -> None:
    """A minimum of `0s` removes that of the parent queue; an absent one inherits it."""
    assert queue_fact(a_queue()).min_runtime is None
    assert queue_fact(a_queue(minRuntime="0s")).min_runtime == 0.0
    assert queue_fact(a_queue(minRuntime="1h30m")).min_runtime == 5400.0


@pytest.mark.parametrize("field", ["minRuntime", "maxRuntime"])
def test_a_run_time_that_nobody_understands_sets_the_queue_aside(field: str) -> None:
    """An invalid run time excludes the queue from planning, with the path of the field."""
    assert queue_fact(a_queue(**{field: "99999999h"})).invalid.startswith(f"spec.{field}: ")
