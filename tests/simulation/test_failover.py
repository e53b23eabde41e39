"""Two schedulers in virtual time: which one leads after a crash, after an orderly end, and after a pause, to the
second.

Allocations arrive all the time, so that each tick has something to commit. The lease has its default length: 15 s at
the beginning of a term, and 3 s once its renewals have been prompt.
"""

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from slipway.crd.transitions import id_of
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from tests.support.fault_kinds import Fault, Kind
from tests.support.kubelet import Script
from tests.support.world import Setup, World, run_world

LEASE_S, STEADY_S = 15.0, 3.0
SECOND_S = 1.0
ARRIVALS = 8
EVERY_S = 0.3
SELDOM_S = 0.9
BOUNDARIES = range(1, 21)
"""The effects of the first leader while allocations arrive: from its lease to its last ticks."""
POOLS = "resourcepools.slipway.dev"


def a_pair(*, has_redis: bool = True) -> Setup:
    # A placed allocation stays unchanged, so that the runs stay short.
    return Setup(nodes=4, cpus=32, has_redis=has_redis, replicas={"scheduler": 2, "podworker": 0})


async def arrivals(world: World) -> None:
    """Launch allocations all the time, until a while after the last fault."""
    number = 0
    while number < ARRIVALS or world.clock.now() < world.last_fault_at + LEASE_S + 3 * SECOND_S:
        await world.launch(f"job{number}", cpu="100m")
        number += 1
        await asyncio.sleep(EVERY_S if number < ARRIVALS else SELDOM_S)


def ledgers(world: World) -> Iterator[tuple[float, str, int, int]]:
    """(time, writer, epoch, tick) of each ledger that was committed."""
    for at, writer, change in world.changes:
        if change.resource == POOLS and writer:
            status: dict[str, Any] = change.record.obj.get("status", {})
            yield at, writer, int(status.get("epoch", 0)), int(status.get("tick", 0))


def next_tick_at(world: World, moment: float) -> float:
    """The time of the first tick that was committed by an epoch newer than `moment`."""
    epoch, tick = 0, 0
    for at, _, now_epoch, now_tick in ledgers(world):
        if at > moment and now_epoch > epoch and now_tick > tick:
            return at
        if at <= moment:
            epoch, tick = now_epoch, now_tick
    raise AssertionError("nobody went on")


@functools.cache
def leader() -> str:
    """The first leader while allocations arrive; it is the same in each of these runs."""

    async def play(world: World) -> str:
        await arrivals(world)
        return next(writer for _, writer, _, _ in ledgers(world)).split("-")[0]

    found: str = run_world(play, a_pair())
    return found


def written_by(world: World, name: str, since: float) -> list[str]:
    """The writes of a process since then, without leases."""
    return [
        f"{at:.3f} {change.resource} {change.key[1]}"
        for at, writer, change in world.changes
        if writer == name and at > since and not change.resource.startswith("leases")
    ]


@pytest.mark.parametrize("number", BOUNDARIES)
def test_after_a_crash_the_next_tick_is_committed_within_the_lease_and_a_second(number: int) -> None:
    """After a crash between any two effects, another epoch commits a tick at most 16 s later."""

    async def play(world: World) -> float:
        await arrivals(world)
        (struck,) = world.injector.struck
        return next_tick_at(world, struck[0]) - struck[0]

    took_s: float = run_world(play, a_pair(), faults=(Fault(Kind.CRASH, leader(), number, "after"),))
    assert took_s <= LEASE_S + SECOND_S


@pytest.mark.parametrize("has_redis", [True, False], ids=["redis", "no redis"])
def test_after_a_crash_in_a_steady_term_the_next_tick_is_committed_within_four_seconds(has_redis: bool) -> None:
    """`kill -9` at many moments between two renewals: the next tick follows after three seconds of the lease and one
    for the rest."""

    async def play(world: World) -> list[float]:
        working = asyncio.create_task(arrivals_for_ever(world))  # noqa: TID251 - a client of the world, until its end
        took: list[float] = []
        for round_ in range(6):
            await asyncio.sleep(9.0 + 0.21 * round_)
            leads = [writer for _, writer, _, _ in ledgers(world)][-1].split("-")[0]
            killed_at = world.clock.now()
            world.crash(world.processes[leads])
            await asyncio.sleep(6 * SECOND_S)
            took.append(next_tick_at(world, killed_at) - killed_at)
        working.cancel()
        return took

    took: list[float] = run_world(play, a_pair(has_redis=has_redis))
    assert max(took) <= STEADY_S + SECOND_S, took


@pytest.mark.parametrize("has_redis", [True, False], ids=["redis", "no redis"])
def test_after_an_orderly_end_the_next_tick_is_committed_within_a_second(has_redis: bool) -> None:
    """SIGTERM at many moments: the lease is released, and the other scheduler is warm and checks soon, also without
    Redis."""

    async def play(world: World) -> list[float]:
        working = asyncio.create_task(arrivals_for_ever(world))  # noqa: TID251 - a client of the world, until its end
        took: list[float] = []
        for round_ in range(8):
            await asyncio.sleep(4.0 + 0.31 * round_)
            leads = [writer for _, writer, _, _ in ledgers(world)][-1].split("-")[0]
            stopped_at = world.clock.now()
            await world.restart(leads)
            await asyncio.sleep(3 * SECOND_S)
            took.append(next_tick_at(world, stopped_at) - stopped_at)
        working.cancel()
        return took

    took: list[float] = run_world(play, a_pair(has_redis=has_redis))
    assert max(took) <= SECOND_S, took


def test_a_first_term_begins_with_one_list() -> None:
    """A scheduler needs only what it has read since it started, also for a ledger from which nothing was ever
    removed."""

    async def play(world: World) -> int:
        await world.launch("job", cpu="100m")
        await world.when(lambda it: it.status.phase is Phase.ASSIGNED)
        reads = [(read.verb, read.target) for read in world.injector.reads if read.role == "scheduler.reads"]
        return reads.count(("list", "allocations"))

    assert run_world(play, Setup(nodes=4, cpus=32, has_redis=False, replicas={"podworker": 0})) == 1


async def arrivals_for_ever(world: World) -> None:
    number = 0
    while True:
        await world.launch(f"job{number}", cpu="10m")
        number += 1
        await asyncio.sleep(0.4)


@pytest.mark.parametrize("number", BOUNDARIES)
def test_a_deposed_leader_commits_nothing(number: int) -> None:
    """A leader is frozen before any of its effects for twice its lease: none of its writes takes effect afterwards."""

    async def play(world: World) -> tuple[list[str], list[int]]:
        await arrivals(world)
        (struck,) = world.injector.struck
        # The standby has led since then, and the zombie has had time for its writes.
        epochs = [epoch for at, _, epoch, _ in ledgers(world) if at >= struck[0]]
        return written_by(world, f"{leader()}-1", world.last_fault_at), epochs

    written, epochs = run_world(play, a_pair(), faults=(Fault(Kind.FREEZE, leader(), number, "before"),))
    assert written == []
    assert epochs == sorted(epochs)


def test_waiting_work_starts_although_all_services_crash_at_the_end_it_waits_for() -> None:
    """The waiting object records the end, or the end is read again: a leader without memory admits this allocation,
    and no other."""

    async def play(world: World) -> tuple[list[Result | None], float]:
        world.kubelets.script = lambda _attempt, _rank: Script(runs_s=1.0)
        first = id_of(await world.launch("first", cpu="100m"))
        await world.launch("then", cpu="100m", after=[{"allocation": first}])
        await world.launch("never", cpu="100m", after=[{"allocation": first, "when": "failed"}])
        await world.when(lambda found: found.status.phase is Phase.TERMINATED, name="first")
        ended_at = world.clock.now()
        for name in [name for name in world.processes if name.startswith(("scheduler", "watcher"))]:
            world.crash(world.processes[name])
        ends = [await world.when(lambda found: found.status.result, name=name) for name in ("then", "never")]
        return [found.status.result for found in ends], world.clock.now() - ended_at

    setup = Setup(nodes=2, replicas={"scheduler": 2, "watcher": 2})
    results, took_s = run_world(play, setup)
    assert results == [Result.SUCCEEDED, Result.CANCELED]
    assert took_s <= LEASE_S + 5 * SECOND_S
