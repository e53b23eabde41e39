"""Scenarios of operating the services: rolling restarts under load, three replicas, a Redis replaced or failed over,
differing clocks, retention."""

import asyncio

from slipway.crd.v1alpha1 import Allocation
from slipway.kube.resources import ALLOCATIONS, CRDS
from slipway.local.apiserver.objects import clone
from slipway.model.reasons import Result
from tests.simulation.scenario import AGAIN, DONE, GONE, RUNS_S, Scenario, ended, has_begun, has_ended
from tests.support.kubelet import Script
from tests.support.world import Setup, World

THREE = {"scheduler": 3, "podworker": 3, "watcher": 3}
SNAPSHOTS = {"snapshot_objects": 1}
SNAPSHOT_S = 2.0
"""Seconds after which the publisher has made a snapshot."""
LOST = 6
"""The entries that the replica of a Redis lacks."""


def _fails_once(attempt: int, rank: int) -> Script:
    """Rank 1 fails in the first attempt."""
    return Script(runs_s=1.5, code=3) if (attempt, rank) == (1, 1) else Script(runs_s=2.0)


async def _rolling(world: World) -> None:
    """Every process is asked to end and started again, one after the other, while allocations start and end."""
    world.kubelets.script = _fails_once
    await world.launch("first", ranks=2, maxRestarts=1)
    await world.when(has_begun, name="first")
    for number, role in enumerate(sorted(world.processes)):
        await world.launch(f"during{number}")
        await world.restart(role)
    for name in ["first", *(f"during{number}" for number in range(len(world.processes)))]:
        await world.when(has_ended, name=name)


async def _stopped(world: World) -> None:
    """The leader is asked to end while it works; its lease is free at once."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.launch("first", ranks=2)
    await world.when(_is_admitted, name="first")
    await world.restart("scheduler")
    await world.launch("second", ranks=2)
    for name in ("first", "second"):
        await world.when(has_ended, name=name)


async def _from_snapshots(world: World) -> None:
    """The scheduler restarts twice while allocations run, fail and wait: also beside a small cluster it reads a
    snapshot of the feed, as beside a large one; the second time one of another publisher."""
    world.kubelets.script = _fails_once
    await world.launch("first", ranks=2, maxRestarts=1)
    await world.when(has_begun, name="first")
    await asyncio.sleep(SNAPSHOT_S)
    await world.launch("second")
    await world.restart("scheduler")
    await world.restart("watcher")
    await asyncio.sleep(SNAPSHOT_S)
    await world.launch("third", ranks=2, maxRestarts=1)
    await world.restart("scheduler")
    for name in ("first", "second", "third"):
        await world.when(has_ended, name=name)


async def _snapshots_and_redis(world: World) -> None:
    """Redis goes back in time with its snapshot, or loses it, and the scheduler restarts after each."""
    world.server.is_replicated = lambda: True
    world.kubelets.script = _fails_once
    await world.launch("first", ranks=2, maxRestarts=1)
    await world.when(has_begun, name="first")
    await asyncio.sleep(SNAPSHOT_S)
    world.server.fail_over(LOST)
    await world.restart("scheduler")
    await world.launch("second")
    await asyncio.sleep(SNAPSHOT_S)
    world.server.flush()
    await world.restart("scheduler")
    for name in ("first", "second"):
        await world.when(has_ended, name=name)


async def _three(world: World) -> None:
    """A gang fails once and runs again, with three replicas of each service."""
    world.kubelets.script = _fails_once
    await world.launch(ranks=2, maxRestarts=1)
    await world.when(has_ended)


async def _redis_replaced(world: World) -> None:
    """Redis is replaced by an empty one, twice, while a gang runs, fails and restarts."""
    world.kubelets.script = _fails_once
    await world.launch(ranks=2, maxRestarts=1)
    await world.when(has_begun)
    world.server.flush()
    await world.when(lambda found: found.status.attempt == 2)
    world.server.flush()
    await world.when(has_ended)


async def _redis_failed_over(world: World) -> None:
    """A replica takes over that lacks the last entries and whose clock is behind; and once more."""
    world.server.is_replicated = lambda: True
    world.kubelets.script = _fails_once
    await world.launch(ranks=2, maxRestarts=1)
    await world.when(has_begun)
    world.server.fail_over(LOST)
    await world.when(lambda found: found.status.attempt == 2)
    world.server.fail_over(LOST)
    await world.when(has_ended)


async def _clocks_apart(world: World) -> None:
    """The clocks of the processes differ; leadership and running pods do not depend on them."""
    world.kubelets.script = _fails_once
    await world.launch(ranks=2, maxRestarts=1)
    await world.when(has_ended)


async def _retention(world: World) -> None:
    """Ended allocations are counted, then deleted after their retention."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=0.5)
    await world.launch(ranks=2)
    await world.when(has_ended)
    await world.until(lambda: _is_empty(world))


async def _next_version(world: World) -> None:
    """The next version's CRD and objects exist already: they have fields that this version does not know.

    These fields disturb no service, and the user's fields survive all our writes.
    """
    world.kubelets.script = _fails_once
    name = "allocations.slipway.dev"
    found = clone(world.core.get(CRDS.plural + "." + CRDS.group, "", name))
    known = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    known["spec"]["properties"]["tune"] = {"type": "string"}
    known["status"]["properties"]["mood"] = {"type": "string"}
    world.core.update(CRDS.plural + "." + CRDS.group, "", name, found)
    await world.launch(ranks=2, maxRestarts=1, tune="slow")
    await world.when(has_begun)
    await _write_as_the_next(world)
    await world.when(has_ended)
    kept = world.core.get(name, "default", "job")
    assert kept["spec"]["tune"] == "slow"
    assert kept["metadata"]["annotations"]["slipway.dev/of-the-next"] == "kept"


async def _write_as_the_next(world: World) -> None:
    """Write a field that only the next version knows, while this version works."""
    seen = clone(world.core.get("allocations.slipway.dev", "default", "job"))
    seen["status"]["mood"] = "good"
    world.core.update_status("allocations.slipway.dev", "default", "job", seen)
    note = {"metadata": {"annotations": {"slipway.dev/of-the-next": "kept"}}}
    await world.kube.patch(ALLOCATIONS, "job", note, namespace="default")
    for role in sorted(world.processes):
        await world.restart(role)


async def _killed_at_once(world: World) -> None:
    """All services are killed in the same instant, in the middle of a launch."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.launch(ranks=4)
    await world.created("pods")
    for process in list(world.processes.values()):
        world.crash(process)
    await asyncio.sleep(2.0)
    await world.when(has_ended)


async def _is_empty(world: World) -> bool:
    return not list(world.core.store.scan("allocations.slipway.dev"))


def _is_admitted(found: Allocation) -> bool:
    return found.status.admission is not None


OPERATIONS = (
    Scenario(
        name="rolling-restart",
        story=_rolling,
        ends={
            "first": ended(Result.SUCCEEDED, 2),
            **{f"during{number}": ended(Result.SUCCEEDED) for number in range(3)},
        },
    ),
    Scenario(
        name="leader-stopped",
        story=_stopped,
        ends={name: ended(Result.SUCCEEDED) for name in ("first", "second")},
        setup=Setup(replicas={"scheduler": 2}),
    ),
    Scenario(
        name="from-snapshots",
        story=_from_snapshots,
        ends={
            "first": ended(Result.SUCCEEDED, 2),
            "second": ended(Result.SUCCEEDED),
            "third": ended(Result.SUCCEEDED, 2),
        },
        setup=Setup(watcher=SNAPSHOTS),
    ),
    Scenario(
        name="snapshots-and-redis",
        story=_snapshots_and_redis,
        ends={"first": ended(Result.SUCCEEDED, 2), "second": ended(Result.SUCCEEDED)},
        setup=Setup(watcher=SNAPSHOTS),
    ),
    Scenario(name="three-of-each", story=_three, ends=AGAIN, setup=Setup(replicas=THREE)),
    Scenario(name="redis-replaced", story=_redis_replaced, ends=AGAIN),
    Scenario(name="redis-failed-over", story=_redis_failed_over, ends=AGAIN),
    Scenario(
        name="clocks-apart",
        story=_clocks_apart,
        ends=AGAIN,
        setup=Setup(skew_s={"scheduler": 25.0, "podworker": -600.0, "watcher": 0.0, "scheduler2": -25.0}),
    ),
    Scenario(
        name="retention",
        story=_retention,
        ends=GONE,
        setup=Setup(watcher={"retention_s": 5.0, "sweep_interval_s": 5.0}),
    ),
    Scenario(name="next-version", story=_next_version, ends=AGAIN),
    Scenario(name="killed-at-once", story=_killed_at_once, ends=DONE),
)
