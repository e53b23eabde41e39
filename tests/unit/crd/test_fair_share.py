"""Fair shares of pools and the order of users of queues on the wire."""

import msgspec
import pytest

from slipway.crd.meta import ObjectMeta
from slipway.crd.pools import FairShare, ResourcePool, ResourcePoolSpec
from slipway.facts.custom_resources import pool_fact, queue_fact
from slipway.model.facts import LEAST_USED, SUBMISSION, FairShareFact
from tests.unit.crd.test_flavors import a_queue


def test_a_pool_counts_past_use_only_where_it_says_so() -> None:
    """A pool counts past use only when it says so; the weight of history is 1 when it is absent, and is stored in
    thousandths."""
    assert pool_fact(ResourcePool(metadata=ObjectMeta(name="p"))).fair_share is None
    for said, fact in (
        ({"halfLife": "7d"}, FairShareFact(604_800.0, 1000)),
        ({"halfLife": "12h", "historyWeight": 0.25}, FairShareFact(43_200.0, 250)),
    ):
        spec = ResourcePoolSpec(fair_share=msgspec.convert(said, FairShare))
        assert pool_fact(ResourcePool(metadata=ObjectMeta(name="p"), spec=spec)).fair_share == fact


def test_users_go_by_submission_unless_the_queue_says_otherwise() -> None:
    """Users are ordered by submission unless the queue sets another order."""
    assert queue_fact(a_queue()).user_order == SUBMISSION
    assert queue_fact(a_queue(userOrder="LeastUsed")).user_order == LEAST_USED


@pytest.mark.parametrize("half_life", ["1h", "99h", "100h", "719h", "720h", "1d", "29d", "30d"])
def test_half_lives_within_the_bounds(half_life: str) -> None:
    """Half-lives are hours and days, from an hour to thirty days."""
    assert msgspec.convert({"halfLife": half_life}, FairShare).half_life == half_life


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("halfLife", value) for value in ("0h", "721h", "31d", "30m", "1.5d", "7d12h", "", 7)),
        ("historyWeight", -1),
        ("historyWeight", 4.5),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(field: str, value: object) -> None:
    """The schema refuses an invalid value with its field, so the API server does too."""
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        msgspec.convert({"halfLife": "7d", field: value}, FairShare)
