"""No restart resets a deadline, and none writes anything: the real services, killed in virtual time.

Each deadline is stored, or follows from stored values. The process that acts on it is killed several times before, and
once shortly before. The deadline still takes effect, late by no more than a dead leader's lease.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from slipway.crd.transitions import id_of, with_status
from slipway.crd.v1alpha1 import Allocation, Stop
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason, Result
from slipway.model.times import format_time, parse_time
from slipway.streams import keys
from tests.support.kubelet import Script
from tests.support.small_cluster import look
from tests.support.world import RESTART_S, Setup, World, run_world

LATE_S = 20.0
"""The lease of a dead leader (15 s), the election, and the restart."""
SERVICES = ("scheduler", "podworker", "watcher")
VICTIMS = [("scheduler",), ("watcher",), SERVICES]


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(story: Callable[[World], Awaitable[Any]], setup: Setup | None = None, *, seed: int = 1) -> Any:
    async def main(world: World) -> Any:
        result = await story(world)
        assert world.broken == []
        return result

    return run_world(main, setup or Setup(), seed=seed)


def kill(world: World, victims: tuple[str, ...]) -> None:
    for role in victims:
        if not world.processes[role].is_dead:
            world.crash(world.processes[role])


async def killed_until(world: World, due: float, victims: tuple[str, ...]) -> None:
    """Kill them every few seconds, the last time shortly before the deadline."""
    while due - world.clock.now() > 8:
        await asyncio.sleep(5.0)
        kill(world, victims)
    await asyncio.sleep(max(0.0, due - world.clock.now() - 0.3))
    kill(world, victims)


def is_running(found: Allocation) -> bool:
    return found.status.phase is Phase.RUNNING


def has_ended(found: Allocation) -> bool:
    return found.status.phase is Phase.TERMINATED


def has_been_told(found: Allocation) -> bool:
    return "preemption" in found.status.deadlines


def stored(found: Allocation, name: str) -> float:
    return parse_time(found.status.deadlines[name])


async def ended(world: World) -> Allocation:
    return await world.when(has_ended)


async def assert_in_time(world: World, due: float, *, result: Result, reason: Reason) -> None:
    """Check that it ends with that result, not early, and at most a restart later."""
    found = await ended(world)
    assert (found.status.result, found.status.reason) == (result, reason)
    stopped_at = parse_time(found.status.stop.at if found.status.stop is not None else found.status.ended_at)
    assert due - 0.01 <= stopped_at <= due + LATE_S


# --- each deadline, while those that act on it are killed


@pytest.mark.parametrize("victims", VICTIMS, ids=["-".join(names) for names in VICTIMS])
@pytest.mark.parametrize(
    ("spec", "name", "reason"),
    [({"maxRuntime": "40s"}, "maxRuntime", Reason.MAX_RUNTIME), ({"idleTimeout": "40s"}, "idle", Reason.IDLE)],
)
def test_a_limit_of_running_work(victims: tuple[str, ...], spec: dict[str, str], name: str, reason: Reason) -> None:
    """`maxRuntime` and `idleTimeout` begin with Running, whichever service restarts."""

    async def story(world: World) -> None:
        await world.launch(**spec)
        due = stored(await world.when(is_running), name)
        await killed_until(world, due, victims)
        await assert_in_time(world, due, result=Result.TIMED_OUT, reason=reason)

    play(story)


def test_the_pending_timeout() -> None:
    """The pending timeout follows from the time at which the allocation began to wait."""

    async def story(world: World) -> None:
        made = await world.launch(ranks=9, pendingTimeout="30s")
        due = parse_time(made.metadata.creation_timestamp or "") + 30
        await killed_until(world, due, SERVICES)
        await assert_in_time(world, due, result=Result.TIMED_OUT, reason=Reason.PENDING_TIMEOUT)

    play(story)


def test_what_is_held_does_not_wait() -> None:
    """The timeout of a held allocation begins when it is resumed, whichever service was killed; at rest a held one
    causes no writes."""

    async def story(world: World) -> None:
        await world.launch(ranks=9, hold=True, pendingTimeout="20s")
        await asyncio.sleep(30.0)
        begun = len(world.changes)
        await asyncio.sleep(60.0)
        assert {change.resource for _, _, change in world.changes[begun:]} <= {"leases.coordination.k8s.io"}
        kill(world, SERVICES)
        await world.kube.patch(ALLOCATIONS, "job", {"spec": {"hold": False}}, namespace="default")
        resumed = world.clock.now()
        found = await ended(world)
        assert (found.status.result, found.status.reason) == (Result.TIMED_OUT, Reason.PENDING_TIMEOUT)
        assert resumed + 20 <= parse_time(found.status.ended_at) <= resumed + 20 + LATE_S

    play(story)


@pytest.mark.parametrize("by_system", [False, True], ids=["user", "system"])
def test_the_grace_of_a_preemption(by_system: bool) -> None:
    """The deadline is stored when the ranks are asked; then they are killed, and an allocation that the system
    preempted runs again."""

    async def story(world: World) -> None:
        world.kubelets.script = lambda attempt, _rank: Script(runs_s=None if attempt == 1 else 1.0)
        await world.launch(preemptible=True, preemptionGrace="30s")
        await world.when(is_running)
        await _signal(world, {"ready": True, **({} if by_system else {"preempt": {"n": 1, "attempt": 1}})})
        if by_system:
            await _evict(world)
        due = stored(await world.when(has_been_told), "preemption")
        await killed_until(world, due, SERVICES)
        torn = await world.when(lambda found: found.status.phase is Phase.TERMINATING)
        assert due - 0.01 <= parse_time(torn.status.transitions[-1].time) <= due + LATE_S
        found = await ended(world)
        expected = (Result.SUCCEEDED, 2) if by_system else (Result.PREEMPTED, 1)
        assert (found.status.result, found.status.attempt) == expected

    play(story)


def test_a_kill_is_repeated_until_everything_is_gone() -> None:
    """The pod worker is killed again and again, right after the cancel and for longer than any resend interval."""

    async def story(world: World) -> None:
        await world.launch(ranks=2)
        await world.when(is_running)
        await world.cancel()
        for _ in range(30):
            kill(world, ("podworker",))
            await asyncio.sleep(RESTART_S + 1e-6)  # it lives for less than any call takes
        assert not has_ended(await look(world.kube))
        begun = world.clock.now()
        found = await ended(world)
        assert found.status.result is Result.CANCELED
        assert world.clock.now() - begun <= 30.0
        assert world.kubelets.live(found.metadata.uid) == []

    play(story)


# --- what counts as use


def _touch(world: World, made: Allocation, source: str = "proxy") -> Awaitable[None]:
    return world.streams.activity.touch({id_of(made): {source: world.clock.now()}})


@pytest.mark.parametrize("source", ["proxy", "reported"])
def test_activity_postpones_the_idle_end(source: str) -> None:
    """A used allocation runs on, and ends one timeout after its last use, with restarts or without."""

    async def story(world: World) -> None:
        made = await world.launch(idleTimeout="20s")
        await world.when(is_running)
        for _ in range(5):
            await asyncio.sleep(15.0)
            await _touch(world, made, source)
            kill(world, ("scheduler",))
        last = world.clock.now()
        assert is_running(await look(world.kube))
        await assert_in_time(world, last + 20, result=Result.TIMED_OUT, reason=Reason.IDLE)

    play(story)


def test_a_loss_of_redis_counts_as_use() -> None:
    """A FLUSHALL shortly before the end starts one more timeout, and it does not end sooner."""

    async def story(world: World) -> None:
        await world.launch(idleTimeout="30s")
        due = stored(await world.when(is_running), "idle")
        await asyncio.sleep(due - world.clock.now() - 1)
        world.server.flush()
        await assert_in_time(world, due + 29, result=Result.TIMED_OUT, reason=Reason.IDLE)

    play(story)


def test_without_redis_nothing_is_idle() -> None:
    """Without Redis no use is known, so it is treated as used; the run limit ends it all the same, and nothing is
    written."""

    async def story(world: World) -> None:
        await world.launch(idleTimeout="5s", maxRuntime="100s")
        due = stored(await world.when(is_running), "maxRuntime")
        await asyncio.sleep(10.0)
        begun = len(world.changes)
        await asyncio.sleep(60.0)
        assert {change.resource for _, _, change in world.changes[begun:]} <= {"leases.coordination.k8s.io"}
        await assert_in_time(world, due, result=Result.TIMED_OUT, reason=Reason.MAX_RUNTIME)

    play(story, Setup(has_redis=False))


def test_an_absence_of_redis_when_it_is_due_counts_as_use() -> None:
    """The absence of Redis starts one more timeout, and causes no writes."""

    async def story(world: World) -> None:
        made = await world.launch(idleTimeout="20s")
        due = stored(await world.when(is_running), "idle")
        await asyncio.sleep(due - world.clock.now() - 5)
        world.server.absent = True
        await asyncio.sleep(10.0)
        world.server.absent = False
        assert is_running(await look(world.kube))
        (known,) = await world.streams.activity.read([id_of(made)])
        assert keys.ACTIVITY_SINCE in known
        await assert_in_time(world, due + 20, result=Result.TIMED_OUT, reason=Reason.IDLE)

    play(story)


# --- restarts


def test_a_restart_of_everything_writes_nothing() -> None:
    """With allocations that run, wait and have ended no pod, ConfigMap or status is written. A new leader renews its
    lease and raises the ledger's epoch."""

    async def story(world: World) -> None:
        world.kubelets.script = lambda _attempt, rank: Script(runs_s=None if rank else 600.0)
        for name in ("one", "two"):
            await world.launch(name, ranks=2, idleTimeout="1h", maxRuntime="2h")
            await world.when(is_running, name=name)
        await world.launch("large", ranks=99)
        await world.launch("held", hold=True)
        await world.launch("over")
        await world.when(is_running, name="over")
        await world.cancel("over")
        await world.when(has_ended, name="over")
        await asyncio.sleep(70.0)
        begun = len(world.changes)
        for _ in range(3):
            kill(world, SERVICES)
            await asyncio.sleep(45.0)
        written = [change for _, _, change in world.changes[begun:] if not change.resource.startswith("leases")]
        assert {change.resource for change in written} == {"resourcepools.slipway.dev"}
        assert len(written) == 3

    play(story)


async def _signal(world: World, signals: dict[str, object]) -> None:
    await world.kube.patch(ALLOCATIONS, "job", {"spec": {"signals": {"attempt": 1, **signals}}}, namespace="default")


async def _evict(world: World) -> None:
    """Write the stop of an eviction once the allocation is ready."""
    found = await world.when(lambda each: each.status.ready)
    stop = Stop(reason=Reason.PREEMPTED.value, at=format_time(world.clock.now()), requeue=True, by="default/other")
    await world.kube.replace_status(ALLOCATIONS, with_status(found, msgspec.structs.replace(found.status, stop=stop)))
