"""Each loop of each service is frozen, and the freeze is noticed within the loop's bound; nothing else is reported.

Noticed means: `/livez` names the loop, and the process does not renew its leader's lease. The loops are read from the
tables of the services, and the tasks of a process from its event loop. So no new loop and no task without a bound can
be forgotten.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from slipway.api import loops as api_loops
from slipway.crd.transitions import id_of
from slipway.errors import NotFoundError, TransientError
from slipway.kube.resources import LEASES
from slipway.podworker import loops as podworker_loops
from slipway.runtime import liveness
from slipway.runtime import service as service_loops
from slipway.runtime.liveness import Loop
from slipway.scheduler import loops as scheduler_loops
from slipway.watcher import loops as watcher_loops
from slipway.watcher import sweep
from slipway.watcher.leader_tasks import CLAIMS_S
from slipway.watcher.logarchiver import EXPIRY_S
from slipway.watcher.relay import Relay
from tests.simulation.scenario import has_ended
from tests.simulation.standstill import FreezingLoop, play
from tests.support.api_clients import Client
from tests.support.kubelet import Script
from tests.support.redis import an_id
from tests.support.world import NAMESPACE, REDIS, Setup, World

TABLES = {
    "api": api_loops.LOOPS,
    "scheduler": scheduler_loops.LOOPS,
    "podworker": podworker_loops.LOOPS,
    "watcher": watcher_loops.LOOPS,
}
LEASE_OF = {"scheduler": "slipway-scheduler-default", "watcher": "slipway-feed"}
WARM_UP_S = 10.0
ALIVE_MAX = 3
"""The number of running allocations; the oldest is deleted."""
PROBE_S = 10.0
FAILURES_MAX = 3
"""As in the chart: a process is restarted after this many failed probes in a row."""
LOOK_S = 5.0
PAUSE_MAX_S = {
    "claims": CLAIMS_S,
    "log-expiry": EXPIRY_S,
    "archives": sweep.PAUSE_MAX_S,
    "retention": 60.0,
    "sweep": 30.0,
    "follow": 12.0,
    "poll": 40.0,
}
"""The longest pause that a loop may have announced when it is frozen."""
AT_ONCE = {"follow-logs"}
"""Loops whose work is done before their first wait, so that nothing of them can stop."""
STRUCTURE = (
    "World.",
    "_live",
    "_serve",
    "compose.",
    "Watcher.run",
    "write_behind",  # it waits for the loop of that name, and for the stop
    "follow_audit",  # it waits for the stop alone, and wakes the loop of that name
    "_announce",
    "_fail_with",
    "_stop_with",
    "_consume",
    "WorkConsumer.run",
    "WorkConsumer._end_claim",
    "WorkConsumer._work",
    "WebhookDispatcher.run",
    "Event.wait",
    "ServiceStop.wait",
    "_wait",
    "PodLogs._run",
    "LogFollower.",
)
"""Tasks that wait for the stop or for their own tasks, or that something else bounds: no loops."""


async def arrivals(world: World) -> None:
    """Launch allocations of every kind for ever: gangs that start, end and are read."""
    ada = Client(world, "ada") if "api" in world.processes else None
    for number in itertools.count():
        name = f"job{number}"
        with suppress(TransientError, NotFoundError):
            if ada is not None:
                await ada.launch(name, key=name)
            else:
                await world.launch(name, cpu="10m", idleTimeout="1h")
            if number >= ALIVE_MAX:
                await world.delete(f"job{number - ALIVE_MAX}")
        await asyncio.sleep(0.5 if number < ALIVE_MAX else 10.0)


async def provoke(world: World, name: str) -> None:
    """Cause work for a loop that launches do not use."""
    if name == "streams":
        world.server.flush()
    if name == "candidacy":
        world.processes["scheduler"].cut_until = world.loop.time() + 20.0
    if name == "audit":
        for trail in world.audits.values():
            trail.offer({}, subject="a call")
    if name == "write-behind":
        for behind in world.behind.values():
            behind.offer_activity(an_id(), "web", world.clock.now())


def cases() -> list[tuple[str, Loop]]:
    return [
        (service, each)
        for service, table in TABLES.items()
        for each in (*table, *service_loops.LOOPS)
        if each.name not in AT_ONCE
    ]


def a_system(service: str, name: str) -> Setup:
    replicas = {"api": int(service == "api")}
    if name == "warm":
        replicas["scheduler"] = 2
    watcher = {"kubernetes_events": True}
    return Setup(nodes=4, cpus=32, replicas=replicas, api={"redis_url": REDIS}, watcher=watcher, is_whole=True)


async def noticed_after(world: World, role: str, name: str, within_s: float) -> float:
    """Seconds until `/livez` of the process names the loop."""
    began = world.clock.now()
    while world.clock.now() < began + within_s:
        await asyncio.sleep(LOOK_S)
        problems = world.healths[role].liveness().problems
        if any(each.partition(":")[0] == name for each in problems):
            return world.clock.now() - began
    raise AssertionError(f"loop {name} of the {role} stands still for {within_s:.0f} s, and /livez says nothing")


async def renewal(world: World, service: str) -> str:
    """The last renewal of the lease of a service with a leader; empty when no process holds it."""
    lease = await world.kube.get(LEASES, LEASE_OF[service], namespace=NAMESPACE)
    return (lease.spec.renew_time or "") if lease.spec.holder_identity else ""


async def standing_by(world: World) -> str:
    lease = await world.kube.get(LEASES, LEASE_OF["scheduler"], namespace=NAMESPACE)
    return "scheduler2" if (lease.spec.holder_identity or "").startswith("scheduler-") else "scheduler"


def freeze(service: str, loop: Loop) -> None:
    """Freeze the loop, and fail unless that is noticed in time."""

    async def story(world: World, freezer: FreezingLoop) -> None:
        working = asyncio.ensure_future(arrivals(world))
        await asyncio.sleep(WARM_UP_S)
        role = await standing_by(world) if loop.name == "warm" else service
        assert world.healths[role].liveness().ok
        freezer.freeze_loop(role, loop.name)
        await provoke(world, loop.name)
        promised_s = loop.bound_s + PAUSE_MAX_S.get(loop.name, 0.0)
        # Work must arrive before it can be old, and two checks must see it.
        await noticed_after(world, role, loop.name, promised_s + WARM_UP_S + 3 * LOOK_S)
        if service in LEASE_OF and loop.name != "warm":
            await asyncio.sleep(PROBE_S)
            before = await renewal(world, service)
            await asyncio.sleep(PROBE_S)
            assert (await renewal(world, service)) in ("", before), "the lease is renewed all the same"
        working.cancel()

    play(story, a_system(service, loop.name))


@pytest.mark.parametrize(("service", "loop"), cases(), ids=lambda it: it if isinstance(it, str) else it.name)
def test_a_loop_that_stands_still_is_noticed(service: str, loop: Loop) -> None:
    """`/livez` names the loop within its bound, and its process no longer leads."""
    freeze(service, loop)


def test_the_following_of_logs_has_nothing_that_could_stand_still() -> None:
    """The task is frozen from the start: the log of a new allocation is stored to its end all the same."""

    async def story(world: World, freezer: FreezingLoop) -> bool:
        freezer.freeze_loop("watcher", watcher_loops.FOLLOW_LOGS.name)
        world.kubelets.script = lambda _attempt, _rank: Script(runs_s=2.0)
        launched = await world.launch(cpu="10m")
        await world.when(lambda it: has_ended(it) and not it.metadata.finalizers)
        positions = await world.streams.logs.positions(id_of(launched))
        return bool(positions) and all(each.is_ended and each.number > 0 for each in positions.values())

    assert play(story, a_system("watcher", ""))


@pytest.mark.parametrize("service", TABLES)
def test_every_task_belongs_to_a_loop_of_the_table(service: str) -> None:
    """Every loop of the table runs, and every task belongs to one."""

    async def story(world: World, freezer: FreezingLoop) -> tuple[set[str], set[str]]:
        working = asyncio.ensure_future(arrivals(world))
        ran, without = set[str](), set[str]()
        for _ in range(8_000):
            await asyncio.sleep(0.0025)  # a hint takes some milliseconds
            for role in (role for role in world.healths if role.startswith(service)):
                ran |= {each.name.partition(":")[0] for each in world.healths[role].loops}
                alone = {where for name, where in freezer.tasks_of(role) if not name}
                without |= {where for where in alone if not where.startswith(STRUCTURE)}
        working.cancel()
        return ran, without

    ran, without = play(story, a_system(service, "warm" if service == "scheduler" else ""))
    assert without == set()
    assert ran == {each.name for each in (*TABLES[service], *service_loops.LOOPS)}


def test_a_heartbeat_that_does_not_reflect_progress_is_found_by_freezing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop beats from another task, whatever its own work does: the freeze of its work is not noticed."""
    real = Relay.step

    async def step(self: Relay) -> None:
        pulse = liveness.CURRENT.get()
        assert pulse is not None

        async def pretend() -> None:
            liveness.leave()
            while True:
                pulse.beat()
                await asyncio.sleep(1.0)

        if not hasattr(self, "pretending"):
            self.pretending = asyncio.ensure_future(pretend())  # pyright: ignore[reportAttributeAccessIssue]
        await real(self)

    monkeypatch.setattr(Relay, "step", step)
    with pytest.raises(AssertionError, match="livez says nothing"):
        freeze("watcher", watcher_loops.RELAY)


def test_a_loop_without_a_stated_bound_is_found_by_the_census(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that a service starts by itself is in no table."""
    real = Relay.step

    async def linger() -> None:
        liveness.leave()
        await asyncio.Event().wait()

    async def step(self: Relay) -> None:
        if not hasattr(self, "lingering"):
            self.lingering = asyncio.ensure_future(linger())  # pyright: ignore[reportAttributeAccessIssue]
        await real(self)

    monkeypatch.setattr(Relay, "step", step)
    with pytest.raises(AssertionError, match="linger"):
        test_every_task_belongs_to_a_loop_of_the_table("watcher")


# --- and nothing else is noticed -------------------------------------------------------------------------------------

CROWD = 100
AWAY_S = 300.0
"""More than twice the longest bound."""


async def api_away(world: World) -> None:
    for process in world.processes.values():
        process.cut_until = world.loop.time() + AWAY_S
    await asyncio.sleep(AWAY_S)


async def redis_away(world: World) -> None:
    world.server.absent = True
    await asyncio.sleep(AWAY_S)
    world.server.absent = False


async def slow(world: World) -> None:
    """Each call takes three seconds, as on a busy machine, a slow network or a slow server."""
    before, world.injector.latency_s = world.injector.latency_s, 3.0
    await asyncio.sleep(AWAY_S)
    world.injector.latency_s = before


async def paused(world: World) -> None:
    """Every process stops for longer than any bound and continues, as on a laptop that slept, or with an event loop
    that hung."""
    for process in list(world.processes.values()):
        world.freeze(process, AWAY_S / 2)
    await asyncio.sleep(AWAY_S / 2)


async def crowd(world: World) -> None:
    """Launch many allocations at once."""
    for number in range(CROWD):
        await world.launch(f"crowd{number}", cpu="10m")
    await asyncio.sleep(AWAY_S / 4)


@pytest.mark.parametrize("injector", [api_away, redis_away, slow, paused, crowd], ids=lambda it: it.__name__)
def test_nothing_that_a_restart_would_not_mend_restarts_a_service(
    injector: Callable[[World], Awaitable[None]],
) -> None:
    """Three probes in a row never fail, neither during the fault nor afterwards."""

    async def story(world: World, _freezer: FreezingLoop) -> list[str]:
        working = asyncio.ensure_future(arrivals(world))
        await asyncio.sleep(WARM_UP_S)
        restarts: list[str] = []
        failures = dict.fromkeys(world.healths, 0)

        async def probes() -> None:
            while True:
                await asyncio.sleep(PROBE_S)
                for role, health in world.healths.items():
                    # A paused process answers no probe; what pauses it pauses the prober too, or wants the process to
                    # end.
                    if world.processes[role].is_frozen:
                        continue
                    why = health.standstill()
                    failures[role] = failures[role] + 1 if why else 0
                    if failures[role] >= FAILURES_MAX:
                        restarts.append(f"{role}: {why}")

        probing = asyncio.ensure_future(probes())
        await injector(world)
        await asyncio.sleep(AWAY_S / 2)
        probing.cancel()
        working.cancel()
        return restarts

    assert play(story, a_system("api", "")) == []
