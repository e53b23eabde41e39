"""The leader's view of its pool's policy."""

from slipway.model.facts import PoolFact
from slipway.runtime import telemetry
from slipway.scheduler.cycle import Policies
from slipway.scheduler.plan.placement.policy import faults_of

WRONG = PoolFact(
    name="wrong",
    scores={"LeastAllocated": 1, "Fastest": 5},
    args={"RequestedToCapacityRatio": {"shape": 7}, "LeastAllocated": {"weights": {}}},
)


def counted(pool: str) -> float | None:
    return telemetry.REGISTRY.get_sample_value("slipway_policy_faults", {"pool": pool})


def test_each_mistake_has_its_path() -> None:
    """A score that does not exist, args that the score does not take, and a value of a wrong type each have their
    path."""
    paths = [fault.partition(": ")[0] for fault in faults_of(WRONG)]
    assert paths == [
        "spec.scores.Fastest",
        "spec.args.RequestedToCapacityRatio.shape",
        "spec.args.LeastAllocated.weights",
    ]


def test_mistakes_are_counted_and_the_rest_of_the_policy_holds() -> None:
    """The sound parts of a policy are used; a mended pool counts no mistakes."""
    policies = Policies()
    policy = policies.of(WRONG)
    assert (policy.spread, dict(policy.args)) == ({"LeastAllocated": 1}, {})
    assert counted("wrong") == 3
    policies.of(PoolFact(name="wrong", scores={"LeastAllocated": 1}))
    assert counted("wrong") == 0
