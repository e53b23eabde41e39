"""Leader election on a Kubernetes Lease.

Owns one Lease object: acquires, renews, loses and releases it. Must not know what the leader does.

Promises
- `is_leader()` is True only until the renew deadline (two thirds of the duration) after the start of the last renewal
  that the server confirmed, by the monotonic clock. So a process that was paused gets False at once when it resumes
  late.
- A candidate takes a lease over only after it has itself seen the lease unchanged for its whole duration. Wall clock
  times are written for people and are never compared. Clocks may differ by any amount, but their rates may not differ
  by half.
- The holder chooses and writes the duration: 15 s at the beginning of its term, and 3 s (`steady_s`) once its renewals
  have been prompt. When renewals are late, because its loop is busy or the API server is slow, it adds three times the
  largest delay, up to 15 s in total. So a dead leader is replaced soon, and a slow leader stays.
- Leading work is cancelled at once when a renewal shows another holder or the renew deadline passes, also while a
  renewal hangs.
- The first attempt is immediate. A leader renews each period (2 s, or 1.2 s when `steady_s` is set; up to a fifth
  less). A failed renewal is repeated after a retry period. Other candidates read the lease more often (0.5 s, up to a
  fifth less), and at the exact time at which the lease of a silent holder expires. So a holder that dies is replaced at
  most its duration and one read later. A holder that ends releases the lease, and is replaced within one read, or at a
  `nudge`.
- Every write is a compare-and-swap; the Lease is created when it is missing.
- A process whose loops stand still neither acquires a lease nor retains one (`health`): it releases the lease at the
  next renewal, and another process leads. Renewals and reads are reported as progress of the loop that runs the
  elector.
- If the leader's work does not end within `END_S` after its cancellation, the process is ended, because the work could
  otherwise continue beside the next leader.

Not promised: a fence. Two processes may believe for an instant that they lead. So the writes of a leader must contain
an epoch that the server compares.
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
"""Seconds within which the work of a lost term must end."""
PAUSED_S = 1.0
"""A timer that is late by more seconds means that the whole process was paused."""
JITTER = 0.2
"""The largest random reduction of a period, as a part of it."""
STEADY_RENEWALS = 5
"""Number of renewals in a term before its lease may become short."""
LATE_WINDOW = 150
"""The largest delay is stored for a window of this many renewals and for the window before, across terms: a process
that was slow at times will be slow again."""
LATE_PARTS = 3
"""The duration of a lease grows by this multiple of the largest delay of a renewal."""
LATE_FREE_S = 0.1
"""A renewal that is late by at most this many seconds is prompt."""
RENEW_PART, RETRY_PART = 0.4, 1 / 6
"""Parts of the duration of a short lease: the renew period, and the pause before a failed renewal is repeated."""
_INSTANT_S = 0.001
"""Added to the wait, so that rounding cannot end it before the holder's lease has expired."""

_log = log.get_logger(__name__)


class LeaseTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds.

    `duration_s`: a silent holder is respected for this long. `renew_deadline_s`: a leader trusts its last renewal for
    this long. `retry_s`: pause before a failed renewal is repeated. `look_s`: how often a candidate reads the lease.
    `renew_s`: how often a leader renews; 0 means `retry_s`. `steady_s`: duration of the lease of a holder with prompt
    renewals; 0 means `duration_s`.
    """

    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0
    look_s: float = 0.5
    renew_s: float = 0.0
    steady_s: float = 0.0

    @property
    def period_s(self) -> float:
        """The longest time between two renewals."""
        return self.steady_s * RENEW_PART if self.steady_s else self.renew_s or self.retry_s

    @property
    def again_s(self) -> float:
        """The pause after a failed renewal."""
        return min(self.retry_s, self.steady_s * RETRY_PART) if self.steady_s else self.retry_s

    def __post_init__(self) -> None:
        if not self.duration_s > self.renew_deadline_s > self.retry_s > 0:
            raise InvariantError(f"a lease needs duration > renew deadline > retry > 0, not {self}")
        if self.renew_s >= self.renew_deadline_s:
            raise InvariantError(f"a lease is renewed before its renew deadline, not {self}")
        if not 0 <= self.steady_s <= self.duration_s:
            raise InvariantError(f"a steady lease is no longer than any other, not {self}")


class Leadership:
    """One term: valid from acquiring the lease until losing it. The leader checks it before every effect."""

    def __init__(self, elector: "LeaseElector", term: int) -> None:
        self._elector = elector
        self.term = term
        """`leaseTransitions` of this term. It starts at 0 again when the Lease is deleted, so it cannot be a fence."""

    def is_valid(self) -> bool:
        """Whether this process still leads, in this same term."""
        return self._elector.is_leader() and self._elector.leadership is self

    def remaining_s(self) -> float:
        """Return the seconds for which this term remains valid without another renewal."""
        return self._elector.remaining_s() if self.is_valid() else 0.0

    def check(self) -> None:
        """Raise StaleError when this process no longer leads."""
        if not self.is_valid():
            raise StaleError(f"no longer the holder of lease {self._elector.name}")


Lead = Callable[[Leadership], Awaitable[None]]


class LeaseElector:
    """One candidate for one lease. `identity` must differ between processes, and between restarts of a process."""

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
        """ends the process unless the work of a lost term ends before"""
        self._answers_since: float | None = None
        self._lease: Lease | None = None
        self._seen_at = 0.0
        self._leads_until: float | None = None
        """end of leadership after the last confirmed renewal, in monotonic seconds; None: it does not lead"""
        self._late_s = (0.0, 0.0)
        """the largest delays of renewals in seconds: of the previous window, and of the current one"""
        self._counted = 0
        self._renewals = 0
        """number of renewals in this term"""
        self._nudged = asyncio.Event()

    # --- what a caller may ask ----------------------------------------------------------------------------------

    def is_leader(self) -> bool:
        """Whether the lease is certainly ours at this instant."""
        return self.remaining_s() > 0

    def remaining_s(self) -> float:
        """Return the seconds until `is_leader` becomes False, unless a renewal is confirmed before."""
        if self._leads_until is None:
            return 0.0
        return max(0.0, self._leads_until - self._clock.monotonic())

    @property
    def holder(self) -> str:
        """The holder as last read; empty when there is none or the lease was not read yet."""
        return (self._lease.spec.holder_identity if self._lease else None) or ""

    @property
    def silent_s(self) -> float:
        """Seconds since the last observed change of the lease; 0.0 before the first read."""
        return self._clock.monotonic() - self._seen_at if self._lease is not None else 0.0

    @property
    def is_overdue(self) -> bool:
        """Whether the holder seems to have missed a renewal."""
        return self.silent_s > 2 * self.timing.period_s

    @property
    def answered_since(self) -> float:
        """The monotonic time since which the API server has answered all our calls; `inf` when it does not answer."""
        return math.inf if self._answers_since is None else self._answers_since

    def nudge(self) -> None:
        """Make a waiting candidate read the lease now, because another process reports that it is free."""
        self._nudged.set()

    async def run(self, lead: Lead, stop: StopSignal, *, drain_s: float = 10.0) -> None:
        """Compete for the lease until `stop`; run `lead` in each term and cancel it when the term is lost.

        When `stop` is set, `lead` should return by itself; after `drain_s` it is cancelled. Then the lease is released.
        When `lead` returns earlier, the lease is released and the competition continues. Errors of `lead` are raised,
        after the release.
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
        """Run `lead` once, if the lease is free or its holder stays silent for one lease duration; then release it.

        Return False, soon, when a live holder renews in that time. Raises the errors of the API.
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
        """Renew until the lease is lost, or another process held it in between."""
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
        """Record the delay of a renewal that was due at `due_at`, done or missed."""
        self._renewals += 1
        self._counted += 1
        before_s, latest_s = self._late_s
        if self._counted % LATE_WINDOW == 0:
            before_s, latest_s = latest_s, 0.0
        self._late_s = before_s, max(latest_s, self._clock.monotonic() - due_at)

    def _wanted_s(self) -> float:
        """Return the duration for our lease: it is short only after prompt renewals."""
        timing = self.timing
        if not timing.steady_s or self._renewals < STEADY_RENEWALS:
            return timing.duration_s
        late_s = max(0.0, max(self._late_s) - LATE_FREE_S)
        return min(timing.duration_s, timing.steady_s + LATE_PARTS * late_s)

    def _trusted_s(self, duration_s: float) -> float:
        """Return how long a renewal is trusted for a lease of this duration: the renew deadline, reduced in proportion
        for a short lease."""
        timing = self.timing
        return min(1.0, duration_s / timing.duration_s) * timing.renew_deadline_s

    async def _drain(self, stop: StopSignal, drain_s: float) -> None:
        await stop.wait()
        await self._clock.sleep(drain_s)

    async def _release(self) -> None:
        """Release the lease, if it may still be ours; never raises."""
        led_until, self._leads_until = self._leads_until, None
        held = self._lease
        if led_until is None or held is None or held.spec.holder_identity != self.identity:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                try:
                    self._observe(await self._api.replace(LEASES, self._freed(held)))
                except StaleError:
                    # A renewal whose response we did not wait for may have been applied first; the lease is still ours.
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
        """Try once to acquire, within the renew deadline; return False on any fault of the API."""
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
        """Acquire or renew the lease if it is ours, free or expired; return whether this process holds it."""
        started = self._clock.monotonic()
        if self._leads_until is not None and self._lease is not None:
            # Other candidates respect only the latest write that they see, even if its response is lost to us. So trust
            # no longer than the duration in this write allows.
            self._leads_until = min(self._leads_until, started + self._trusted_s(self._wanted_s()))
            try:
                return self._confirm(started, await self._api.replace(LEASES, self._taken(self._lease)))
            except (StaleError, NotFoundError):
                pass  # another process wrote the lease: read it and decide again
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
        """Record a confirmed write: it is valid from the time at which we sent it."""
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
        """Whether loops of this process stand still; logs the start and the end of a standstill once."""
        why = self._health.standstill() if self._health is not None else None
        if why is not None and not self._was_still:
            _log.error("not leading: a loop is stalled", lease=self.name, leads=self.leadership is not None, why=why)
        elif why is None and self._was_still:
            _log.info("may lead again: its loops make progress", lease=self.name)
        self._was_still = why is not None
        return self._was_still

    def _watch_the_end(self, health: ProcessHealth) -> None:
        """End the process when the work has not ended in time; if the process was paused in between, the time starts
        again."""
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
        """Return the seconds for which the holder is still respected without another change."""
        return self._seen_at + self._duration_s(lease) - self._clock.monotonic()

    def _duration_s(self, lease: Lease) -> float:
        return lease.spec.lease_duration_seconds or self.timing.duration_s

    def _term(self) -> int:
        return (self._lease.spec.lease_transitions if self._lease else None) or 0

    def _new(self) -> Lease:
        return Lease(metadata=ObjectMeta(name=self.name, namespace=self._namespace), spec=self._spec(0, None))

    def _taken(self, lease: Lease) -> Lease:
        """Return the lease with this process as its holder from now on."""
        terms = lease.spec.lease_transitions or 0
        is_ours = lease.spec.holder_identity == self.identity
        spec = self._spec(terms if is_ours else terms + 1, lease.spec.acquire_time if is_ours else None)
        return msgspec.structs.replace(lease, spec=spec)

    def _freed(self, lease: Lease) -> Lease:
        """Return the lease without a holder."""
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
        """Wait until the next read: the look period, or less when the holder's lease expires, at a nudge, or at the
        stop."""
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
    """Run the leader's work. A StaleError after the loss of the lease only ends the term."""
    try:
        await lead(leadership)
    except StaleError:
        if leadership.is_valid():
            raise


def _changed(before: Lease, after: Lease) -> bool:
    return before.metadata.resource_version != after.metadata.resource_version or before.spec != after.spec
