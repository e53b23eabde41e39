"""The api's short form of an ended allocation gives the same sums as the whole object."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slipway.accounting.daily_totals import ANNOTATION_USAGE, BOOKED, usage_by_key, usage_intervals
from slipway.accounting.usage import DAY_MS, day_of, used
from slipway.api.allocations.seen_allocations import SeenAllocation
from slipway.api.usage import usage_view
from slipway.model.lifecycle import Phase
from tests.property.crd.test_usage_properties import GAPS_MS, Step, born, histories, writes, written


@given(histories(), GAPS_MS, st.booleans())
def test_sums_of_usage_are_those_of_the_whole(steps: list[Step], later_ms: int, is_booked: bool) -> None:
    """For any history the sums are equal: by day, as rows of one allocation, and as stretches of past use; also once
    the totals include it."""
    found = born()
    for batch in writes(steps):
        found = written(found, batch)
    if is_booked and found.status.phase is Phase.TERMINATED:
        meta = msgspec.structs.replace(found.metadata, annotations={ANNOTATION_USAGE: BOOKED})
        found = msgspec.structs.replace(found, metadata=meta)
    brief = msgspec.json.decode(msgspec.json.encode(found), type=SeenAllocation)
    now_ms = (steps[-1].at_ms if steps else 0) + later_ms + DAY_MS
    now = now_ms / 1000
    days = sorted({*used(found, now), day_of(now_ms)})
    assert usage_by_key(days, {}, [brief], now) == usage_by_key(days, {}, [found], now)
    pool = found.spec.pool
    assert list(usage_intervals(days, {}, [brief], pool, now)) == list(usage_intervals(days, {}, [found], pool, now))
    assert usage_view.raw_rows([brief], days, {}, now) == usage_view.raw_rows([found], days, {}, now)
