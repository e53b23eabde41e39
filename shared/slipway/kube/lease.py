"""Leader election on a Kubernetes Lease.

Owns one Lease object: acquiring, renewing, losing and releasing it. Must not know what the leader does.

Promises
- `is_leader()` is True only within the renew deadline (two thirds of the duration) after the start of the last
  renewal that the server confirmed, by the monotonic clock; so a paused process that wakes up late reads False at once.
- Nobody takes a lease over before they have themselves seen it unchanged for its whole duration: wall clocks are
  written for people and never compared. Clocks may differ by any amount, but not run at rates that differ by half.
- The holder chooses the duration, and writes it: 15 s at the beginning of its term, and 3 s (`steady_s`) once its
  renewals have been prompt. One whose renewals come late, because its loop is busy or the API server slow, asks for so
  much more: three times what the latest of them was late, up to 15 s. So a dead leader is replaced soon, and a slow
  one stays.
- Leading work is cancelled at once when a renewal shows another holder or the renew deadline passes, also while a
  renewal hangs.
- The first attempt is immediate. A leader renews each period (2 s, or 1.2 s where it may become steady; up to a fifth
  less), but for a renewal that failed: that is tried again after a retry period. Who waits looks more
  often (0.5 s, up to a fifth less), and at the very moment at which a silent holder's time is over. So a holder that
  dies is replaced at most its duration and one look later; one that ends releases, and is replaced within a look, or
  at a `nudge`.
- Every write is a compare-and-swap; the Lease is created when it is missing.
- A process whose loops stand still neither takes a lease nor keeps one (`health`): the lease is released at the next
  renewal, and another process leads. Renewals and looks are moves of the loop that runs the elector.
- Work that does not end within `END_S` of its cancellation ends the process: until then it could come back to life
  beside the next leader.

Not promised: a fence. Two processes may believe that they lead for an instant; what a leader writes must carry an
epoch that the server compares.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

import msgspec

from slipway.crd.meta import ObjectMeta
from slipway.errors import (
    AlreadyExistsError,
    ControlPlaneError,
    InvariantError,
    NotFoundError,
    StaleError,
)
from slipway.kube.objects import Lease, LeaseSpec
from slipway.kube.ports import KubeApi
from slipway.kube.resources import LEASES
from slipway.kube.scope import StopSignal, raise_only
from slipway.model.times import format_time
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.health import ProcessHealth
from slipway.runtime.tasks import TaskGroup

RELEASE_TIMEOUT_S = 2.0
END_S = 30.0
"""Within so much the work of a term that is over has to end."""
PAUSED_S = 1.0
"""A timer that is late by more says that the whole process stood still."""
JITTER = 0.2
"""The part of a period that chance may take away."""
STEADY_RENEWALS = 5
"""So many renewals of a term come before its lease may become short."""
LATE_WINDOW = 150
"""The latest of so many renewals is remembered, and that of as many before, of earlier terms too: what stands still now
and then does so again."""
LATE_PARTS = 3
"""A lease bears what so many times the latest renewal was late."""
LATE_FREE_S = 0.1
"""What is late by no more is prompt."""
RENEW_PART, RETRY_PART = 0.4, 1 / 6
"""Of a short lease: how often it is renewed, and how soon a renewal that failed is tried again."""
_INSTANT_S = 0.001
"""So that the holder's time is over beyond rounding."""

_log = log.get_logger(__name__)


class LeaseTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: how long a silent holder is respected, how long a leader trusts its last renewal, how soon it tries
    again, how often who waits looks at the lease, how often a leader renews (0: as soon as it would try again), and how
    long a silent holder is respected whose renewals were prompt (0: as long as any)."""

    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0
    look_s: float = 0.5
    renew_s: float = 0.0
    steady_s: float = 0.0

    @property
    def period_s(self) -> float:
        """Between two renewals, at most."""
        return self.steady_s * RENEW_PART if self.steady_s else self.renew_s or self.retry_s

    @property
    def again_s(self) -> float:
        """After a renewal that failed."""
        return min(self.retry_s, self.steady_s * RETRY_PART) if self.steady_s else self.retry_s

    def __post_init__(self) -> None:
        if not self.duration_s > self.renew_deadline_s > self.retry_s > 0:
            raise InvariantError(f"a lease needs duration > renew deadline > retry > 0, not {self}")
        if self.renew_s >= self.renew_deadline_s:
            raise InvariantError(f"a lease is renewed before its renew deadline, not {self}")
        if not 0 <= self.steady_s <= self.duration_s:
            raise InvariantError(f"a steady lease is no longer than any other, not {self}")


class Leadership:
    """One term: valid from acquiring the lease until it is lost. Ask it before every effect."""

    def __init__(self, elector: "LeaseElector", term: int) -> None:
        self._elector = elector
        self.term = term
        """`leaseTransitions` of this term; it begins at 0 again when the Lease is deleted, so it fences nothing."""

    def is_valid(self) -> bool:
        """Whether this process still leads, in this same term."""
        return self._elector.is_leader() and self._elector.leadership is self

    def remaining_s(self) -> float:
        """Seconds for which this will stay valid without another renewal."""
        return self._elector.remaining_s() if self.is_valid() else 0.0

    def check(self) -> None:
        """Raises StaleError when this process no longer leads."""
        if not self.is_valid():
            raise StaleError(f"no longer the holder of lease {self._elector.name}")


Lead = Callable[[Leadership], Awaitable[None]]


class LeaseElector:
    """One candidate for one lease. `identity` must differ between processes, also between restarts."""

    def __init__(
        self,
        api: KubeApi,
        name: str,
        identity: str,
        *,
        namespace: str,
        clock: Clock,
        random: Random,
        timing: LeaseTiming | None = None,
        health: ProcessHealth | None = None,
    ) -> None:
        self.name = name
        self.identity = identity
        self.timing = timing or LeaseTiming()
        self.leadership: Leadership | None = None
        self._api = api
        self._namespace = namespace
        self._clock = clock
        self._random = random
        self._health = health
        self._was_still = False
        self._overdue: asyncio.TimerHandle | None = None
        """ends the process unless the work of a term that is over has ended by then"""
        self._answers_since: float | None = None
        self._lease: Lease | None = None
        self._seen_at = 0.0
        self._leads_until: float | None = None
        """by the last renewal that was confirmed (monotonic seconds); None: it does not lead"""
        self._late_s = (0.0, 0.0)
        """by how many seconds renewals came late at most: those of the window before, and those of this one"""
        self._counted = 0
        self._renewals = 0
        """of this term"""
        self._nudged = asyncio.Event()

    # --- what a caller may ask ----------------------------------------------------------------------------------

    def is_leader(self) -> bool:
        """Whether the lease is ours beyond doubt at this instant."""
        return self.remaining_s() > 0

    def remaining_s(self) -> float:
        """Seconds left until `is_leader` turns False unless a renewal is confirmed before."""
        if self._leads_until is None:
            return 0.0
        return max(0.0, self._leads_until - self._clock.monotonic())

    @property
    def holder(self) -> str:
        """The holder as last read; empty when there is none or nothing was read yet."""
        return (self._lease.spec.holder_identity if self._lease else None) or ""

    @property
    def silent_s(self) -> float:
        """Seconds since the lease was last seen to change; 0.0 before it was ever read."""
        return self._clock.monotonic() - self._seen_at if self._lease is not None else 0.0

    @property
    def is_overdue(self) -> bool:
        """Whether a renewal of the holder is missing, as far as is known here."""
        return self.silent_s > 2 * self.timing.period_s

    @property
    def answered_since(self) -> float:
        """From when on the API server has answered each of our calls, monotonic; `inf` when it does not."""
        return math.inf if self._answers_since is None else self._answers_since

    def nudge(self) -> None:
        """Somebody says that the lease is free: who waits looks now."""
        self._nudged.set()

    async def run(self, lead: Lead, stop: StopSignal, *, drain_s: float = 10.0) -> None:
        """Competes until `stop`; runs `lead` in each term and cancels it when the term is lost.

        When `stop` is set, `lead` should return by itself; after `drain_s` it is cancelled. Then the lease is
        released. A `lead` that returns earlier gives the lease up, and the competition goes on. Errors of `lead` are
        raised, after the release.
        """
        try:
            async with TaskGroup() as tasks:
                stopping = tasks.create_task(self._nudge_at(stop))
                while not stop.is_set():
                    if not self._is_still() and await self._attempt():
                        await self._lead(lead, stop, drain_s)
                    liveness.beat()
                    if not stop.is_set():
                        await self._rest()
                stopping.cancel()
        except BaseExceptionGroup as group:
            raise_only(group)

    async def lead_once(self, lead: Lead) -> bool:
        """Runs `lead` once, if the lease is free or its holder is seen dead for one lease time; then releases it.

        False, soon, when a live holder renews meanwhile. Raises what the API raises.
        """
        first = await self._read()
        while not await self._acquire():
            if self._lease is not None and first is not None and _changed(first, self._lease):
                return False
            first = self._lease
            await self._clock.sleep(self._jittered(self.timing.retry_s))
        await self._lead(lead, None, 0.0)
        return True

    # --- one term -----------------------------------------------------------------------------------------------

    async def _lead(self, lead: Lead, stop: StopSignal | None, drain_s: float) -> None:
        leadership = self.leadership = Leadership(self, self._term())
        telemetry.LEADER.labels(lease=self.name).set(1)
        telemetry.LEADER_CHANGES.labels(lease=self.name).inc()
        _log.info("lease acquired", lease=self.name, identity=self.identity, term=leadership.term)
        try:
            async with TaskGroup() as tasks:
                leading = tasks.create_task(_call(lead, leadership))
                keeping = tasks.create_task(self._keep(leadership))
                waits: list[asyncio.Task[None]] = [leading, keeping]
                if stop is not None:
                    waits.append(tasks.create_task(self._drain(stop, drain_s)))
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in waits:
                        task.cancel()
                    if self._health is not None:
                        self._watch_the_end(self._health)
        except BaseExceptionGroup as group:
            raise_only(group)
        finally:
            if self._overdue is not None:
                self._overdue.cancel()
            self.leadership, self._renewals = None, 0
            telemetry.LEADER.labels(lease=self.name).set(0)
            telemetry.LEADER_CHANGES.labels(lease=self.name).inc()
            await self._release()

    async def _keep(self, leadership: Leadership) -> None:
        """Renews until the lease is lost, or was anybody else's in between."""
        pause_s = self.timing.period_s
        due_at = self._clock.monotonic() + pause_s
        while True:
            await self._clock.sleep(min(self._jittered(pause_s), self.remaining_s()))
            if not self.is_leader() or self._is_still():
                self._renewed(due_at)
                break
            pause_s = self.timing.again_s
            try:
                async with asyncio.timeout(self.remaining_s()):
                    if await self._acquire():
                        self._renewed(due_at)
                        pause_s = self.timing.period_s
                        due_at = self._clock.monotonic() + pause_s
            except TimeoutError:
                self._answers_since = None
                self._renewed(due_at)
                break
            except InvariantError:
                raise
            except ControlPlaneError as error:
                self._answers_since = None
                _log.warning("lease not renewed", lease=self.name, error=str(error), left_s=self.remaining_s())
            liveness.beat()
            if not self.is_leader() or self._term() != leadership.term:
                break
        _log.warning("lease lost", lease=self.name, identity=self.identity, holder=self.holder)

    def _renewed(self, due_at: float) -> None:
        """A renewal that was due then is done, or comes too late."""
        self._renewals += 1
        self._counted += 1
        before_s, latest_s = self._late_s
        if self._counted % LATE_WINDOW == 0:
            before_s, latest_s = latest_s, 0.0
        self._late_s = before_s, max(latest_s, self._clock.monotonic() - due_at)

    def _wanted_s(self) -> float:
        """The duration that a lease of ours needs: what makes it short is that its renewals were prompt."""
        timing = self.timing
        if not timing.steady_s or self._renewals < STEADY_RENEWALS:
            return timing.duration_s
        late_s = max(0.0, max(self._late_s) - LATE_FREE_S)
        return min(timing.duration_s, timing.steady_s + LATE_PARTS * late_s)

    def _trusted_s(self, duration_s: float) -> float:
        """For how long a renewal of a lease of this duration is trusted: the renew deadline, or its part of less."""
        timing = self.timing
        return min(1.0, duration_s / timing.duration_s) * timing.renew_deadline_s

    async def _drain(self, stop: StopSignal, drain_s: float) -> None:
        await stop.wait()
        await self._clock.sleep(drain_s)

    async def _release(self) -> None:
        """Gives the lease up, when it may still be ours; never raises."""
        led_until, self._leads_until = self._leads_until, None
        held = self._lease
        if led_until is None or held is None or held.spec.holder_identity != self.identity:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                try:
                    self._observe(await self._api.replace(LEASES, self._freed(held)))
                except StaleError:
                    # A renewal whose answer was not waited for may have come first: it is ours all the same.
                    current = await self._read()
                    if current is None or current.spec.holder_identity != self.identity:
                        return
                    self._observe(await self._api.replace(LEASES, self._freed(current)))
        except (ControlPlaneError, TimeoutError) as error:
            _log.warning("lease not released", lease=self.name, error=str(error))
        else:
            _log.info("lease released", lease=self.name, identity=self.identity)

    # --- the compare-and-swap -----------------------------------------------------------------------------------

    async def _attempt(self) -> bool:
        """One try that survives every fault of the API, within the renew deadline."""
        try:
            async with asyncio.timeout(self.timing.renew_deadline_s):
                return await self._acquire()
        except TimeoutError:
            self._answers_since = None
            _log.warning("lease not read in time", lease=self.name)
        except InvariantError:
            raise
        except ControlPlaneError as error:
            self._answers_since = None
            _log.warning("lease not acquired", lease=self.name, error=str(error))
        return False

    async def _acquire(self) -> bool:
        """Takes or renews the lease if it is ours, free or expired."""
        started = self._clock.monotonic()
        if self._leads_until is not None and self._lease is not None:
            # Who sees this write respects it and none before it, also where its answer is lost.
            self._leads_until = min(self._leads_until, started + self._trusted_s(self._wanted_s()))
            try:
                return self._confirm(started, await self._api.replace(LEASES, self._taken(self._lease)))
            except (StaleError, NotFoundError):
                pass  # somebody wrote: read, and judge by what is there
        current = await self._read()
        try:
            if current is None:
                return self._confirm(started, await self._api.create(LEASES, self._new(), namespace=self._namespace))
            if not self._is_free(current):
                self._leads_until = None
                return False
            return self._confirm(started, await self._api.replace(LEASES, self._taken(current)))
        except (StaleError, AlreadyExistsError, NotFoundError):
            return False

    def _confirm(self, started: float, lease: Lease) -> bool:
        """The server has our write: it counts from when we sent it."""
        self._answered()
        self._observe(lease)
        self._leads_until = started + self._trusted_s(self._duration_s(lease))
        return True

    async def _read(self) -> Lease | None:
        try:
            lease = await self._api.get(LEASES, self.name, namespace=self._namespace)
        except NotFoundError:
            self._answered()
            self._lease = None
            return None
        self._answered()
        self._observe(lease)
        return lease

    def _answered(self) -> None:
        if self._answers_since is None:
            self._answers_since = self._clock.monotonic()

    def _is_still(self) -> bool:
        """Whether loops of this process stand still: it says so once, and again that they move."""
        why = self._health.standstill() if self._health is not None else None
        if why is not None and not self._was_still:
            _log.error("no leader while loops stand still", lease=self.name, leads=self.leadership is not None, why=why)
        elif why is None and self._was_still:
            _log.info("may lead again: its loops move", lease=self.name)
        self._was_still = why is not None
        return self._was_still

    def _watch_the_end(self, health: ProcessHealth) -> None:
        """Ends the process when the work has not ended in time; one that was paused meanwhile gets that time again."""
        loop = asyncio.get_running_loop()
        due = loop.time() + END_S

        def is_due() -> None:
            if loop.time() > due + PAUSED_S:
                self._watch_the_end(health)
            else:
                self._end_process(health)

        self._overdue = loop.call_at(due, is_due)

    def _end_process(self, health: ProcessHealth) -> None:
        health.end_process(f"the work of the term of lease {self.name} did not end within {END_S:g} s of its end")

    def _observe(self, lease: Lease) -> None:
        if self._lease is None or _changed(self._lease, lease):
            self._seen_at = self._clock.monotonic()
        self._lease = lease

    def _is_free(self, lease: Lease) -> bool:
        holder = lease.spec.holder_identity
        return not holder or holder == self.identity or self._left_s(lease) <= 0

    def _left_s(self, lease: Lease) -> float:
        """For how long its holder is respected, if nothing more is seen of it."""
        return self._seen_at + self._duration_s(lease) - self._clock.monotonic()

    def _duration_s(self, lease: Lease) -> float:
        return lease.spec.lease_duration_seconds or self.timing.duration_s

    def _term(self) -> int:
        return (self._lease.spec.lease_transitions if self._lease else None) or 0

    def _new(self) -> Lease:
        return Lease(metadata=ObjectMeta(name=self.name, namespace=self._namespace), spec=self._spec(0, None))

    def _taken(self, lease: Lease) -> Lease:
        """The lease with us as its holder from now on."""
        terms = lease.spec.lease_transitions or 0
        is_ours = lease.spec.holder_identity == self.identity
        spec = self._spec(terms if is_ours else terms + 1, lease.spec.acquire_time if is_ours else None)
        return msgspec.structs.replace(lease, spec=spec)

    def _freed(self, lease: Lease) -> Lease:
        """The lease without a holder."""
        now = format_time(self._clock.now(), "microseconds")
        spec = msgspec.structs.replace(lease.spec, holder_identity=None, lease_duration_seconds=1, renew_time=now)
        return msgspec.structs.replace(lease, spec=spec)

    def _spec(self, terms: int, acquired: str | None) -> LeaseSpec:
        now = format_time(self._clock.now(), "microseconds")
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=math.ceil(self._wanted_s()),
            acquire_time=acquired or now,
            renew_time=now,
            lease_transitions=terms,
        )

    def _jittered(self, period_s: float) -> float:
        return period_s * (1 - JITTER * self._random.random())

    async def _nudge_at(self, stop: StopSignal) -> None:
        await stop.wait()
        self.nudge()

    async def _rest(self) -> None:
        """Until the next look; less when the holder's time is over before it, at a nudge, or at the stop."""
        pause_s = self._jittered(min(self.timing.look_s, self.timing.retry_s))
        left_s = self._left_s(self._lease) if self._lease is not None else 0.0
        if left_s > 0:
            pause_s = min(pause_s, left_s + _INSTANT_S)
        try:
            async with asyncio.timeout(pause_s):
                await self._nudged.wait()
        except TimeoutError:
            return
        self._nudged.clear()


async def _call(lead: Lead, leadership: Leadership) -> None:
    """The leader's work; a fence that refuses it once the lease is lost only ends the term."""
    try:
        await lead(leadership)
    except StaleError:
        if leadership.is_valid():
            raise


def _changed(before: Lease, after: Lease) -> bool:
    return before.metadata.resource_version != after.metadata.resource_version or before.spec != after.spec
