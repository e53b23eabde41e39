"""The ResourceQuotas of a namespace: a gang is admitted with all of its pods within them, or waits and says why."""

import msgspec
import pytest

from slipway.model.facts import AllocationFact, PoolFact, QueueFact, QuotaFact, QuotaScope, RoleFact
from slipway.model.resources import MILLI, QuantityValue, Resources, parse_quantity
from slipway.scheduler.plan.state.plan_types import Explanation, Plan, Remedy
from slipway.scheduler.plan.state.pool_state import PoolState
from tests.support.planner import (
    NAMESPACE,
    WORKSPACES,
    a_role,
    a_snapshot,
    amounts,
    an_allocation,
    gates,
    nodes,
    places,
    planned,
    running,
)


def a_quota(
    hard: dict[str, QuantityValue],
    used: dict[str, QuantityValue] | None = None,
    *scopes: QuotaScope,
    namespace: str = NAMESPACE,
) -> QuotaFact:
    """ResourceQuota `team`."""
    return QuotaFact(
        namespace=namespace, name="team", hard=_thousandths(hard), used=_thousandths(used or {}), scopes=scopes
    )


def _thousandths(amounts: dict[str, QuantityValue]) -> dict[str, int]:
    return {name: parse_quantity(value, scale=MILLI) for name, value in amounts.items()}


def _plan(work: list[AllocationFact], *quotas: QuotaFact) -> Plan:
    return planned(a_snapshot(nodes(4), work, quotas=quotas))


def _why(work: AllocationFact, *quotas: QuotaFact) -> Explanation:
    return _plan([work], *quotas).explanations[work.key]


def test_a_gang_that_its_quota_cannot_hold_waits_and_names_quota_resource_and_amounts() -> None:
    why = _why(an_allocation("g", a_role(3)), a_quota({"pods": 4, "requests.cpu": 100}, {"pods": 2}))
    assert (why.gate.value, why.is_never) == ("ExceedsResourceQuota", False)
    assert why.message == (
        "its pods ask for 3 of pods; ResourceQuota team of namespace default has a hard limit of 4 and 2 is used"
    )


def test_a_gang_that_is_larger_than_the_quota_can_never_start() -> None:
    why = _why(an_allocation("g", a_role(3, memory="2Gi")), a_quota({"requests.memory": "5Gi"}))
    assert why.is_never
    assert why.message == (
        "can never start: its pods ask for 6Gi of requests.memory, and ResourceQuota team of namespace default "
        "has a hard limit of 5Gi"
    )


def test_what_can_never_be_is_told_before_what_is_short_for_now() -> None:
    why = _why(an_allocation("g", a_role(3)), a_quota({"pods": 4, "requests.cpu": 2}, {"pods": 2}))
    assert why.is_never
    assert "3 of requests.cpu" in why.message


def test_what_the_same_plan_admits_counts() -> None:
    """Two gangs of three for five pods: one starts, whole; the other waits."""
    work = [an_allocation(name, a_role(3), created=at) for at, name in enumerate(("first", "second"), 1)]
    made = _plan(work, a_quota({"pods": 5}))
    assert [*places(made)] == ["first"]
    assert gates(made) == {"second": "ExceedsResourceQuota"}


def test_what_waits_for_its_quota_keeps_nothing_from_others() -> None:
    """Smaller work behind it starts: the nodes are not what it waits for."""
    work = [an_allocation("large", a_role(3), created=1.0), an_allocation("small", created=2.0)]
    assert [*places(_plan(work, a_quota({"pods": 2})))] == ["small"]


@pytest.mark.parametrize(("is_released", "starts"), [(False, False), (True, True)])
def test_what_is_admitted_counts_until_its_pods_are_counted(is_released: bool, starts: bool) -> None:
    """The quota says 2 of 4. Before the release these may be the pods of others; after it they are the gang's own."""
    admitted = msgspec.structs.replace(
        running(an_allocation("before", a_role(2)), {0: "n0", 1: "n1"}), released=is_released
    )
    made = _plan([admitted, an_allocation("next", a_role(2))], a_quota({"pods": 4}, {"pods": 2}))
    assert ("next" in places(made)) is starts


def test_what_kubernetes_has_not_counted_yet_is_in_use_nevertheless() -> None:
    released = msgspec.structs.replace(
        running(an_allocation("before", a_role(3)), dict.fromkeys(range(3), "n0")), released=True
    )
    assert gates(_plan([released, an_allocation("next", a_role(2))], a_quota({"pods": 4}))) == {
        "next": "ExceedsResourceQuota"
    }


def test_no_change_is_offered_that_a_quota_makes_useless() -> None:
    """The queue lacks two cpu, but with these the pods would still be more than the namespace may have."""
    work, queue = an_allocation("g", a_role(3)), QueueFact(name="default", limit=amounts(1))
    raised = (Remedy(kind="limit", name="default", amounts={"cpu": 2000}),)
    columns = PoolState(PoolFact(name="default"))
    columns.set_nodes(nodes(4))
    columns.set_queues([queue])
    columns.set_workspaces(WORKSPACES)
    columns.set_allocation(work)
    for pods, change in ((3, raised), (2, None), (3, raised)):
        columns.set_quotas([a_quota({"pods": pods})])
        why = planned(columns.snapshot()).explanations[work.key]
        assert (why.gate.value, why.change) == ("ExceedsMaxQuota", change)


def test_a_quota_of_another_namespace_says_nothing() -> None:
    assert "g" in places(_plan([an_allocation("g")], a_quota({"pods": 0}, namespace="elsewhere")))


def test_an_elastic_gang_grows_as_far_as_its_quota_goes() -> None:
    made = places(_plan([an_allocation("g", a_role(6, 2))], a_quota({"requests.cpu": 4})))
    assert len(made["g"]) == 4


def test_each_role_counts_as_it_asks() -> None:
    """One leader of three cpu and two workers of one: five."""
    work = an_allocation("g", a_role(1, cpu=3, name="leader"), a_role(2))
    assert "g" in places(_plan([work], a_quota({"cpu": 5})))
    assert "g" not in places(_plan([work], a_quota({"cpu": "4900m"})))


_ROLE = a_role(memory="1Gi")
_LIMITED = msgspec.structs.replace(_ROLE, limits=amounts(2, "2Gi"))


@pytest.mark.parametrize(
    ("role", "hard", "fits"),
    [
        (_ROLE, {"pods": 0}, False),
        (_ROLE, {"count/pods": 0}, False),
        (_ROLE, {"cpu": "999m"}, False),
        (_ROLE, {"requests.cpu": 1}, True),
        (_ROLE, {"memory": "1Gi"}, True),
        (_ROLE, {"requests.memory": "1023Mi"}, False),
        (_ROLE, {"limits.cpu": 0}, True),
        (_LIMITED, {"limits.cpu": 1}, False),
        (_LIMITED, {"limits.memory": "2Gi"}, True),
        (_LIMITED, {"limits.memory": "1Gi"}, False),
        (a_role(resources={"ephemeral-storage": "2Gi"}), {"ephemeral-storage": "1Gi"}, False),
        (a_role(resources={"ephemeral-storage": "2Gi"}), {"requests.ephemeral-storage": "2Gi"}, True),
    ],
)
def test_amounts_count_under_every_name_that_a_quota_has_for_them(
    role: RoleFact, hard: dict[str, QuantityValue], fits: bool
) -> None:
    work = an_allocation("g", role)
    snapshot = a_snapshot(
        [
            msgspec.structs.replace(each, allocatable=each.allocatable + Resources.parse({"ephemeral-storage": "9Gi"}))
            for each in nodes(1)
        ],
        [work],
        quotas=[a_quota(hard)],
    )
    assert ("g" in places(planned(snapshot))) is fits


def test_gpus_count_by_their_requests() -> None:
    snapshot = a_snapshot(
        nodes(1, gpus=8), [an_allocation("g", a_role(2, gpus=2))], quotas=[a_quota({"requests.nvidia.com/gpu": 3})]
    )
    assert gates(planned(snapshot)) == {"g": "ExceedsResourceQuota"}


_BARE = a_role(cpu=0)
_URGENT = msgspec.structs.replace(_ROLE, priority_class="urgent")


@pytest.mark.parametrize(
    ("role", "scope", "is_counted"),
    [
        (_BARE, QuotaScope("BestEffort"), True),
        (_ROLE, QuotaScope("BestEffort"), False),
        (_BARE, QuotaScope("NotBestEffort"), False),
        (_ROLE, QuotaScope("NotBestEffort"), True),
        (_ROLE, QuotaScope("Terminating"), False),
        (_ROLE, QuotaScope("NotTerminating"), True),
        (msgspec.structs.replace(_ROLE, is_terminating=True), QuotaScope("Terminating"), True),
        (_URGENT, QuotaScope("PriorityClass", "In", ("urgent",)), True),
        (_ROLE, QuotaScope("PriorityClass", "In", ("urgent",)), False),
        (_URGENT, QuotaScope("PriorityClass", "NotIn", ("urgent",)), False),
        (_URGENT, QuotaScope("PriorityClass", "Exists"), True),
        (_ROLE, QuotaScope("PriorityClass", "DoesNotExist"), True),
        (_ROLE, QuotaScope("AnotherOne"), False),
    ],
)
def test_a_quota_with_a_scope_counts_the_pods_that_match_it(
    role: RoleFact, scope: QuotaScope, is_counted: bool
) -> None:
    made = _plan([an_allocation("g", role)], a_quota({"pods": 0}, None, scope))
    assert ("g" not in places(made)) is is_counted
