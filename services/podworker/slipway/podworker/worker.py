"""Handles one hint: read the allocation, decide, act, and report the outcome.

Owns the order read -> decide -> act, the retries of all three, and what the allocation's conditions report while they
fail. It does not know the source of the hints: the stream, the poll and `--once` all call `handle`.

Promises: an allocation is read before each decision, and again before each retry. Work on one key never overlaps within
this process. A conflict leads to a new decision. A transient error is never reported as the user's failure. Work that
takes longer than the patience of one hint is left to the next hint, which the watcher sends at its next resync. So an
allocation that cannot progress does not block others. After `stuck_after_s`, the condition Stuck becomes True, and the
hint of a launch becomes a dead letter. The teardown of an attempt that is over is reported in the same condition, and
never given up.
"""

import contextlib
from collections import OrderedDict
from functools import partial

from slipway.crd.members import growth_of, unreleased
from slipway.crd.meta import Condition, condition_of
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import (
    ClaimPendingError,
    DeniedError,
    InvalidError,
    InvariantError,
    NotFoundError,
    PermanentError,
    QuotaExceededError,
    StaleError,
    TerminatingError,
    TransientError,
    UnavailableError,
)
from slipway.kube.resources import ALLOCATIONS
from slipway.kube.tracing import attempt_span, traceparent_of
from slipway.model.growth import GROW_AGAIN_S, QUOTA_AGAIN_S
from slipway.model.ids import split_allocation_id
from slipway.model.lifecycle import Phase
from slipway.model.times import SKEW_S, format_time, parse_time
from slipway.podworker import status
from slipway.podworker.concurrency import KeyedLock
from slipway.podworker.intent import (
    CONDITION_REFUSED,
    CONDITION_STUCK,
    AddRanks,
    Bind,
    DeleteRanks,
    LaunchIntent,
    NoAction,
    RestartRanks,
    Teardown,
    decide,
)
from slipway.podworker.launch import AttemptLauncher, LaunchProgress
from slipway.podworker.pools import PoolMismatch, Pools
from slipway.podworker.ports import Kube
from slipway.podworker.teardown import AttemptRemover
from slipway.runtime import log, retry, semconv, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.retry import RetryPolicy
from slipway.runtime.telemetry import ActiveSpan
from slipway.streams import keys
from slipway.streams.consumer import current_entry
from slipway.streams.ports import WorkHint

DECISIONS_MAX = 5
"""The number of decisions for one try. After so many conflicts, the try fails."""
BOUND_MAX = 8192
"""The number of finished launches that are remembered: the hints that they cause themselves then need no LIST."""
ONCE = RetryPolicy(name="podworker_once", attempts_max=1, total_s=0.0, first_s=0.0, cap_s=0.0)
REASON_BIND_REFUSED = "BindRefused"
REASON_TEARDOWN_FAILED = "TeardownFailed"
TELL_AFTER_S = 3.0
"""The condition Stuck reports a launch only after it has failed for this long, so that a server that is unreachable for
a moment is not reported."""
_STATES = (ClaimPendingError, QuotaExceededError)
"""Errors that another try alone does not mend, so they are reported at once."""
_STARTS = LaunchIntent | Bind | RestartRanks
"""Without these steps a gang is not whole. So the condition Stuck reports the obstacle, and after a while the attempt
is given up."""
_OVER = (Phase.TERMINATING, Phase.TERMINATED)
SOON_S = 2.0
"""The worker waits for a restart that is due this soon: the clock of the watcher, which sent the hint, may be a little
ahead."""

_log = log.get_logger(__name__)


class RetryState:
    """The state that the tries for one hint share: the allocation as last read, and the objects that were created."""

    def __init__(self) -> None:
        self.allocation: Allocation | None = None
        self.progress: LaunchProgress | None = None
        self.failing_since: float | None = None
        """when the first try failed (monotonic seconds); None while none has failed"""

    def progress_of(self, allocation: Allocation) -> LaunchProgress:
        """Return the record of what was created for this attempt; a record of another attempt is dropped."""
        if self.progress is None or not self.progress.is_of(allocation):
            self.progress = LaunchProgress(allocation.metadata.uid, allocation.status.attempt)
        return self.progress


class Worker:
    """Handles hints; one per process."""

    def __init__(
        self,
        *,
        kube: Kube,
        launcher: AttemptLauncher,
        remover: AttemptRemover,
        pools: Pools,
        clock: Clock,
        random: Random,
        retry_policy: RetryPolicy,
        stuck_after_s: float,
    ) -> None:
        self._kube = kube
        self._launcher = launcher
        self._remover = remover
        self._pools = pools
        self._clock = clock
        self._random = random
        self._retry_policy = retry_policy
        self._stuck_after_s = stuck_after_s
        self._lock = KeyedLock()
        self._bound: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._joined: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        """(uid, attempt, n) of growths whose pods are bound"""

    def is_busy(self, hint: WorkHint) -> bool:
        """Whether a hint for the same allocation is being handled now."""
        return self._lock.is_locked(hint.key)

    def is_settled(self, allocation: Allocation) -> bool:
        """Whether nothing needs to be done for `allocation` in this state, as far as this process knows."""
        match decide(allocation):
            case NoAction():
                return True
            case Bind():
                return _attempt_key(allocation) in self._bound
            case AddRanks(n, _):
                return (*_attempt_key(allocation), n) in self._joined
            case _:
                return False

    async def handle(self, hint: WorkHint, *, may_retry: bool = True) -> None:
        """Do what the allocation needs now; without `may_retry` there is only one try.

        Raises:
            TransientError, StaleError: it is not possible now; the hint should be delivered again.
            PermanentError: the work is given up; the hint is a dead letter.
        """
        state = RetryState()
        async with self._lock.hold(hint.key):
            with (
                log.bind(allocation=hint.allocation, namespace=hint.namespace),
                log.canonical_line(_log, "hint handled", clock=self._clock) as line,
            ):
                policy = self._retry_policy if may_retry else ONCE
                attempt = partial(self._try_and_report, hint, state)
                try:
                    line.outcome = await retry.call(policy, attempt, clock=self._clock, random=self._random)
                except TransientError as error:
                    await self._give_up(state.allocation, error)
                    line.outcome = "stuck"

    async def _try_and_report(self, hint: WorkHint, state: RetryState) -> str:
        """Make one pass; report an obstacle on the allocation before the retries of this hint are used up."""
        try:
            return await self._try(hint, state)
        except TransientError as error:
            now = self._clock.monotonic()
            state.failing_since = now if state.failing_since is None else state.failing_since
            if isinstance(error, _STATES) or now - state.failing_since >= TELL_AFTER_S:
                await self._report_retry(state.allocation, error)
            raise

    async def _try(self, hint: WorkHint, state: RetryState) -> str:
        """Make one pass: read, decide, act; again on a conflict. Return the outcome, a short constant."""
        parts = split_allocation_id(hint.allocation)
        if parts is None:
            raise PermanentError(f"{hint.allocation!r} is not an AllocationID")
        name, uid_prefix = parts
        for turn in range(1, DECISIONS_MAX + 1):
            state.allocation = None
            try:
                allocation = await self._kube.get(ALLOCATIONS, name, namespace=hint.namespace)
            except NotFoundError:
                return "gone"
            except DeniedError as error:
                # As in a teardown, the hint is delivered again until the operator has repaired the permissions.
                raise UnavailableError(f"the allocation cannot be read: {error}") from error
            if not allocation.metadata.uid.startswith(uid_prefix):
                return "another object"
            state.allocation = allocation
            try:
                return await self._act(allocation, state, hint.traceparent)
            except (StaleError, NotFoundError):
                # Another process wrote first, or the allocation is gone, so it is read again.
                if turn == DECISIONS_MAX:
                    raise
        raise InvariantError("unreachable")

    async def _act(self, allocation: Allocation, state: RetryState, hint_trace: str) -> str:
        match decide(allocation):
            case NoAction(why):
                return why
            case Teardown(through):
                with self._span("teardown", allocation, hint_trace):
                    return await self._tear_down(allocation, through)
            case DeleteRanks(ranks):
                with self._span("shed", allocation, hint_trace):
                    return await self._delete_ranks(allocation, ranks)
            case AddRanks(n, ranks):
                if (*_attempt_key(allocation), n) in self._joined:
                    return "joined before"
                with self._span("grow", allocation, hint_trace) as span:
                    return await self._add_ranks(allocation, n, ranks, span.traceparent)
            case RestartRanks(ranks):
                with self._span("restart", allocation, hint_trace) as span:
                    return await self._restart_ranks(allocation, ranks, span.traceparent)
            case Bind(past):
                if _attempt_key(allocation) in self._bound:
                    return "bound before"
                with self._span("launch", allocation, hint_trace):
                    return await self._finish(allocation, state, past)
            case LaunchIntent(past):
                with self._span("launch", allocation, hint_trace) as span:
                    return await self._launch(allocation, state, past, span.traceparent)

    async def _tear_down(self, allocation: Allocation, through: int) -> str:
        try:
            deletes = await self._remover.remove(allocation, through)
        except (DeniedError, InvalidError) as error:
            # The operator has to repair the permissions, or the policy of the cluster that refuses the deletes. Until
            # then the hints are retried, and none is a dead letter.
            raise UnavailableError(f"the teardown is not permitted: {error}") from error
        if _teardown_failure_of(allocation) is not None:
            await self._condition(allocation, CONDITION_STUCK, "False", reason="Recovered")
        return "torn down" if deletes else "clean"

    async def _delete_ranks(self, allocation: Allocation, ranks: tuple[int, ...]) -> str:
        never = {member.rank for member in unreleased(allocation)} & set(ranks)
        try:
            if never:
                await self._launcher.delete_unreleased(allocation, never)
                allocation = await status.withdraw(self._kube, allocation, never)
            await self._remover.delete_ranks(allocation, [rank for rank in ranks if rank not in never])
        except DeniedError as error:
            raise UnavailableError(f"the ranks cannot be deleted: {error}") from error
        return "shed"

    async def _add_ranks(self, allocation: Allocation, n: int, ranks: tuple[int, ...], traceparent: str) -> str:
        """Create and bind the pods of added ranks. Ranks that cannot be created are withdrawn; the gang goes on without
        them."""
        try:
            if unreleased(allocation):
                admitted = await self._pools.admitted_spec(allocation)
                if isinstance(admitted, PoolMismatch):
                    return await self._withdraw(allocation, admitted.message)
                allocation = await self._launcher.grow(
                    allocation, admitted, traceparent or traceparent_of(allocation.metadata)
                )
        except (TerminatingError, NotFoundError):
            return "taken back"
        except InvariantError:
            raise
        except (QuotaExceededError, DeniedError) as error:
            # Another pod may end soon, or a permission may be granted again. A second refusal makes the pause longer.
            growth = growth_of(allocation)
            is_first = growth is None or not growth.reason
            return await self._withdraw(allocation, str(error), pause_s=QUOTA_AGAIN_S if is_first else GROW_AGAIN_S)
        except PermanentError as error:
            return await self._withdraw(allocation, str(error))
        try:
            await self._launcher.bind_ranks(allocation, ranks)
        except (StaleError, TerminatingError) as error:
            # The watcher sees what happened to the pod, and withdraws its rank.
            _log.warning("added rank not bound", error=str(error))
            return "not joined"
        except DeniedError as error:
            raise UnavailableError(f"the added ranks cannot be bound: {error}") from error
        self._joined[*_attempt_key(allocation), n] = None
        if len(self._joined) > BOUND_MAX:
            self._joined.popitem(last=False)
        return "joined"

    async def _restart_ranks(self, allocation: Allocation, ranks: tuple[int, ...], traceparent: str) -> str:
        """Create new pods for failed ranks, each when its pause is over. While a pod cannot be created, the gang
        waits and the condition Stuck reports why; the watcher ends the attempt after a while."""
        now, restarts = self._clock.now(), allocation.status.restarted_ranks
        waits_s = {
            each.rank: parse_time(each.not_before) - now if each.not_before else 0.0
            for each in restarts
            if not each.pod_uid
        }
        due = [rank for rank, wait_s in waits_s.items() if wait_s <= 0]
        to_bind = [rank for rank in ranks if rank not in waits_s or rank in due]
        if not to_bind:
            wait_s = min(waits_s.values())
            if wait_s > SOON_S:
                return "too early"
            raise UnavailableError("a rank starts again in a moment", retry_after_s=wait_s)
        try:
            if due:
                admitted = await self._pools.admitted_spec(allocation)
                if isinstance(admitted, PoolMismatch):
                    return await self._mark_stuck(allocation, admitted.reason, admitted.message)
                allocation = await self._launcher.restart(
                    allocation, admitted, traceparent or traceparent_of(allocation.metadata), due
                )
        except (TerminatingError, NotFoundError):
            return "taken back"
        except InvariantError:
            raise
        except PermanentError as error:
            return await self._mark_stuck(allocation, status.stuck_reason(error), str(error))
        try:
            await self._launcher.bind_ranks(allocation, to_bind)
        except (StaleError, TerminatingError) as error:
            # The watcher sees what happened to the pod.
            _log.warning("rank not started again", error=str(error))
            return "not bound"
        except DeniedError as error:
            raise UnavailableError(f"the ranks cannot be bound: {error}") from error
        return "started again"

    async def _withdraw(self, allocation: Allocation, reason: str, *, pause_s: float = GROW_AGAIN_S) -> str:
        """Withdraw all added ranks that have no released pod; the scheduler adds none for `pause_s` seconds."""
        ranks = {member.rank for member in unreleased(allocation)}
        not_before = format_time(self._clock.now() + pause_s)
        await self._launcher.delete_unreleased(allocation, ranks)
        await status.withdraw(self._kube, allocation, ranks, not_before=not_before, reason=reason)
        _log.warning("growth withdrawn", ranks=sorted(ranks), reason=reason)
        return "withdrawn"

    async def _launch(self, allocation: Allocation, state: RetryState, past: int, traceparent: str) -> str:
        progress = state.progress_of(allocation)
        try:
            admitted = await self._pools.admitted_spec(allocation)
            if isinstance(admitted, PoolMismatch):
                return await self._mark_stuck(allocation, admitted.reason, admitted.message)
            released = await self._launcher.release(
                allocation, admitted, progress, traceparent or traceparent_of(allocation.metadata)
            )
        except (TerminatingError, NotFoundError):
            return await self._leave_namespace(allocation)
        except DeniedError as error:
            return await self._mark_stuck(allocation, status.stuck_reason(error), str(error))
        except InvariantError:
            raise
        except PermanentError as error:
            return await self._refuse(allocation, error)
        state.allocation = released
        return await self._finish(released, state, past)

    async def _finish(self, allocation: Allocation, state: RetryState, past: int) -> str:
        """Bind the pods of the release, then delete the objects that earlier attempts left."""
        try:
            await self._launcher.bind(allocation, state.progress_of(allocation))
        except TerminatingError:
            return await self._leave_namespace(allocation)
        except StaleError as error:
            return await self._mark_stuck(allocation, REASON_BIND_REFUSED, str(error))
        except DeniedError as error:
            return await self._mark_stuck(allocation, status.stuck_reason(error), str(error))
        self._bound[_attempt_key(allocation)] = None
        if len(self._bound) > BOUND_MAX:
            self._bound.popitem(last=False)
        if _stuck_of(allocation) is not None:
            await self._condition(allocation, CONDITION_STUCK, "False", reason="Recovered")
        if past:
            await self._tear_down(allocation, past)
        return "bound"

    async def _leave_namespace(self, allocation: Allocation) -> str:
        intent = decide(allocation, namespace_terminating=True)
        if isinstance(intent, Teardown):
            await self._tear_down(allocation, intent.through)
        return "taken back"

    async def _refuse(self, allocation: Allocation, error: PermanentError) -> str:
        """Set the condition Refused: the launch can never succeed. The message is the API server's, with a next
        step."""
        reason = status.refusal(error)
        await self._condition(allocation, CONDITION_REFUSED, "True", reason=reason, message=status.refusal_text(error))
        return "refused"

    async def _mark_stuck(self, allocation: Allocation, reason: str, message: str) -> str:
        await self._condition(allocation, CONDITION_STUCK, "True", reason=reason, message=message)
        return "stuck"

    async def _report_retry(self, allocation: Allocation | None, error: TransientError) -> None:
        """Report in the condition Stuck that the launch is retried, and why, unless the condition already does."""
        if allocation is None or not isinstance(decide(allocation), _STARTS):
            return
        known = _stuck_of(allocation)
        if known is not None and known.status != "False":
            return
        reason = status.stuck_reason(error)
        with contextlib.suppress(TransientError, StaleError, NotFoundError):
            await self._condition(allocation, CONDITION_STUCK, "Unknown", reason=reason, message=str(error))

    async def _give_up(self, allocation: Allocation | None, error: TransientError) -> None:
        """Report the obstacle in the condition Stuck. Return if the condition was already True, else raise `error`.

        Raises:
            PermanentError: the launch has failed for `stuck_after_s`; the hint is a dead letter.
        """
        if allocation is not None and allocation.status.phase in _OVER:
            await self._report_teardown(allocation, error)
        if allocation is None or not isinstance(decide(allocation), _STARTS):
            raise error
        known = _stuck_of(allocation)
        if known is not None and known.status == "True":
            return
        is_over = known is not None and known.status == "Unknown" and self._age_s(known) >= self._stuck_after_s
        word = "True" if is_over else "Unknown"
        try:
            if is_over or known is None or known.status != word or self._is_early(known):
                reason = status.stuck_reason(error)
                await self._condition(allocation, CONDITION_STUCK, word, reason=reason, message=str(error))
        except (TransientError, StaleError, NotFoundError):
            raise error from None
        if is_over:
            raise PermanentError(f"gave up after {self._stuck_after_s:.0f} s: {error}") from error
        raise error

    async def _report_teardown(self, allocation: Allocation, error: TransientError) -> None:
        """Report in the condition Stuck that the teardown fails: Unknown at first, True after `stuck_after_s`."""
        known = _teardown_failure_of(allocation)
        is_over = known is not None and self._age_s(known) >= self._stuck_after_s
        if known is not None and (known.status == "True" or not (is_over or self._is_early(known))):
            return
        word = "True" if is_over else "Unknown"
        with contextlib.suppress(TransientError, StaleError, PermanentError):
            await self._condition(allocation, CONDITION_STUCK, word, reason=REASON_TEARDOWN_FAILED, message=str(error))

    async def _condition(
        self, allocation: Allocation, type_: str, word: str, *, reason: str, message: str = ""
    ) -> None:
        await status.set_condition(
            self._kube, allocation, type_, word, reason=reason, message=message, now=self._clock.now()
        )

    def _age_s(self, condition: Condition) -> float:
        since = condition.last_transition_time
        return self._clock.now() - parse_time(since) if since else 0.0

    def _is_early(self, condition: Condition) -> bool:
        """Whether the condition begins in the future: a pod worker whose clock was ahead has written it. The next write
        corrects that."""
        return self._age_s(condition) < -SKEW_S

    def _span(
        self, name: str, allocation: Allocation, hint_trace: str
    ) -> contextlib.AbstractContextManager[ActiveSpan]:
        """Return a span in the allocation's trace, linked to the hint that caused it and to the previous attempt."""
        attempt, message = allocation.status.attempt, current_entry()
        links = [hint_trace] if hint_trace else []
        if attempt > 1:
            links.append(attempt_span(allocation.metadata, attempt - 1))
        told: dict[str, telemetry.Attribute] = {
            "slipway.attempt": attempt,
            "k8s.namespace.name": allocation.metadata.namespace,
        }
        if message is not None:
            told |= semconv.processes(
                keys.work(message.shard),
                group=keys.WORK_GROUP,
                message_id=message.entry_id,
                deliveries=message.deliveries,
            )
        return telemetry.span(
            f"podworker.{name}",
            parent=traceparent_of(allocation.metadata),
            links=links,
            allocation_id=id_of(allocation),
            attributes=told,
            kind=telemetry.SpanKind.CONSUMER if message is not None else telemetry.SpanKind.INTERNAL,
        )


def _stuck_of(allocation: Allocation) -> Condition | None:
    """Return the condition Stuck if it is about this attempt."""
    known = condition_of(allocation.status.conditions, CONDITION_STUCK)
    return known if known is not None and known.observed_generation == allocation.status.attempt else None


def _teardown_failure_of(allocation: Allocation) -> Condition | None:
    """Return the condition Stuck while it reports that the teardown of this attempt fails."""
    known = _stuck_of(allocation)
    return known if known is not None and known.reason == REASON_TEARDOWN_FAILED else None


def _attempt_key(allocation: Allocation) -> tuple[str, int]:
    return allocation.metadata.uid, allocation.status.attempt
