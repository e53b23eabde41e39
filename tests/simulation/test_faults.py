"""The faults themselves: each has its effect, each is injected somewhere, and a few of each family change nothing in
the end.

Whole families are `python -m tests.simulation --families NAME`.
"""

import asyncio
import functools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.errors import (
    AlreadyExistsError,
    ControlPlaneError,
    DeadlineError,
    DeniedError,
    ExpiredError,
    QuotaExceededError,
    StaleError,
    ThrottledError,
    UnavailableError,
)
from slipway.kube.errors import Verb
from slipway.kube.ports import WatchType
from slipway.kube.resources import CONFIG_MAPS
from slipway.streams.memory_server import ZERO
from tests.simulation.points import REPLICATED, Family, pairs, points, zombies
from tests.simulation.run import Outcome, run
from tests.simulation.scenarios import SCENARIOS
from tests.support.fault_answers import error_of
from tests.support.fault_kinds import Effect, Fault, Kind
from tests.support.fault_redis import FaultyServer
from tests.support.fault_watch import Watched
from tests.support.loop import SimLoop
from tests.support.small_cluster import a_client, a_core, furnish
from tests.support.virtual_time import VirtualClock, run_virtual
from tests.support.world import RESTART_S, Setup, World, run_world
from tests.support.world_clock import ProcessClock

TAKEN = 2
"""Points of each family that this test plays."""
ONLY_IN_PAIRS = {Kind.THAW}


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@functools.cache
def base(name: str, replicas: int) -> Outcome:
    """The run without faults."""
    return run(name, 1, replicas=replicas)


def assert_fine(outcome: Outcome) -> None:
    """Check that there is no violation."""
    assert not outcome.violations, f"python -m tests.simulation {outcome.replay}\n" + "\n".join(outcome.violations)


def an_effect(verb: str = "update", target: str = "pods", *, number: int = 1, role: str = "watcher") -> Effect:
    return Effect(role=role, process=f"{role}-1", number=number, verb=verb, target=target)


@pytest.mark.parametrize(
    ("kind", "verb", "meaning"),
    [
        (Kind.CONFLICT, Verb.UPDATE, StaleError),
        (Kind.EXISTS, Verb.CREATE, AlreadyExistsError),
        (Kind.THROTTLED, Verb.LIST, ThrottledError),
        (Kind.SERVER_ERROR, Verb.GET, UnavailableError),
        (Kind.UNAVAILABLE, Verb.BIND, UnavailableError),
        (Kind.GATEWAY, Verb.PATCH, UnavailableError),
        (Kind.SERVER_TIMEOUT, Verb.CREATE, UnavailableError),
        (Kind.RESET_APPLIED, Verb.DELETE, UnavailableError),
        (Kind.TIMEOUT_APPLIED, Verb.CREATE, DeadlineError),
        (Kind.DENIED, Verb.CREATE, DeniedError),
        (Kind.UNAUTHORIZED, Verb.GET, DeniedError),
        (Kind.QUOTA, Verb.CREATE, QuotaExceededError),
        (Kind.EXPIRED, Verb.LIST, ExpiredError),
    ],
)
def test_an_answer_is_read_as_the_real_client_reads_it(
    kind: Kind, verb: Verb, meaning: type[ControlPlaneError]
) -> None:
    """The error for a Status of the server follows from the same table as in the real client."""
    assert type(error_of(kind, an_effect(verb.value))) is meaning


def test_a_throttled_client_is_told_the_retry_after() -> None:
    """A throttled request has a Retry-After."""
    error = error_of(Kind.THROTTLED, an_effect())
    assert isinstance(error, ThrottledError)
    assert error.retry_after_s == 1.0


def test_every_kind_of_fault_is_laid_over_something() -> None:
    """Every kind of fault is in a family, and occurs although points are drawn by chance."""
    effects = [
        an_effect(verb, target, number=number, role=role)
        for role in ("watcher", "podworker", "scheduler")
        for verb in ("create", "update", "delete", "bind")
        for target in ("pods", "leases")
        for number in range(1, 60)
    ]
    effects += [an_effect("list", number=number, role="watcher.reads") for number in range(1, 60)]
    effects += [an_effect("watch", number=number, role="watcher.pods") for number in range(1, 60)]
    effects += [an_effect("watch", "feed", number=number, role="scheduler.feed") for number in range(1, 60)]
    met = {fault.kind for fault in points(effects, list(Family), has_redis=True)}
    assert set(Kind) - met == ONLY_IN_PAIRS


def test_every_scenario_stands_in_the_docs() -> None:
    """Each scenario has its row in docs/reliability.md."""
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert [name for name in SCENARIOS if f"| `{name}` |" not in page] == []


def test_a_point_is_read_as_it_is_written() -> None:
    """The text of a point in a failure can be parsed and played again."""
    for fault in (Fault(Kind.STALL, "watcher.pods", 131), Fault(Kind.TIMEOUT_APPLIED, "scheduler2", 7, "after")):
        assert Fault.parse(str(fault)) == fault


@pytest.mark.parametrize("family", Family)
def test_a_fault_of_each_family_changes_nothing_in_the_end(family: Family) -> None:
    """A sample of each family."""
    replicas = 2 if family in REPLICATED else 1
    every = list(points(base("launch-1", replicas).effects, [family], has_redis=True))
    assert every
    for fault in every[len(every) // 3 :: len(every) // TAKEN + 1][:TAKEN]:
        assert_fine(run("launch-1", 1, (fault,), replicas=replicas))


def test_a_deposed_leader_that_resumes_at_any_boundary_commits_nothing() -> None:
    """A leader is held before it commits, and continues just before each effect of its successor (V11)."""
    every = [
        fault
        for fault in points(base("launch-1", 2).effects, [Family.HOLD], has_redis=True)
        if fault.role.startswith("scheduler")
    ]
    held = run("launch-1", 1, (every[-1],), replicas=2)
    assert_fine(held)
    woken = list(zombies(held.effects, every[-1]))
    assert woken
    for pair in woken[:TAKEN]:
        assert_fine(run("launch-1", 1, pair, replicas=2))


def test_a_fault_during_the_recovery_from_another_changes_nothing_in_the_end() -> None:
    """A sample of pairs."""
    effects = base("restart", 1).effects
    every = list(points(effects, Family, has_redis=True))
    for pair in pairs(effects, every, TAKEN + 1, 3, has_redis=True):
        assert_fine(run("restart", 1, pair))


def test_who_is_killed_twice_comes_back_once() -> None:
    """A scenario may kill a process that a fault has killed already: there are never two of one replica."""

    async def play(world: World) -> tuple[str, float]:
        watcher = world.processes["watcher"]
        world.crash(watcher)
        killed_at = world.last_fault_at
        await asyncio.sleep(RESTART_S / 2)
        world.crash(watcher)
        await asyncio.sleep(2 * RESTART_S)
        return world.processes["watcher"].name, world.last_fault_at - killed_at

    assert run_world(play, Setup()) == ("watcher-2", 0.0)


def test_a_replica_that_takes_over_lacks_what_came_last() -> None:
    """It lacks entries, and their acknowledgements and deliveries; its clock is behind."""

    async def story() -> None:
        server = FaultyServer(VirtualClock())
        server.create_group("stream", "group", make=True)
        for number in range(4):
            server.add("stream", {"n": b"%d" % number})
        server.deliver("stream", "group", "me", 10)
        server.add("stream", {"n": b"4"})
        before = server.clock.now()
        server.fail_over(2)
        assert [fields["n"] for _, fields in server.after("stream", ZERO, 10)] == [b"0", b"1", b"2"]
        group = server.group("stream", "group")
        assert group is not None
        assert not group.pending
        assert server.clock.now() < before

    run_virtual(story)


def test_a_coalescing_watch_tells_the_last_state_only() -> None:
    """Of three changes only the last is shown; a created and deleted object is not shown; a deleted object is shown
    as deleted."""

    async def story() -> None:
        clock = VirtualClock()
        kube = a_client(a_core(clock.now))
        await furnish(kube)

        async def say(name: str, word: str) -> None:
            await kube.patch(CONFIG_MAPS, name, {"data": {"word": word}}, namespace="default")

        for name in ("kept", "gone"):
            await kube.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace="default")
        since = str(kube.core.version)
        for word in ("one", "two", "three"):
            await say("kept", word)
        await kube.delete(CONFIG_MAPS, "gone", namespace="default")
        await kube.create(CONFIG_MAPS, {"metadata": {"name": "brief"}}, namespace="default")
        await kube.delete(CONFIG_MAPS, "brief", namespace="default")
        told = Watched(kube, CONFIG_MAPS, since, None, "").last_states()
        seen = {event.object.metadata.name: event for event in told if event.object is not None}
        assert set(seen) == {"kept", "gone"}
        assert seen["kept"].object is not None
        assert seen["kept"].object.data == {"word": "three"}
        assert seen["gone"].type is WatchType.DELETED

    run_virtual(story)


def test_a_clock_that_went_wrong_is_set_right_again() -> None:
    """After a jump or another rate the true time returns; the monotonic clock never goes back."""
    loop = SimLoop()

    async def story() -> None:
        clock = ProcessClock(loop)
        true = clock.now
        begun = true()
        clock.jump(600.0)
        clock.run_at(1.5)
        told = clock.monotonic()
        await asyncio.sleep(10.0)
        assert clock.monotonic() - told == pytest.approx(15.0)
        assert clock.now() - begun == pytest.approx(615.0)
        clock.run_at(1.0)
        assert clock.monotonic() - told == pytest.approx(15.0)
        clock.set_right()
        assert clock.now() - begun == pytest.approx(10.0)

    loop.run(story())
