"""Eviction limits over time: no span has more evictions than its limit allows, by any count."""

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.eviction_rate import EvictionLevel, EvictionLimit, charged
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import decode
from tests.property.planner.test_evictions_over_time import a_document

LIMITS = st.builds(
    EvictionLimit,
    count=st.integers(1, 9),
    per_s=st.sampled_from([1.0, 7.0, 60.0, 3600.0]),
    burst=st.integers(1, 6),
)


def most(limit: EvictionLimit, span_s: float) -> float:
    """The greatest number of evictions in a span."""
    return limit.burst + limit.count * span_s / limit.per_s


def assert_within(times: list[float], limit: EvictionLimit) -> None:
    """Check each span that begins and ends with an eviction."""
    for first, begin in enumerate(times):
        for last in range(first, len(times)):
            assert last - first + 1 <= most(limit, times[last] - begin) + 1e-6, (begin, times[last])


@given(LIMITS, st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 4)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_span_has_more_than_its_limit(limit: EvictionLimit, wishes: list[tuple[int, int]]) -> None:
    """At each of many times all remaining evictions are used; in between another scheduler reads the stored counts."""
    levels: tuple[EvictionLevel, ...] = ()
    now_ms, times = 0, list[float]()
    for waits_ms, wanted in wishes:
        now_ms += waits_ms
        now = now_ms / 1000
        levels = msgspec.json.decode(msgspec.json.encode(levels), type=tuple[EvictionLevel, ...])
        left = limit.left(levels[0] if levels else None, now)
        made = min(wanted, left)
        levels = charged(levels, {"q": limit}, {"q": made}, now)
        times += [now] * made
    assert_within(times, limit)


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_no_span_of_a_simulation_has_more_than_its_limits(seed: int) -> None:
    """The limits of a queue, of the queues below one, and of the pool are respected; and the run ends."""
    chance = random.Random(seed)
    document = a_document(seed)
    queues = document["queues"]
    for queue in queues:
        queue["preemption"] = {"withinQueue": "LowerOrNewerEqual", "reclaim": "Any"}
    queues[0]["evictionLimit"] = {"count": 1, "per": chance.choice(["30s", "10m", "1h"]), "burst": chance.randint(1, 2)}
    document["pool"]["evictionLimit"] = {"count": 2, "per": "10m", "burst": chance.randint(1, 4)}
    outcome = simulate(decode(msgspec.json.encode(document).decode()))
    queue_of = {life.fact.name: life.fact.queue for life in outcome.world.lives.values()}
    made = {(each["time"], each["allocation"]) for each in outcome.world.evictions if each["for"] is not None}
    facts = {queue["name"]: queue["evictionLimit"] for queue in queues if "evictionLimit" in queue}
    for name, said in [*facts.items(), ("", document["pool"]["evictionLimit"])]:
        limit = EvictionLimit(count=said["count"], per_s=seconds(said["per"]), burst=said["burst"])
        assert_within(sorted(at for at, each in made if name in ("", queue_of[each])), limit)


def seconds(span: str) -> float:
    """The seconds of `30s`, `10m`, `1h`."""
    return int(span[:-1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[span[-1]]
