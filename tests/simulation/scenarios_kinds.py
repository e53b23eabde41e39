"""Scenarios of each kind of allocation: notebook, shell, tensorboard, training with roles."""

import asyncio

from slipway.crd.transitions import id_of
from slipway.kube.resources import ALLOCATIONS
from slipway.model.reasons import Result
from tests.simulation.scenario import DONE, RUNS_S, STOPPED, Ending, Scenario, ended, has_begun, has_ended, is_running
from tests.support.kubelet import Script
from tests.support.small_cluster import a_manifest
from tests.support.world import World


async def _notebook(world: World) -> None:
    """It starts, is used when it is ready, and is stopped by its owner."""
    await world.launch(kind="notebook", idleTimeout="1h")
    await world.when(is_running)
    await _signal(world, {"ready": True})
    await world.when(lambda found: found.status.ready)
    await world.cancel()
    await world.when(has_ended)


async def _shell(world: World) -> None:
    """A user opens a terminal and leaves it, and it is closed by its timeout."""
    await world.launch(kind="shell", idleTimeout="5s")
    await world.when(is_running)
    await _signal(world, {"ready": True})
    await world.when(has_ended)


async def _tensorboard(world: World) -> None:
    """It waits for files, then answers, and is stopped."""
    await world.launch(kind="tensorboard", cpu="100m")
    await world.when(is_running)
    await _signal(world, {"waiting": True})
    await world.when(lambda found: found.status.waiting)
    await _signal(world, {"waiting": False, "ready": True})
    await world.when(lambda found: found.status.ready and not found.status.waiting)
    await world.cancel()
    await world.when(has_ended)


async def _training(world: World) -> None:
    """A launcher and two workers that serve it: when the launcher has ended, all end."""
    world.kubelets.script = lambda _attempt, rank: Script(runs_s=None if rank else RUNS_S)
    manifest = a_manifest()
    manifest["spec"] |= {
        "kind": "training",
        "ranks": [
            {"name": "launcher", "count": 1, "resources": {"cpu": "500m"}},
            {"name": "worker", "count": 2, "daemon": True, "resources": {"cpu": "1"}},
        ],
    }
    await world.apply(manifest)
    await world.when(has_ended)


async def _launch_eight(world: World) -> None:
    """The largest gang that fits."""
    world.kubelets.script = lambda _attempt, rank: Script(runs_s=RUNS_S + 0.1 * (rank % 3))
    await world.launch(ranks=8)
    await world.when(has_ended)


async def _held(world: World) -> None:
    """It is held before it starts, resumed, and held again when that has no effect any more."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.launch(hold=True)
    await asyncio.sleep(1.0)
    await _change(world, {"hold": False})
    await world.when(has_begun)
    await _change(world, {"hold": True})
    await world.when(has_ended)


async def _given_up(world: World) -> None:
    """Rank 0 fails in each allowed attempt."""
    world.kubelets.script = lambda _attempt, rank: Script(runs_s=0.4, code=0 if rank else 9)
    await world.launch(ranks=2, maxRestarts=1)
    await world.when(has_ended)


async def _waited_too_long(world: World) -> None:
    """It does not fit, and ends after its pending timeout."""
    await world.launch(ranks=9, pendingTimeout="3s")
    await world.when(has_ended)


async def _after_another(world: World) -> None:
    """Two allocations wait for the first to succeed or to fail, and it is deleted as soon as it has ended."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    first = id_of(await world.launch("first"))
    await world.launch(after=[{"allocation": first}])
    await world.launch("spare", after=[{"allocation": first, "when": "failed"}])
    await world.when(has_ended, name="first")
    await world.delete("first")
    await world.when(has_ended)
    await world.when(has_ended, name="spare")


async def _signal(world: World, signals: dict[str, object]) -> None:
    await _change(world, {"signals": {"attempt": 1, **signals}})


async def _change(world: World, spec: dict[str, object]) -> None:
    await world.kube.patch(ALLOCATIONS, "job", {"spec": spec}, namespace="default")


KINDS = (
    Scenario(name="notebook", story=_notebook, ends=STOPPED),
    Scenario(name="shell", story=_shell, ends={"job": ended(Result.TIMED_OUT)}),
    Scenario(name="tensorboard", story=_tensorboard, ends=STOPPED),
    Scenario(name="training", story=_training, ends=DONE),
    Scenario(name="launch-8", story=_launch_eight, ends=DONE),
    Scenario(name="held", story=_held, ends=DONE),
    Scenario(name="given-up", story=_given_up, ends={"job": ended(Result.FAILED, 2)}),
    Scenario(
        name="after-another",
        story=_after_another,
        ends={"first": Ending(is_gone=True), "job": ended(Result.SUCCEEDED), "spare": ended(Result.CANCELED)},
    ),
    Scenario(name="waited-too-long", story=_waited_too_long, ends={"job": ended(Result.TIMED_OUT)}),
)
