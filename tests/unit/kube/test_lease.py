"""The elector: one leader, soon replaced, never after its deadline; on virtual time over the local cluster's core."""

import asyncio
from itertools import pairwise

import pytest

from slipway.errors import InvariantError, StaleError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.lease import Leadership, LeaseTiming
from slipway.kube.resources import LEASES
from slipway.runtime import service
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.runtime.liveness import Loop
from slipway.runtime.service import ServiceStop
from tests.support.candidates import LOOK_S, RETRY_S, Candidate, World, in_world, now
from tests.support.kube_core import CoreKube
from tests.support.virtual_time import VirtualClock, run_virtual


def test_the_first_candidate_leads_at_once() -> None:
    """The first candidate on a fresh cluster leads at once: it creates and holds the Lease; the others stand by."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(0.1)
        assert first.leads
        others = [world.join(name)[0] for name in "bcd"]
        for _ in range(600):
            await asyncio.sleep(1)
            assert first.leads
            assert not any(other.leads for other in others)
        lease = await world.lease()
        assert lease.spec.holder_identity == "a"
        assert lease.spec.lease_duration_seconds == 15
        assert lease.spec.lease_transitions == 0
        assert others[0].elector.holder == "a"

    in_world(check)


def test_a_graceful_end_hands_over_within_a_look() -> None:
    """The holder releases after its work has ended; another leads half a second later at most."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(1)
        second, _ = world.join("b")
        await asyncio.sleep(20)
        ended = now()
        first.stop.set()
        await asyncio.sleep(LOOK_S + 0.01)
        assert not first.leads
        assert second.leads
        assert first.terms[0][1] == pytest.approx(ended)
        assert (await world.lease()).spec.lease_transitions == 1

    in_world(check)


def test_a_wakeup_hands_over_at_once() -> None:
    """A candidate that is told of the release does not wait for the next look; a nudge without a release changes
    nothing."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(1)
        second, _ = world.join("b")
        await asyncio.sleep(20)
        second.elector.nudge()
        await asyncio.sleep(0.01)
        assert first.leads
        first.stop.set()
        await asyncio.sleep(0.01)
        second.elector.nudge()
        await asyncio.sleep(0.01)
        assert second.leads

    in_world(check)


@pytest.mark.parametrize("lived_s", [0.01 * step for step in range(0, 220, 11)])
def test_a_dead_holder_is_replaced_within_its_duration_and_a_look(lived_s: float) -> None:
    """A holder that dies anywhere between two renewals is replaced after its duration is over, at most one look
    later."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(1)
        second, _ = world.join("b")
        await asyncio.sleep(10 + lived_s)
        first.cut_off()
        died = now()
        while not second.terms and not second.leads:  # noqa: ASYNC110 - virtual time, and nobody tells
            await asyncio.sleep(0.01)
        assert 15 - RETRY_S <= now() - died <= 15 + LOOK_S + 0.02
        assert first.terms[0][1] < now()

    in_world(check)


def test_a_dead_holder_is_respected_for_the_whole_duration() -> None:
    """A crash releases nothing: the successor waits until it has itself seen 15 s of silence, and not much longer."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(1)
        first.cut_off()
        died = now()
        second, _ = world.join("b")
        await asyncio.sleep(14.99)
        assert not second.leads
        await asyncio.sleep(2 * RETRY_S)
        assert second.leads
        assert second.terms == []
        assert now() - died < 20

    in_world(check)


@pytest.mark.parametrize("hangs", [True, False])
def test_work_is_cancelled_at_the_renew_deadline(hangs: bool) -> None:
    """Cut off from the server, the leader stops by itself after 10 s at most, also while a renewal hangs."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(5)
        second, _ = world.join("b")
        await asyncio.sleep(1)
        cut = now()
        if hangs:
            first.cut_off()
        else:
            first.refuse()
        await asyncio.sleep(60)
        assert len(first.terms) == 1
        assert first.terms[0][1] - cut <= 10
        assert second.leads
        assert not first.leads
        first.reconnect()
        second.stop.set()
        await asyncio.sleep(30)
        assert first.leads

    in_world(check)


@pytest.mark.parametrize("timing", [LeaseTiming(), LeaseTiming(steady_s=3.0)], ids=["fixed", "steady"])
def test_two_never_lead_at_once(timing: LeaseTiming) -> None:
    """Through cuts of every length, with wall clocks hours apart, there is at most one leader at any time."""

    async def check(world: World) -> None:
        random = SeededRandom(11)
        candidates = [
            world.join(name, VirtualClock(skew_s=skew), timing=timing)[0]
            for name, skew in [("a", 0.0), ("b", 7200.0), ("c", -7200.0)]
        ]
        led: set[str] = set()
        for _ in range(4000):
            await asyncio.sleep(0.25)
            leaders = [candidate.elector.identity for candidate in candidates if candidate.leads]
            assert len(leaders) <= 1
            led.update(leaders)
            chosen = candidates[random.randrange(3)]
            match random.randrange(60):
                case 0:
                    chosen.cut_off()
                case 1:
                    chosen.refuse()
                case 2:
                    chosen.answer_nothing()
                case 3 | 4:
                    chosen.reconnect()
                case _:
                    pass
        assert led == {"a", "b", "c"}
        spans = sorted(term for candidate in candidates for term in candidate.terms)
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))

    in_world(check)


def test_a_process_that_wakes_up_late_does_not_lead() -> None:
    """A pause is a jump of its monotonic clock: `is_leader` is False before anything else runs."""

    async def check(world: World) -> None:
        clock = VirtualClock()
        first, _ = world.join("a", clock)
        await asyncio.sleep(1)
        assert first.leads
        leadership = first.leadership
        assert leadership is not None
        leadership.check()
        assert 0 < leadership.remaining_s() <= 10
        clock.jump_s = 20
        assert not first.leads
        assert not leadership.is_valid()
        assert leadership.remaining_s() == 0
        with pytest.raises(StaleError):
            leadership.check()

    in_world(check)


def test_a_stolen_lease_ends_the_term() -> None:
    """A process that overwrites the Lease wins: the holder sees it at its next renewal and stops."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(1)
        kube = CoreKube(world.core, random=SeededRandom(0))
        stolen = {"spec": {"holderIdentity": "thief", "leaseTransitions": 9}}
        await kube.patch(LEASES, "lease", stolen, namespace="default")
        await asyncio.sleep(RETRY_S)
        assert not first.leads
        assert len(first.terms) == 1
        await asyncio.sleep(20)
        assert first.leads
        assert (await world.lease()).spec.lease_transitions == 10

    in_world(check)


def test_a_deleted_lease_is_made_again() -> None:
    """A deleted Lease is created again; the interruption is short."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(1)
        await CoreKube(world.core, random=SeededRandom(0)).delete(LEASES, "lease", namespace="default")
        await asyncio.sleep(2 * RETRY_S)
        assert first.leads

    in_world(check)


def test_a_lost_answer_is_not_a_lost_lease() -> None:
    """A renewal that was applied but not answered is recognized as ours."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(1)
        lost = 0

        async def lose(verb: Verb, _plural: str) -> None:
            nonlocal lost
            if verb is Verb.UPDATE:
                lost += 1
                if lost % 2:
                    raise UnavailableError("reset")

        first.kube.after = lose
        await asyncio.sleep(120)
        assert first.leads
        assert first.terms == []
        assert lost > 20

    in_world(check)


def test_a_renewal_on_its_way_does_not_keep_the_lease_from_being_given_up() -> None:
    """A release does not wait for the answer of a renewal in flight; the server applies the renewal first, then the
    release."""

    async def check(world: World) -> None:
        first, _ = world.join("a")
        await asyncio.sleep(1)
        second, _ = world.join("b")

        is_under_way = asyncio.Event()

        async def answer_never(verb: Verb, _plural: str) -> None:
            if verb is Verb.UPDATE:
                first.kube.after = answer_at_once
                is_under_way.set()
                await asyncio.Event().wait()

        async def answer_at_once(_verb: Verb, _plural: str) -> None:
            await asyncio.sleep(0)

        first.kube.after = answer_never
        await is_under_way.wait()
        first.stop.set()
        await asyncio.sleep(LOOK_S + 0.01)
        assert not first.leads
        assert second.leads

    in_world(check)


def test_leading_work_that_returns_gives_the_lease_up() -> None:
    """When leading work returns, the lease is released, then its error is raised; another candidate may lead at
    once."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            world = World(tasks)
            candidate = Candidate(world, "a", VirtualClock())

            async def fail(_: Leadership) -> None:
                raise InvariantError("broken")

            with pytest.raises(InvariantError):
                await candidate.elector.run(fail, candidate.stop)
            assert (await world.lease()).spec.holder_identity is None

            async def refused(leadership: Leadership) -> None:
                candidate.elector.leadership = None
                leadership.check()

            tasks.create_task(candidate.elector.run(refused, candidate.stop))
            await asyncio.sleep(10)
            candidate.stop.set()

    run_virtual(main)


def test_work_that_ignores_the_stop_is_cancelled_after_the_drain() -> None:
    """A leader has `drain_s` to return by itself; the lease is held for that time and then released."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            world = World(tasks)
            candidate = Candidate(world, "a", VirtualClock())

            async def stubborn(_: Leadership) -> None:
                await asyncio.Event().wait()

            running = tasks.create_task(candidate.elector.run(stubborn, candidate.stop, drain_s=30))
            await asyncio.sleep(1)
            candidate.stop.set()
            await asyncio.sleep(29)
            assert candidate.leads
            await running
            assert now() == pytest.approx(31)
            assert (await world.lease()).spec.holder_identity is None

    run_virtual(main)


def test_cancelling_the_elector_releases() -> None:
    """A cancelled elector still releases the lease."""

    async def check(world: World) -> None:
        first, running = world.join("a")
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.sleep(0.1)
        assert first.terms
        assert (await world.lease()).spec.holder_identity is None

    in_world(check)


def test_once_leads_over_a_free_lease_and_releases() -> None:
    """With `--once` and a free lease the process leads, ends its work and releases."""

    async def check(world: World) -> None:
        once = Candidate(world, "once", VirtualClock())
        ran: list[int] = []

        async def lead(leadership: Leadership) -> None:
            leadership.check()
            ran.append(leadership.term)

        assert await once.elector.lead_once(lead)
        assert await once.elector.lead_once(lead)
        assert ran == [0, 1]
        assert now() < 0.1
        assert (await world.lease()).spec.holder_identity is None

    in_world(check)


def test_once_waits_for_a_dead_holder_and_not_for_a_live_one() -> None:
    """--once takes a dead holder's lease after one lease time; for a live holder it gives up soon."""

    async def check(world: World) -> None:
        holder, _ = world.join("a")
        await asyncio.sleep(1)
        once = Candidate(world, "once", VirtualClock())

        async def lead(_: Leadership) -> None:
            return None

        begun = now()
        assert not await once.elector.lead_once(lead)
        assert now() - begun <= 3 * RETRY_S
        holder.cut_off()
        await asyncio.sleep(0.1)
        begun = now()
        assert await once.elector.lead_once(lead)
        assert 13 <= now() - begun <= 15 + 2 * RETRY_S

    in_world(check)


def test_a_leader_may_renew_less_often_than_it_would_try_again() -> None:
    """A leader may renew less often than it would retry, to spare the API server writes. A failed renewal is retried
    soon, and the term continues."""

    async def check(world: World) -> None:
        timing = LeaseTiming(renew_s=4.0)
        seldom, _ = world.join("seldom", timing=timing)
        renewals: list[float] = []

        async def note(verb: Verb, _plural: str) -> None:
            if verb is Verb.UPDATE:
                renewals.append(now())

        seldom.kube.before = note
        await asyncio.sleep(60)
        pauses = [after - before for before, after in pairwise(renewals)]
        assert all(4.0 * 0.8 <= pause <= 4.01 for pause in pauses)
        seldom.refuse()
        await asyncio.sleep(4.1)
        seldom.kube.before = note
        renewals.clear()
        await asyncio.sleep(RETRY_S)
        assert renewals
        assert seldom.leads
        assert not seldom.terms

    in_world(check)


def test_a_candidate_that_is_told_to_end_ends_also_when_its_work_fails_by_that() -> None:
    """A candidate that is told to end also ends when its work fails because of that, also under a loop that survives
    failures; otherwise it would lead and renew for ever without work."""

    async def check(world: World) -> None:
        clock, stop = VirtualClock(), ServiceStop()
        candidate = Candidate(world, "a", clock)

        async def lead(_leadership: Leadership) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise IndexError("while it ended")

        running = asyncio.ensure_future(
            service.loop(
                Loop(name="lease", bound_s=60.0, moves="each renewal"),
                lambda: candidate.elector.run(lead, stop),
                clock=clock,
                health=ProcessHealth(clock),
                stop=stop,
                min_interval_s=0.0,
                max_backoff_s=1.0,
            )
        )
        await asyncio.sleep(1)
        assert candidate.leads
        running.cancel()
        await asyncio.wait({running}, timeout=5)
        stop.set()
        assert running.cancelled()

    in_world(check)


STEADY = LeaseTiming(steady_s=3.0)


@pytest.mark.parametrize("lived_s", [0.15 * step for step in range(8)])
def test_a_dead_holder_that_was_prompt_is_replaced_soon(lived_s: float) -> None:
    """A dead holder that renewed in time is replaced within three seconds and a look, with at most one write per
    second; its successor has a longer lease at first."""

    async def check(world: World) -> None:
        first, _ = world.join("a", timing=STEADY)
        await asyncio.sleep(1)
        second, _ = world.join("b", timing=STEADY)
        assert (await world.lease()).spec.lease_duration_seconds == 15
        written: list[float] = []

        async def note(verb: Verb, _plural: str) -> None:
            if verb is Verb.UPDATE:
                written.append(now())

        first.kube.before = note
        await asyncio.sleep(60)
        assert len(written) <= 60
        assert (await world.lease()).spec.lease_duration_seconds == 3
        await asyncio.sleep(lived_s)
        first.cut_off()
        died = now()
        while not second.leads:  # noqa: ASYNC110 - virtual time, and nobody tells
            await asyncio.sleep(0.01)
        assert 3 - STEADY.period_s <= now() - died <= 3 + LOOK_S + 0.02
        assert first.terms[0][1] < now()
        assert (await world.lease()).spec.lease_duration_seconds == 15

    in_world(check)


@pytest.mark.parametrize(("late_s", "asked_s"), [(0.05, 3), (0.9, 6), (1.9, 9), (3.9, 15)])
def test_a_holder_whose_renewals_are_late_asks_for_more(late_s: float, asked_s: int) -> None:
    """A holder whose renewals are late requests a longer lease and keeps its term. After an hour without late renewals
    the lease is short again."""

    async def check(world: World) -> None:
        first, _ = world.join("a", timing=STEADY)
        await asyncio.sleep(0.1)

        async def be_slow(verb: Verb, _plural: str) -> None:
            if verb is Verb.UPDATE:
                await asyncio.sleep(late_s)

        first.kube.before = be_slow
        world.join("b", timing=STEADY)
        await asyncio.sleep(60)
        assert (await world.lease()).spec.lease_duration_seconds == asked_s
        assert first.leads
        assert first.terms == []
        first.reconnect()
        await asyncio.sleep(3600)
        assert (await world.lease()).spec.lease_duration_seconds == 3
        assert first.terms == []

    in_world(check)


def test_a_shorter_lease_counts_from_when_it_is_asked_for() -> None:
    """A shorter lease is valid from its request on: others see it even when its answer is lost, so the holder trusts
    its last renewal no longer than they do."""

    async def check(world: World) -> None:
        first, _ = world.join("a", timing=STEADY)
        second, _ = world.join("b", timing=STEADY)
        is_lost = asyncio.Event()

        async def lose_the_short_one(verb: Verb, _plural: str) -> None:
            if verb is Verb.UPDATE and (await world.lease()).spec.lease_duration_seconds == 3:
                is_lost.set()
                await asyncio.Event().wait()

        first.kube.after = lose_the_short_one
        await is_lost.wait()
        assert 0 < first.elector.remaining_s() <= 2.001
        while not second.leads:
            assert not (first.leads and second.leads)
            await asyncio.sleep(0.01)
        assert not first.leads

    in_world(check)


def test_timings_must_make_sense() -> None:
    """The timings of a lease must be valid: duration > renew deadline > retry > 0, a renewal before its deadline, and
    steady <= duration."""
    with pytest.raises(InvariantError):
        LeaseTiming(steady_s=16)
    with pytest.raises(InvariantError):
        LeaseTiming(renew_deadline_s=10, renew_s=10)
    with pytest.raises(InvariantError):
        LeaseTiming(duration_s=10, renew_deadline_s=10)
    with pytest.raises(InvariantError):
        LeaseTiming(renew_deadline_s=2, retry_s=2)
