"""Object bugs of systems like ours: deleted objects that return, objects of the same name, lost exits."""

import asyncio

from slipway.crd.v1alpha1 import Allocation
from slipway.kube.resources import ALLOCATIONS, NODES
from slipway.kube.resources import PODS as PODS_OF
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.ops.audit.evidence import PODS
from tests.support.kubelet import Script
from tests.support.play import Played, play
from tests.support.world import World

REAPED_S = 60.0
RANKS = 2


def _is_running(found: Allocation) -> bool:
    return found.status.phase is Phase.RUNNING


def _has_ended(found: Allocation) -> bool:
    return found.status.phase is Phase.TERMINATED


async def _torn_out(world: World) -> None:
    """Remove the object at once, with all its finalizers."""
    await world.delete()
    await world.kube.patch(ALLOCATIONS, "job", {"metadata": {"finalizers": None}}, namespace="default")


def test_what_is_made_for_an_allocation_that_is_gone_is_reaped_and_not_made_again() -> None:
    """Pod worker and watcher are stopped before the creates, and meanwhile the object is removed (V7)."""
    gone_at: list[float] = []

    async def story(world: World) -> None:
        await world.launch(ranks=RANKS)
        await world.created("configmaps")
        for role in ("podworker", "watcher"):
            world.freeze(world.processes[role], 10.0)
        await _torn_out(world)
        gone_at.append(world.clock.now())
        await asyncio.sleep(10.0 + REAPED_S)

    played = play(story)
    assert played.violations == []
    late = [item for item in played.evidence.pods if item.before is None and item.version.at > gone_at[0]]
    assert len(late) <= RANKS
    assert all(not item.pod.spec.node_name for item in played.evidence.pods)
    assert not played.evidence.last((PODS,))
    assert played.evidence.containers == []


def test_a_new_object_is_not_confused_with_a_deleted_one_of_the_same_name() -> None:
    """The object is removed while its pods still end, and another one of its name is launched at once (V8)."""
    uids: list[str] = []

    async def story(world: World) -> None:
        world.kubelets.script = lambda _attempt, _rank: Script(runs_s=30.0, term_s=8.0)
        first = await world.launch(ranks=RANKS)
        await world.when(_is_running)
        await _torn_out(world)
        second = await world.launch(ranks=RANKS)
        uids.extend((first.metadata.uid, second.metadata.uid))
        await world.when(_has_ended)
        await asyncio.sleep(REAPED_S)

    played = play(story)
    assert played.violations == []
    first, second = uids
    end = played.evidence.allocations[second][-1].allocation.status
    assert (end.result, end.attempt) == (Result.SUCCEEDED, 1)
    assert _codes(played, second) == [0, 0]
    assert _codes(played, first) == [143, 143]


def _codes(played: Played, uid: str) -> list[int | None]:
    return [ran.code for ran in played.evidence.runs if ran.allocation_uid == uid]


def test_an_exit_outlives_its_node_and_the_absence_of_every_watcher() -> None:
    """The rank succeeds while no watcher runs, then its node is deleted, and its pod with it (V18)."""

    async def story(world: World) -> None:
        launched = await world.launch()
        running = await world.when(_is_running)
        world.freeze(world.processes["watcher"], 120.0)
        (container,) = world.kubelets.live(launched.metadata.uid)
        world.kubelets.exit(container.pod_uid, 0)
        await asyncio.sleep(2.0)
        world.kubelets.lose(container.node)
        await world.kube.delete(NODES, (running.status.ranks or [])[0].node)
        # PodGC deletes pods of a deleted node like this.
        await world.kube.delete(PODS_OF, container.pod, namespace="default", grace_s=0)
        await asyncio.sleep(115.0)
        await world.when(_has_ended)
        await asyncio.sleep(10.0)

    played = play(story)
    assert played.violations == []
    (history,) = played.evidence.allocations.values()
    end = history[-1].allocation.status
    assert (end.result, end.attempt) == (Result.SUCCEEDED, 1)
    assert [rank.exit_code for rank in end.ranks or []] == [0]
    assert len(played.evidence.runs) == 1
