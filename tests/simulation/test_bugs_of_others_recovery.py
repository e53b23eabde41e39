"""Restart and failover bugs of systems like ours: work destroyed after a failed read, a second admission, ghosts."""

import asyncio
from typing import Any

import pytest

from slipway.crd.v1alpha1 import Allocation
from slipway.kube import resources
from slipway.local.apiserver.core import StatusError
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import ALLOCATIONS, CONFIG_MAPS, PODS, POOLS
from tests.simulation.points import zombies
from tests.simulation.run import run
from tests.support.faults import Fault, Kind
from tests.support.play import play
from tests.support.world import Setup, World

SERVICES = ("scheduler", "podworker", "watcher")
ENDED, LIVE = 1_000, 10
FAILED_LISTS = 12


def _is_running(found: Allocation) -> bool:
    return found.status.phase is Phase.RUNNING


def test_lists_that_fail_on_recovery_delete_nothing() -> None:
    """All services are killed while a gang runs; the first LISTs of their successors get 500 (V3)."""
    restarted_at: list[float] = []

    async def story(world: World) -> None:
        await world.launch(ranks=2)
        await world.when(_is_running)
        await asyncio.sleep(2.0)
        restarted_at.append(world.clock.now())
        _fail_lists(world, FAILED_LISTS)
        for role in SERVICES:
            world.crash(world.processes[role])
        await asyncio.sleep(60.0)

    played = play(story)
    assert played.violations == []
    assert played.deletions(PODS) == played.deletions(CONFIG_MAPS) == []
    assert [version.name for version in played.evidence.of(PODS) if version.at > restarted_at[0]] == []
    (history,) = played.evidence.allocations.values()
    assert (history[-1].allocation.status.phase, history[-1].allocation.status.attempt) == (Phase.RUNNING, 1)


def _fail_lists(world: World, count: int) -> None:
    """Let the API server answer the next LISTs with 500."""
    sound, left = world.core.list, [count]

    def failing(*given: Any, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StatusError(500, "InternalError", "etcdserver: leader changed")
        return sound(*given, **more)

    world.core.list = failing  # pyright: ignore[reportAttributeAccessIssue]


def test_a_restart_admits_nothing_again_and_counts_what_is_there() -> None:
    """A thousand allocations have ended and ten run; the leader is killed, twice; the free resources are exact (V9)."""
    restarted_at: list[float] = []
    written: list[tuple[float, str, str]] = []

    async def story(world: World) -> None:
        for number in range(ENDED):
            await _ended_long_ago(world, f"old-{number}")
        for number in range(LIVE):
            await world.launch(f"live-{number}")
            await world.when(_is_running, name=f"live-{number}")
        restarted_at.append(world.clock.now())
        for _ in range(2):
            world.crash(world.processes["scheduler"])
            await asyncio.sleep(20.0)
        await world.launch("too-many", ranks=7)
        await world.launch("just-right", ranks=6, priority=40)
        await world.when(_is_running, name="just-right")
        allocations = [item for item in world.changes if item[2].resource.startswith(ALLOCATIONS)]
        written.extend((at, writer, change.key[1]) for at, writer, change in allocations)

    # The audit checks every running allocation at every version: a thousand ended ones would only make it slow.
    played = play(story, Setup(nodes=4, cpus=4, has_redis=False), is_at_rest=False, without="old-")
    assert played.violations == []
    admitted = {name for at, writer, name in written if writer.startswith("scheduler") and at > restarted_at[0]}
    assert admitted <= {"too-many", "just-right"}
    lasts = {name: version.obj for (_, _, name), version in played.evidence.last((ALLOCATIONS,)).items()}
    assert lasts["too-many"]["status"]["phase"] == "Pending"
    pools = list(played.evidence.of(POOLS))
    assert pools[-1].obj["status"]["epoch"] >= 3


async def _ended_long_ago(world: World, name: str) -> None:
    """An ended allocation as it is stored: the object only."""
    made = await world.kube.create(
        resources.ALLOCATIONS,
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "kind": "command",
                "ranks": [{"name": "worker", "count": 1, "resources": {"cpu": "1"}}],
                "template": {"spec": {"containers": [{"name": "main", "image": "python:3.11"}]}},
            },
        },
        namespace="default",
    )
    status = {"phase": "Terminated", "seq": 0, "attempt": 1, "result": "Succeeded", "reason": "Completed"}
    await world.kube.replace_status(resources.ALLOCATIONS, {"metadata": made.metadata.fence, "status": status})


def test_a_new_leader_holds_no_room_for_what_only_the_last_one_saw_go() -> None:
    """The pods that fill the cluster are deleted, and the leader sees it and dies: the next leader has the free
    resources (V10)."""

    async def story(world: World) -> None:
        await world.launch("first", ranks=4)
        await world.when(_is_running, name="first")
        await world.delete("first")
        await world.until(lambda: _is_gone(world, "first"))
        world.crash(world.processes["scheduler"])
        await world.launch("second", ranks=4)
        await world.when(_is_running, name="second", timeout_s=60.0)

    played = play(story, Setup(nodes=1, replicas={"scheduler": 2}), is_at_rest=False)
    assert played.violations == []


async def _is_gone(world: World, name: str) -> bool:
    return all(item.metadata.name != name for item in (await world.kube.list(resources.ALLOCATIONS)).items)


def test_a_conflict_at_any_step_of_a_preemption_ends_well() -> None:
    """Each write of the scheduler is refused once: the victim is evicted, and runs again when resources are free
    (V10)."""
    steps = [
        effect
        for effect in run("preempt-unheard", 1).effects
        if effect.role == "scheduler" and effect.verb in ("update", "patch") and not effect.is_recurring
    ]
    assert len(steps) >= 5
    for effect in steps:
        fault = Fault(Kind.TOUCHED, "scheduler", effect.number, "before")
        assert run("preempt-unheard", 1, (fault,)).violations == [], str(fault)


@pytest.mark.parametrize("service", ["scheduler", "watcher"])
def test_a_leader_paused_beyond_its_lease_does_no_harm_whenever_it_resumes(service: str) -> None:
    """A leader is stopped before a write, another one leads, and the first continues at a boundary of the other's
    work (V11)."""
    first = next(
        effect
        for effect in run("compete", 1, replicas=2).effects
        if effect.role.rstrip("0123456789") == service and effect.verb == "update" and not effect.is_recurring
    )
    hold = Fault(Kind.HOLD, first.role, first.number, "before")
    held = run("compete", 1, (hold,), replicas=2)
    assert held.violations == []
    pairs = list(zombies(held.effects, hold))
    assert pairs
    for pair in pairs[::2]:
        outcome = run("compete", 1, pair, replicas=2)
        assert (outcome.violations, outcome.struck) == ([], 2), str(pair)


def test_a_view_from_a_replica_that_lags_destroys_nothing() -> None:
    """The watcher is killed and restarts with an API server that lags: no pod is deleted, no attempt ends (V17)."""
    effects = [item for item in run("stay", 1).effects if item.role == "watcher" and item.has_before and item.is_kube]
    assert effects
    for effect in effects[:: max(1, len(effects) // 6)]:
        fault = Fault(Kind.CRASH_STALE, "watcher", effect.number)
        assert run("stay", 1, (fault,)).violations == [], str(fault)
