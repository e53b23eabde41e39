"""The scenarios: what a user does, what ranks do, and how it must end whatever faults strike.

Owns only the scenarios. Each uses the world's own user and kubelets, which never fail. Faults are injected from
outside, and the end must not depend on them.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from slipway.crd.transitions import with_status
from slipway.crd.v1alpha1 import Allocation, Stop
from slipway.kube.resources import ALLOCATIONS, NODES, PODS
from slipway.model.facts import DISABLED, SCHEDULING_LABEL
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason, Result
from slipway.model.times import format_time
from tests.simulation import preemption
from tests.simulation.clients import CLIENTS
from tests.simulation.corners import CORNERS
from tests.simulation.scenario import DONE, GONE, RUNS_S, STOPPED, Ending, Scenario, Story
from tests.simulation.scenarios_kinds import KINDS
from tests.simulation.scenarios_logs import LOGS
from tests.simulation.scenarios_neutral import NEUTRAL
from tests.simulation.scenarios_operations import OPERATIONS
from tests.simulation.scenarios_policies import POLICIES
from tests.simulation.scenarios_quota import QUOTA
from tests.simulation.scenarios_trouble import TROUBLE
from tests.support.kubelet import Script
from tests.support.world import Setup, World


def _is_assigned(found: Allocation) -> bool:
    return found.status.phase is Phase.ASSIGNED


def _is_released(found: Allocation) -> bool:
    return found.status.release is not None


def _is_running(found: Allocation) -> bool:
    return found.status.phase is Phase.RUNNING


def _has_ended(found: Allocation) -> bool:
    return found.status.phase is Phase.TERMINATED


async def _launch_one(world: World) -> None:
    """One rank runs and ends."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.launch()
    await world.when(_has_ended)


async def _launch_four(world: World) -> None:
    """A gang of four runs and ends."""
    world.kubelets.script = lambda _attempt, rank: Script(runs_s=RUNS_S + 0.2 * rank)
    await world.launch(ranks=4)
    await world.when(_has_ended)


async def _stay(world: World) -> None:
    """A gang runs without an end."""
    await world.launch(ranks=2)
    await world.when(_is_running)


async def _restart(world: World) -> None:
    """Rank 1 fails in the first attempt."""

    def script(attempt: int, rank: int) -> Script:
        return Script(runs_s=0.5, code=3) if (attempt, rank) == (1, 1) else Script(runs_s=2.0)

    world.kubelets.script = script
    await world.launch(ranks=2, maxRestarts=1)
    await world.when(_has_ended)


async def _fail(world: World) -> None:
    """One of two ranks fails, and no other attempt is allowed."""
    world.kubelets.script = lambda _attempt, rank: Script(runs_s=0.5, code=7 if rank else 0)
    await world.launch(ranks=2)
    await world.when(_has_ended)


def _cancel_when(condition: Callable[[Allocation], bool], *, ranks: int = 2) -> Story:
    async def story(world: World) -> None:
        """It is cancelled when the condition becomes true."""
        await world.launch(ranks=ranks)
        await world.when(condition)
        await asyncio.sleep(world.random.random() * 0.003)
        await world.cancel()
        await world.when(_has_ended)

    return story


async def _cancel_waiting(world: World) -> None:
    """It is too large to fit, and waits until it is cancelled."""
    await world.launch(ranks=9)
    await asyncio.sleep(1.0)
    await world.cancel()
    await world.when(_has_ended)


async def _preempt_acked(world: World) -> None:
    """A rank acknowledges the preemption, and all ranks end."""
    launched = await world.launch(ranks=2, preemptible=True, preemptionGrace="20s")
    await world.when(_is_running)
    await _signal(world, {"preempt": {"n": 1, "attempt": 1, "reason": "user"}})
    await world.when(lambda found: "preemption" in found.status.deadlines or _has_ended(found))
    await _signal(world, {"acks": {"0": 1}})
    await asyncio.sleep(0.5)
    for container in world.kubelets.live(launched.metadata.uid):
        world.kubelets.exit(container.pod_uid, 0)
    await world.when(_has_ended)


async def _preempt_deadline(world: World) -> None:
    """No rank acknowledges: the grace expires."""
    await world.launch(preemptible=True, preemptionGrace="5s")
    await world.when(_is_running)
    await _signal(world, {"preempt": {"n": 1, "attempt": 1, "reason": "user"}})
    await world.when(_has_ended)


async def _signal(world: World, signals: dict[str, object]) -> None:
    await world.kube.patch(ALLOCATIONS, "job", {"spec": {"signals": {"attempt": 1, **signals}}}, namespace="default")


async def _edited(world: World) -> None:
    """An applied allocation is held, edited while it waits, and edited again while it runs."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.launch(hold=True)
    await asyncio.sleep(1.0)
    for change in ({"priority": 70}, {"queuePosition": "5"}, {"hold": False}):
        await world.kube.patch(ALLOCATIONS, "job", {"spec": change}, namespace="default")
        await asyncio.sleep(world.random.random() * 0.02)
    await world.kube.patch(ALLOCATIONS, "job", {"metadata": {"labels": {"edited": "yes"}}}, namespace="default")
    await world.when(_has_ended)


async def _compete(world: World) -> None:
    """Two allocations compete for one place, and a more urgent third one arrives later."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.launch("first", ranks=4)
    await world.launch("second", ranks=4)
    await asyncio.sleep(0.3)
    await world.launch("third", ranks=4, priority=90)
    for name in ("first", "second", "third"):
        await world.when(_has_ended, name=name)


def _delete_when(condition: Callable[[Allocation], bool]) -> Story:
    async def story(world: World) -> None:
        """It is deleted by `kubectl delete` when the condition becomes true."""
        await world.launch(ranks=2)
        await world.when(condition)
        await asyncio.sleep(world.random.random() * 0.003)
        await world.delete()
        await world.until(lambda: _is_gone(world, "job"))

    return story


async def _cancel_launching(world: World) -> None:
    """It is cancelled when the pod worker has created pods, and has not released them yet."""
    await world.launch(ranks=2)
    await world.created("pods")
    await world.cancel()
    await world.when(_has_ended)


async def _delete_launching(world: World) -> None:
    """It is deleted by `kubectl delete` when the pod worker has created pods, and has not released them yet."""
    await world.launch(ranks=2)
    await world.created("pods")
    await world.delete()
    await world.until(lambda: _is_gone(world, "job"))


async def _node_lost(world: World) -> None:
    """The machine dies, and later its Node object is deleted: the gang runs again elsewhere."""
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    await world.launch(ranks=2, cpu="3")
    running = await world.when(_is_running)
    node = (running.status.ranks or [])[0].node
    world.kubelets.lose(node)
    await asyncio.sleep(2.0)
    await world.kube.delete(NODES, node)
    await world.when(_has_ended)


async def _node_disabled(world: World) -> None:
    """An operator takes a node out of use: the gang with a rank there runs again as a whole, without that node."""
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    await world.launch(ranks=2)
    running = await world.when(_is_running)
    node = (running.status.ranks or [])[0].node
    await world.kube.patch(NODES, node, {"metadata": {"labels": {SCHEDULING_LABEL: DISABLED}}})
    ended = await world.when(_has_ended)
    assert node not in {rank.node for rank in ended.status.ranks or []}


async def _pod_deleted(world: World) -> None:
    """A pod is deleted by hand: the whole gang runs again."""
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    await world.launch(ranks=2)
    running = await world.when(_is_running)
    uid = (running.status.ranks or [])[1].pod_uid
    for pod in (await world.kube.list(PODS, namespace="default")).items:
        if pod.metadata.uid == uid:
            await world.kube.delete(PODS, pod.metadata.name, namespace="default")
    await world.when(_has_ended)


async def _evict(world: World) -> None:
    """The status of an eviction is written: the allocation ends its attempt, and runs again as the next one."""
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    await world.launch(ranks=2, preemptible=True, preemptionGrace="2s")
    running = await world.when(_is_running)
    stop = Stop(reason=Reason.PREEMPTED.value, at=format_time(world.clock.now()), requeue=True, by="default/other")
    await world.kube.replace_status(
        ALLOCATIONS, with_status(running, msgspec.structs.replace(running.status, stop=stop))
    )
    await world.when(_has_ended)


async def _pause(world: World) -> None:
    """It is preempted and held, and later resumed as the next attempt."""
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    await world.launch(ranks=2, preemptible=True, preemptionGrace="2s")
    await world.when(_is_running)
    await world.kube.patch(ALLOCATIONS, "job", {"spec": {"hold": True}}, namespace="default")
    await _signal(world, {"preempt": {"n": 1, "attempt": 1, "reason": "pause"}})
    await world.when(lambda found: found.status.phase is Phase.PENDING and found.status.attempt == 2)
    await asyncio.sleep(3.0)
    await world.kube.patch(ALLOCATIONS, "job", {"spec": {"hold": False}}, namespace="default")
    await world.when(_has_ended)


async def _refused(world: World) -> None:
    """kube-scheduler finds no node for one rank of the first attempt: the gang is requeued, and starts whole."""
    world.kube_scheduler.refuses = lambda attempt, rank: (attempt, rank) == (1, 2)
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    await world.launch(ranks=3)
    await world.when(_has_ended)


async def _cancel_refused(world: World) -> None:
    """It is cancelled while some ranks run and kube-scheduler finds no node for another."""
    world.kube_scheduler.refuses = lambda _attempt, rank: rank == 1
    await world.launch(ranks=3)
    await world.when(_is_released)
    await asyncio.sleep(world.random.random() * 2.0)
    await world.cancel()
    await world.when(_has_ended)


async def _forgotten(world: World) -> None:
    """The machine dies and its Node object stays; the kill waits for it until an administrator gives the node up."""
    await world.launch(ranks=2, cpu="3")
    running = await world.when(_is_running)
    node = (running.status.ranks or [])[0].node
    world.kubelets.lose(node)
    await world.cancel()
    await asyncio.sleep(20.0)
    assert not _has_ended(await world.when(lambda _found: True))
    await _signal(world, {"lostNodes": [node]})
    await world.when(_has_ended)


async def _idle(world: World) -> None:
    """It is not used, and ends by its idle timeout."""
    await world.launch(ranks=2, idleTimeout="5s")
    await world.when(_has_ended)


async def _time_is_up(world: World) -> None:
    """Its run limit is reached: it is asked to stop, acknowledges, and ends within its grace."""
    launched = await world.launch(ranks=2, preemptible=True, preemptionGrace="40s", maxRuntime="6s")
    await world.when(_is_running)
    await _signal(world, {"ready": True})
    await world.when(lambda found: "preemption" in found.status.deadlines or _has_ended(found))
    await _signal(world, {"ready": True, "acks": {"0": 0}})
    await asyncio.sleep(0.5)
    for container in world.kubelets.live(launched.metadata.uid):
        world.kubelets.exit(container.pod_uid, 0)
    await world.when(_has_ended)


async def _daemons(world: World) -> None:
    """Rank 2 serves the others and never ends by itself."""
    world.kubelets.script = lambda _attempt, rank: Script(runs_s=None if rank == 2 else RUNS_S)
    await world.launch(ranks=3)
    await _signal(world, {"daemons": [2]})
    await world.when(_has_ended)


async def _elastic(world: World) -> None:
    """One of three ranks is lost with its node; two are enough, and finish."""
    launched = await world.launch(ranks=3, cpu="3", minAvailable=2)
    running = await world.when(_is_running)
    node = (running.status.ranks or [])[1].node
    world.kubelets.lose(node)
    await world.kube.delete(NODES, node)
    await asyncio.sleep(5.0)
    for container in world.kubelets.live(launched.metadata.uid):
        world.kubelets.exit(container.pod_uid, 0)
    await world.when(_has_ended)


async def _redis_away(world: World) -> None:
    """Redis is down in the middle of the launch, and returns empty."""
    world.kubelets.script = lambda attempt, rank: Script(runs_s=8.0, code=3 if (attempt, rank) == (1, 1) else 0)
    await world.launch(ranks=2, maxRestarts=1)
    await world.created("pods")
    world.server.absent = True
    await asyncio.sleep(12.0)
    world.server.flush()
    world.server.absent = False
    await world.when(_has_ended)


async def _is_gone(world: World, name: str) -> bool:
    return all(item.metadata.name != name for item in (await world.kube.list(ALLOCATIONS)).items)


MADE_ROOM = {
    "high": Ending(result=Result.SUCCEEDED, attempt=1),
    "low": Ending(result=Result.SUCCEEDED, attempt=2),
}
NO_REDIS = Setup(has_redis=False)
DELEGATE = Setup(binding="delegate", watcher={"unschedulable_limit_s": 5.0})
GROUPS = msgspec.structs.replace(DELEGATE, has_pod_groups=True)

SCENARIOS: Mapping[str, Scenario] = {
    item.name: item
    for item in (
        *KINDS,
        *QUOTA,
        *CLIENTS,
        *NEUTRAL,
        *TROUBLE,
        *OPERATIONS,
        *POLICIES,
        Scenario(name="launch-1", story=_launch_one, ends=DONE),
        Scenario(name="launch-4", story=_launch_four, ends=DONE),
        Scenario(name="stay", story=_stay, ends={"job": Ending(phase=Phase.RUNNING, attempt=1)}),
        Scenario(name="restart", story=_restart, ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)}),
        Scenario(name="fail", story=_fail, ends={"job": Ending(result=Result.FAILED, attempt=1)}),
        Scenario(name="cancel-waiting", story=_cancel_waiting, ends=STOPPED),
        Scenario(name="cancel-pending", story=_cancel_when(lambda _found: True), ends=STOPPED),
        Scenario(name="cancel-assigned", story=_cancel_when(_is_assigned), ends=STOPPED),
        Scenario(name="cancel-launching", story=_cancel_launching, ends=STOPPED),
        Scenario(name="cancel-released", story=_cancel_when(_is_released), ends=STOPPED),
        Scenario(name="cancel-running", story=_cancel_when(_is_running), ends=STOPPED),
        Scenario(name="preempt-acked", story=_preempt_acked, ends={"job": Ending(result=Result.PREEMPTED, attempt=1)}),
        Scenario(
            name="preempt-deadline", story=_preempt_deadline, ends={"job": Ending(result=Result.PREEMPTED, attempt=1)}
        ),
        Scenario(name="edited", story=_edited, ends=DONE),
        Scenario(
            name="compete",
            story=_compete,
            ends={name: Ending(result=Result.SUCCEEDED, attempt=1) for name in ("first", "second", "third")},
            setup=Setup(nodes=1),
        ),
        Scenario(name="delete-assigned", story=_delete_when(_is_assigned), ends=GONE),
        Scenario(name="delete-launching", story=_delete_launching, ends=GONE),
        Scenario(name="delete-running", story=_delete_when(_is_running), ends=GONE),
        Scenario(
            name="node-lost",
            story=_node_lost,
            ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)},
            setup=Setup(nodes=3),
        ),
        Scenario(name="node-disabled", story=_node_disabled, ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)}),
        Scenario(name="pod-deleted", story=_pod_deleted, ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)}),
        Scenario(name="evict", story=_evict, ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)}),
        Scenario(name="preempt-in-queue", story=preemption.in_queue, ends=MADE_ROOM, setup=Setup(nodes=1)),
        Scenario(name="preempt-unheard", story=preemption.unheard, ends=MADE_ROOM, setup=Setup(nodes=1)),
        Scenario(
            name="preempt-called-off",
            story=preemption.called_off,
            ends={
                "high": Ending(result=Result.CANCELED, attempt=1),
                "low": Ending(result=Result.SUCCEEDED, attempt=2),
            },
            setup=Setup(nodes=1),
        ),
        Scenario(
            name="preempt-outranked",
            story=preemption.outranked,
            ends={**MADE_ROOM, "top": Ending(result=Result.SUCCEEDED, attempt=1)},
            setup=Setup(nodes=1),
        ),
        Scenario(
            name="reclaim",
            story=preemption.reclaim,
            ends={
                "owner": Ending(result=Result.SUCCEEDED, attempt=1),
                **{name: Ending(result=Result.SUCCEEDED) for name in ("first", "second")},
            },
        ),
        Scenario(
            name="shrink",
            story=preemption.shrink,
            ends={name: Ending(result=Result.SUCCEEDED, attempt=1) for name in ("gang", "high")},
            setup=Setup(nodes=1),
        ),
        Scenario(
            name="grow",
            story=preemption.grow,
            ends={name: Ending(result=Result.SUCCEEDED, attempt=1) for name in ("gang", "holder")},
            setup=Setup(nodes=1),
        ),
        Scenario(
            name="grow-cancelled",
            story=preemption.grow_cancelled,
            ends={
                "holder": Ending(result=Result.SUCCEEDED, attempt=1),
                "gang": Ending(result=Result.CANCELED, attempt=1),
            },
            setup=Setup(nodes=1),
        ),
        Scenario(
            name="grow-then-shrink",
            story=preemption.grow_then_shrink,
            ends={name: Ending(result=Result.SUCCEEDED, attempt=1) for name in ("gang", "high", "higher")},
            setup=Setup(nodes=1),
        ),
        Scenario(
            name="consolidate",
            story=preemption.consolidate,
            ends={
                "moved": Ending(result=Result.SUCCEEDED, attempt=2),
                **{name: Ending(result=Result.SUCCEEDED, attempt=1) for name in ("stays", "large")},
            },
        ),
        Scenario(name="pause", story=_pause, ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)}),
        Scenario(name="forgotten", story=_forgotten, ends=STOPPED),
        Scenario(name="idle", story=_idle, ends={"job": Ending(result=Result.TIMED_OUT, attempt=1)}),
        Scenario(name="time-is-up", story=_time_is_up, ends={"job": Ending(result=Result.TIMED_OUT, attempt=1)}),
        Scenario(name="daemons", story=_daemons, ends=DONE),
        Scenario(name="elastic", story=_elastic, ends=DONE, setup=Setup(nodes=3)),
        Scenario(name="redis-away", story=_redis_away, ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)}),
        Scenario(name="delegate", story=_launch_four, ends=DONE, setup=DELEGATE),
        Scenario(
            name="delegate-refused",
            story=_refused,
            ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)},
            setup=DELEGATE,
        ),
        Scenario(name="delegate-cancel", story=_cancel_refused, ends=STOPPED, setup=DELEGATE),
        Scenario(name="pod-group", story=_launch_four, ends=DONE, setup=GROUPS),
        Scenario(
            name="pod-group-refused",
            story=_refused,
            ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)},
            setup=GROUPS,
        ),
        Scenario(name="pod-group-cancel", story=_cancel_refused, ends=STOPPED, setup=GROUPS),
        Scenario(name="launch-4-r0", story=_launch_four, ends=DONE, setup=NO_REDIS),
        Scenario(
            name="restart-r0", story=_restart, ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)}, setup=NO_REDIS
        ),
        Scenario(name="cancel-running-r0", story=_cancel_when(_is_running), ends=STOPPED, setup=NO_REDIS),
        Scenario(
            name="stale-view",
            story=_restart,
            ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)},
            setup=Setup(lag_s={"pods": 3.0}),
        ),
        *CORNERS,
        *LOGS,
    )
}

__all__ = ["SCENARIOS", "Ending", "Scenario"]
