"""Which work holds what a waiting allocation needs."""

import msgspec
import pytest

from slipway.api.allocations.holders import HOLDERS_MAX, holders, waits_for_others
from slipway.crd.v1alpha1 import Admission, Allocation, AllocationStatus
from slipway.model.lifecycle import Phase
from slipway.model.reasons import NEVER, Gate
from tests.support.api_world import ApiWorld

SOON, LATER = "2026-01-02T03:04:05Z", "2026-01-02T04:04:05Z"


def waiting(**spec: object) -> Allocation:
    metadata = {"name": "waits", "namespace": "default", "uid": "waits-uid"}
    return msgspec.convert({"metadata": metadata, "spec": {"kind": "command", **spec}}, Allocation)


def holding(name: str, slots: int = 1, *, namespace: str = "default", at: str = SOON, **spec: object) -> Allocation:
    """A running allocation that was admitted at that time."""
    ranks = [{"role": "worker", "count": 1, "resources": {"nvidia.com/gpu": slots}}]
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{name}-uid",
        "annotations": {"slipway.dev/user": "ada"},
        "creationTimestamp": SOON,
    }
    made = msgspec.convert({"metadata": metadata, "spec": {"kind": "command", "ranks": ranks, **spec}}, Allocation)
    status = AllocationStatus(phase=Phase.RUNNING, admission=Admission(decision_id="d", epoch=1, at=at))
    return msgspec.structs.replace(made, status=status)


def holders_of(
    code: Gate, *live: Allocation, hidden: tuple[str, ...] = (), **spec: object
) -> tuple[list[tuple[str, int]], int]:
    """Call `holders`; return [(id without workspace and suffix, slots)], and how many others there are."""
    found, more = holders(waiting(**spec), code, live, lambda namespace: namespace not in hidden)
    assert all((each.user, each.since in (SOON, LATER)) == ("ada", True) for each in found)
    return [(each.id, each.slots) for each in found], more


def test_the_largest_come_first_and_the_rest_is_counted() -> None:
    """Among equals the one that has held longest comes first; work that waits holds nothing."""
    live = [holding(f"h{slots}", slots) for slots in range(1, HOLDERS_MAX + 2)]
    young = holding("young", 6, at=LATER)
    found, more = holders_of(Gate.NO_FIT, *live, young, waiting())
    assert [slots for _, slots in found] == [6, 6, 5, 4, 3]
    assert found[0][0] != found[1][0]
    assert "young" in found[1][0]
    assert more == 2


def test_what_the_viewer_may_not_see_is_only_counted() -> None:
    """Work that the viewer may not see is counted, even the largest, but takes no place among what is shown."""
    found, more = holders_of(Gate.NO_FIT, holding("own"), holding("other", 8, namespace="team"), hidden=("team",))
    assert ([slots for _, slots in found], more) == ([1], 1)


def test_it_is_of_the_queue_the_job_or_the_pool_that_is_short() -> None:
    """If the queue itself holds nothing, it is what other work of the pool holds: that was lent."""
    live = [holding("a", 1, queue="q", job="j"), holding("b", 2), holding("c", 4, pool="other")]
    assert [slots for _, slots in holders_of(Gate.NO_FIT, *live)[0]] == [2, 1]
    assert [slots for _, slots in holders_of(Gate.WAITING_FOR_QUOTA, *live, queue="q")[0]] == [1]
    assert [slots for _, slots in holders_of(Gate.WAITING_FOR_QUOTA, *live, queue="empty")[0]] == [2, 1]
    assert [slots for _, slots in holders_of(Gate.JOB_MAX_SLOTS, *live, job="j")[0]] == [1]


@pytest.mark.parametrize("gate", [Gate.HELD, Gate.INVALID, Gate.EXCEEDS_MAX_QUOTA, Gate.BACKOFF])
def test_an_allocation_that_waits_for_no_other_names_no_holder(gate: Gate) -> None:
    """Work that no end of other work helps does not name any either."""
    assert not waits_for_others(gate, "so")
    assert not waits_for_others(Gate.NO_FIT, f"{NEVER} with the pool's current nodes")
    assert waits_for_others(Gate.NO_FIT, "no room")


async def test_the_explanation_names_who_holds_the_room(world: ApiWorld) -> None:
    """The explanation names holders only while the allocation waits for them."""
    holder = await world.launch(ranks=[{"count": 2, "resources": {"nvidia.com/gpu": 1}}])
    await world.run(holder["name"])
    waits = await world.launch()
    await world.explain(waits["name"], "NoFit", "no room")
    view = (await world.get(f"/allocations/{waits['id']}/explain")).json()
    assert [(each["id"], each["slots"]) for each in view["holders"]] == [(holder["id"], 2)]
    assert view["othersHolding"] == 0
    await world.explain(waits["name"], "NoFit", f"{NEVER} with the pool's current nodes")
    assert (await world.get(f"/allocations/{waits['id']}/explain")).json()["holders"] == []


def test_the_quota_of_a_queue_above_is_held_by_all_below_it() -> None:
    """The scheduler's sentence names the queue that is short; work beside it, in another branch, is left out."""
    parents = {"mine": "lab", "sister": "lab", "lab": "", "other": ""}
    live = [holding("beside", queue="sister"), holding("own", queue="mine"), holding("else", queue="other")]

    def of(message: str) -> list[str]:
        found, _ = holders(
            waiting(queue="mine"), Gate.WAITING_FOR_QUOTA, live, lambda _: True, message=message, parents=parents
        )
        return sorted(each.id.partition("-")[0] for each in found)

    assert of("needs 1 more quota: the limit of queue lab is 2 and 2 is in use") == ["beside", "own"]
    assert of("needs 1 more quota: the limit of queue mine is 1 and 1 is in use") == ["own"]
