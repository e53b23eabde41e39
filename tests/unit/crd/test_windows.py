"""Windows of a pool as they are stored: their facts, and what the API server refuses."""

from typing import Any

import msgspec
import pytest

from slipway.crd.rules import violations
from slipway.crd.v1alpha1 import ResourcePool
from slipway.facts.custom_resources import pool_fact
from slipway.model.facts import WindowFact
from slipway.model.times import parse_time

START = "2026-12-05T22:00:00+01:00"


def a_pool(**window: Any) -> dict[str, Any]:
    """A pool with one window of four hours."""
    return {
        "metadata": {"name": "default"},
        "spec": {"windows": [{"name": "w", "start": START, "duration": "4h", **window}]},
    }


def fact_of(**window: Any) -> WindowFact:
    return pool_fact(msgspec.convert(a_pool(**window), ResourcePool)).windows[0]


def test_a_window_says_all_of_itself() -> None:
    """The fact of a window has all its fields: times as epoch seconds; the default lead time is a day, the default time
    zone UTC."""
    assert fact_of(maintenance=True) == WindowFact(
        name="w", start=parse_time(START), duration=14_400.0, lead_s=86_400.0
    )
    said = fact_of(
        queues=["a", "a"],
        repeat={"every": "Weekly", "until": "2027-12-05T22:00:00+01:00"},
        timeZone="Europe/Berlin",
        nodeSelector={"rack": "a"},
        nodes=2,
        leadTime="0s",
        onStart="Evict",
    )
    assert said == WindowFact(
        name="w",
        start=parse_time(START),
        duration=14_400.0,
        every="Weekly",
        until=parse_time("2027-12-05T22:00:00+01:00"),
        time_zone="Europe/Berlin",
        queues=("a",),
        node_selector={"rack": "a"},
        nodes=2,
        lead_s=0.0,
        evicts=True,
    )


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ({"start": "2026-02-30T22:00:00Z"}, "start: '2026-02-30T22:00:00Z' is not a valid date"),
        ({"timeZone": "Mars/Base"}, "timeZone: there is no time zone 'Mars/Base'"),
        ({"duration": "24h", "repeat": {"every": "Daily"}}, "duration: a window that repeats Daily lasts at most 23h"),
    ],
)
def test_what_is_stored_and_cannot_be_understood_is_kept_as_such(window: dict[str, Any], words: str) -> None:
    """A stored window that is invalid is kept as invalid, and the pool is read anyway."""
    assert fact_of(maintenance=True, **window).invalid.startswith(words)


@pytest.mark.parametrize(
    ("window", "pointer", "words"),
    [
        ({}, "/spec/windows/0", "state either queues"),
        ({"maintenance": True, "queues": ["a"]}, "/spec/windows/0", "state either queues"),
        ({"maintenance": True, "nodes": 1, "gpus": 8}, "/spec/windows/0/gpus", "state either nodes or gpus"),
        ({"maintenance": True, "nodeNames": ["n"], "nodes": 1}, "/spec/windows/0/nodeNames", "leave out nodeSelector"),
        ({"maintenance": True, "start": "2026-02-30T22:00:00Z"}, "/spec/windows/0/start", "not a valid date"),
        (
            {"maintenance": True, "repeat": {"every": "Daily", "until": "2026-12-05T20:00:00Z"}},
            "/spec/windows/0/repeat/until",
            "is before start",
        ),
    ],
)
def test_the_api_server_refuses_what_contradicts_itself(window: dict[str, Any], pointer: str, words: str) -> None:
    """The API server refuses contradictory windows; each rule names its field and what to write."""
    (found,) = violations("ResourcePool", a_pool(**window), None)
    assert found.pointer == pointer
    assert words in found.message


@pytest.mark.parametrize(
    "window",
    [{"maintenance": True}, {"queues": ["a"], "nodes": 2, "nodeSelector": {"a": "b"}}, {"queues": ["a"], "gpus": 8}],
)
def test_the_api_server_takes_sound_windows(window: dict[str, Any]) -> None:
    """The API server accepts valid windows."""
    assert violations("ResourcePool", a_pool(**window), None) == []
