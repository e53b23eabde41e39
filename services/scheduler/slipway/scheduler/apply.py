"""Writes decisions and fired deadlines to allocations: fenced, idempotent, and without any choice of policy.

Owns the scheduler's writes to an Allocation: the teardown finalizer, the admission, `status.growth`, `status.stop` and
`status.shrink` with the record of the preemption, and the condition that reports why it waits. Each write is GET,
compare, PUT under the resourceVersion; repeating it changes nothing. Must not decide which allocation gets which nodes.

The object of an unwritten allocation is built from its fact, which saves a read. The read is saved before the
admission, and before the first explanation of why it waits. Pure. Owns the rule of when a fact is enough: only that
explanation may have been written to the object. The built object has the fields that a first status needs, and the
version at which the fact was seen. If the object has changed since, the write under that version is refused, and the
object is read after all.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from slipway.crd.members import GangMember, departed_ranks, growth_of, is_elastic, members
from slipway.crd.meta import ANNOTATION_TRACE, ANNOTATION_USER, TEARDOWN_FINALIZER, Condition, ObjectMeta, condition_of
from slipway.crd.transitions import CONDITION_STALLED, id_of, leaving_ranks, record, stop_reason, with_status
from slipway.crd.v1alpha1 import (
    PREEMPTIONS_MAX,
    Admission,
    Allocation,
    AllocationSpec,
    AllocationStatus,
    Growth,
    Placement,
    Preempted,
    RoleSpec,
    Shrink,
    Stop,
)
from slipway.errors import DeniedError, NotFoundError, StaleError, TransientError
from slipway.facts.custom_resources import CONDITION_ADMITTED, CONDITION_INVALID
from slipway.kube.resources import ALLOCATIONS
from slipway.kube.tracing import attempt_span, traceparent_of
from slipway.model.facts import AllocationFact, FirstStatusFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Event, Kind, Phase
from slipway.model.reasons import Gate, Reason, is_stalled
from slipway.model.times import format_time
from slipway.runtime import telemetry
from slipway.runtime.clock import Clock
from slipway.scheduler.ledger import node_names
from slipway.scheduler.ports import Kube


def allocation_of(decision: Decision, fact: AllocationFact | None) -> Allocation | None:
    """Return the object of an admission, with the fields that the admission needs; None when it has to be read."""
    if decision.kind is not DecisionKind.ADMIT or fact is None or fact.invalid or fact.uid != decision.uid:
        return None
    return object_of(fact)


def object_of(fact: AllocationFact) -> Allocation | None:
    """Return the object, with the fields that a first write of its status needs; None when it has to be read."""
    known = fact.untouched
    if known is None or fact.deleting or fact.desired != "Running":
        return None
    annotations = {} if known.user is None else {ANNOTATION_USER: known.user}
    if known.trace:
        annotations[ANNOTATION_TRACE] = known.trace
    return Allocation(
        metadata=ObjectMeta(
            name=fact.name,
            namespace=fact.namespace,
            uid=fact.uid,
            resource_version=str(fact.version),
            generation=known.generation,
            creation_timestamp=known.created_at,
            annotations=annotations,
            finalizers=[TEARDOWN_FINALIZER],
        ),
        spec=AllocationSpec(
            kind=Kind(fact.kind),
            pool=fact.pool,
            queue=fact.queue,
            ranks=[RoleSpec(name=role.name, count=role.count) for role in fact.roles],
            min_available=fact.minimum,
        ),
        status=AllocationStatus(conditions=_known_condition(fact, known)),
    )


def _known_condition(fact: AllocationFact, known: FirstStatusFact) -> list[Condition]:
    """Return the condition that already explains why it waits, if there is one."""
    if not known.told_at:
        return []
    return [
        Condition(
            type=CONDITION_ADMITTED,
            status="False",
            reason=fact.gate,
            message=fact.gate_message,
            observed_generation=known.generation,
            last_transition_time=known.told_at,
        )
    ]


def is_same_spec(fact: AllocationFact, written: Allocation) -> bool:
    """Whether the fact's part about the spec is valid for the written object."""
    known = fact.untouched
    meta = written.metadata
    return known is not None and (meta.uid, meta.generation) == (fact.uid, known.generation)


Write = Callable[[Allocation], "Awaitable[AppliedEffect]"]
STALE_ATTEMPTS_MAX = 5


class EffectOutcome(StrEnum):
    """The outcome of one write."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    VOID = "void"


class AppliedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome, and the object after the write (None when it does not exist any more)."""

    outcome: EffectOutcome
    allocation: Allocation | None
    traceparent: str = ""
    """of the span of the write; empty when nothing was written"""


class Applier:
    """Makes the writes of one leader."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        run_limit: Callable[[str], float | None] = lambda _: None,
        flavor: Callable[[str, Mapping[int, str]], str] = lambda _allocation, _nodes: "",
    ) -> None:
        """`run_limit` returns the longest run time in a queue, in seconds; None for no limit. `flavor` returns the GPU
        flavor of an allocation (namespace/name) with ranks on these nodes; empty in a pool without flavors."""
        self._kube = kube
        self._clock = clock
        self._run_limit = run_limit
        self._flavor = flavor

    async def read(self, decision: Decision) -> Allocation | None:
        """Read the object of a decision, as `seen` for `decision`; None when it cannot be read now."""
        namespace, name = decision.allocation.split("/", 1)
        try:
            return await self._kube.get(ALLOCATIONS, name, namespace=namespace)
        except (NotFoundError, TransientError, DeniedError):
            return None

    async def decision(self, decision: Decision, nodes: Sequence[str], seen: Allocation | None = None) -> AppliedEffect:
        """Apply one decision of the ledger; the decision keeps its own epoch, even if a later leader applies it.

        `seen` saves the first read. It may be old: then the write under its version fails, and the object is read.

        Raises:
            StaleError: the object kept changing; the decision stays open.
            TransientError: the API server did not accept the write; the decision stays open.
        """
        namespace, name = decision.allocation.split("/", 1)
        if decision.kind is DecisionKind.EVICT:
            return await self._retried(namespace, name, lambda found: self._evict(found, decision), seen)
        if decision.kind is DecisionKind.GROW:
            return await self._retried(namespace, name, lambda found: self._grow(found, decision, nodes), seen)
        return await self._retried(namespace, name, lambda found: self._admit(found, decision, nodes), seen)

    async def stop(self, namespace: str, name: str, uid: str, attempt: int, reason: Reason) -> AppliedEffect:
        """Write `status.stop` for a deadline that has passed."""
        stop = Stop(reason=reason.value, at=format_time(self._clock.now()), attempt=attempt)
        return await self._retried(namespace, name, lambda found: self._stop(found, uid, stop))

    async def explain(self, fact: AllocationFact, gate: Gate, message: str) -> AppliedEffect:
        """Write why an allocation waits as a condition (or, for a spec that can never run, that it is invalid).

        If only a change by a user or administrator can end the wait, the condition Stalled is set as well.
        """

        async def write(found: Allocation) -> AppliedEffect:
            status, attempt = found.status, fact.attempt
            is_other = found.metadata.uid != fact.uid or status.attempt != attempt
            if is_other or status.phase is not Phase.PENDING or stop_reason(found) is not None:
                return AppliedEffect(outcome=EffectOutcome.VOID, allocation=found)
            invalid = gate is Gate.INVALID
            condition = Condition(
                type=CONDITION_INVALID if invalid else CONDITION_ADMITTED,
                status="True" if invalid else "False",
                reason=gate.value,
                message=message,
                # `kubectl wait` for `Admitted` compares generations;
                # the watcher, which ends an attempt, compares attempts.
                observed_generation=attempt if invalid else found.metadata.generation,
                last_transition_time=format_time(self._clock.now()),
            )
            before = condition_of(status.conditions, condition.type)
            if before is not None and _is_same_text(before, condition):
                return AppliedEffect(outcome=EffectOutcome.UNCHANGED, allocation=found)
            conditions = _with_condition(_without_stalled(status.conditions), condition)
            if is_stalled(gate, message):
                stalled = msgspec.structs.replace(
                    condition,
                    type=CONDITION_STALLED,
                    status="True",
                    observed_generation=found.metadata.generation,
                    last_transition_time=_stalled_since(status.conditions) or condition.last_transition_time,
                )
                conditions.append(stalled)
            return await self._put(found, conditions=conditions)

        return await self._retried(fact.namespace, fact.name, write, object_of(fact))

    async def _admit(self, found: Allocation, decision: Decision, nodes: Sequence[str]) -> AppliedEffect:
        status = found.status
        if status.admission is not None and status.admission.decision_id == decision.id:
            return AppliedEffect(outcome=EffectOutcome.UNCHANGED, allocation=found)
        is_other = found.metadata.uid != decision.uid or status.attempt != decision.attempt
        if is_other or status.phase is not Phase.PENDING or stop_reason(found) is not None:
            return AppliedEffect(outcome=EffectOutcome.VOID, allocation=found)
        with telemetry.span(
            "scheduler.admit",
            parent=traceparent_of(found.metadata),
            links=[attempt_span(found.metadata, decision.attempt - 1)] if decision.attempt > 1 else (),
            allocation_id=id_of(found),
            attributes={
                "slipway.decision.id": decision.id,
                "slipway.epoch": decision.epoch,
                "slipway.attempt": decision.attempt,
                "slipway.pool": found.spec.pool,
                "slipway.queue": found.spec.queue,
                "k8s.namespace.name": found.metadata.namespace,
            },
        ) as span:
            applied = await self._write_admission(found, decision, nodes)
            return msgspec.structs.replace(applied, traceparent=span.traceparent)

    async def _write_admission(self, found: Allocation, decision: Decision, nodes: Sequence[str]) -> AppliedEffect:
        status = found.status
        if TEARDOWN_FINALIZER not in found.metadata.finalizers:
            found = await self._finalize(found)
        now = self._clock.now()
        admission = Admission(
            decision_id=decision.id,
            epoch=decision.epoch,
            attempt=decision.attempt,
            at=format_time(now),
            spec_hash=decision.spec_hash,
            placements=_placements(found, decision, nodes),
            # This is the limit of the queue only: the allocation's own limit may change while it runs.
            max_runtime=_as_duration(self._run_limit(found.spec.queue)),
            elastic=is_elastic(found.spec),
            flavor=self._flavor(decision.allocation, node_names(decision, nodes)),
        )
        admitted = Condition(
            type=CONDITION_ADMITTED,
            status="True",
            reason="Admitted",
            message=f"decision {decision.id}",
            observed_generation=found.metadata.generation,
            last_transition_time=format_time(now),
        )
        data = {"decision": decision.id, "nodes": _node_counts(admission.placements)}
        written = record(
            found,
            Event.ASSIGNED,
            now=now,
            data=data,
            admission=admission,
            conditions=_with_condition(_without_stalled(status.conditions), admitted),
            reason="",
        )
        return AppliedEffect(outcome=EffectOutcome.APPLIED, allocation=await self._send(written))

    async def _grow(self, found: Allocation, decision: Decision, nodes: Sequence[str]) -> AppliedEffect:
        """Add ranks to a running attempt; ranks that were evicted and have ended are removed from it for good."""
        status, growth = found.status, growth_of(found)
        if growth is not None and growth.decision_id == decision.id:
            return AppliedEffect(outcome=EffectOutcome.UNCHANGED, allocation=found)
        is_other = found.metadata.uid != decision.uid or status.attempt != decision.attempt
        # The write of a deposed leader is too late:
        # another leader has finished its decision, and the ranks may have ended.
        is_old = growth is not None and growth.epoch > decision.epoch
        if is_other or is_old or status.phase is not Phase.RUNNING or stop_reason(found) is not None:
            return AppliedEffect(outcome=EffectOutcome.VOID, allocation=found)
        gone = frozenset(departed_ranks(found))
        standing = [member for member in members(found) if member.rank not in gone]
        added = _placements(found, decision, nodes)
        if {place.rank for place in added} & (
            {member.rank for member in standing} | (set(leaving_ranks(found)) - gone)
        ):
            return AppliedEffect(outcome=EffectOutcome.VOID, allocation=found)
        kept = [member for member in standing if member.grown]
        first = {place.rank for place in status.admission.placements} if status.admission is not None else set[int]()
        stay = {member.rank for member in standing if not member.grown}
        grown = Growth(
            n=growth.n + 1 if growth is not None else 1,
            attempt=decision.attempt,
            decision_id=decision.id,
            epoch=decision.epoch,
            at=format_time(self._clock.now()),
            # Released ranks come first, so that placements and pod uids have the same order.
            placements=[*(member.placement for member in sorted(kept, key=_is_unreleased)), *added],
            pod_uids=[member.pod_uid for member in kept if member.pod_uid],
            left=sorted(first - stay),
            told=growth.told if growth is not None else 0,
            reason=growth.reason if growth is not None else "",
        )
        return await self._put(found, growth=grown, shrink=None if gone else status.shrink)

    async def _evict(self, found: Allocation, decision: Decision) -> AppliedEffect:
        now = format_time(self._clock.now())
        reason = decision.reason or Reason.PREEMPTED.value
        if decision.ranks:
            return await self._shrink(found, decision, reason, now)
        stop = Stop(reason=reason, at=now, attempt=decision.attempt, requeue=True, by=decision.by)
        return await self._stop(found, decision.uid, stop, preemptions=_with_notice(found, decision, now))

    async def _shrink(self, found: Allocation, decision: Decision, reason: str, now: str) -> AppliedEffect:
        """Evict surplus ranks. Ranks that were evicted before stay in the list,
        because the pod worker may have deleted them."""
        status = found.status
        is_other = found.metadata.uid != decision.uid or status.attempt != decision.attempt
        if is_other or status.phase is Phase.TERMINATED:
            return AppliedEffect(outcome=EffectOutcome.VOID, allocation=found)
        known = leaving_ranks(found)
        fresh = tuple(rank for rank in decision.ranks if rank not in known)
        if stop_reason(found) is not None or status.phase is Phase.TERMINATING or not fresh:
            return AppliedEffect(outcome=EffectOutcome.UNCHANGED, allocation=found)
        shrink = Shrink(
            ranks=[*known, *fresh],
            attempt=decision.attempt,
            reason=reason,
            at=now,
            by=decision.by,
            told=status.shrink.told if known and status.shrink is not None else 0,
        )
        return await self._put(found, shrink=shrink, preemptions=_with_notice(found, decision, now))

    async def _stop(self, found: Allocation, uid: str, stop: Stop, **changes: object) -> AppliedEffect:
        status = found.status
        is_other = found.metadata.uid != uid or status.attempt != stop.attempt
        if is_other or status.phase is Phase.TERMINATED:
            return AppliedEffect(outcome=EffectOutcome.VOID, allocation=found)
        if stop_reason(found) is not None:
            return AppliedEffect(outcome=EffectOutcome.UNCHANGED, allocation=found)
        return await self._put(found, stop=stop, **changes)

    async def _finalize(self, found: Allocation) -> Allocation:
        meta = found.metadata
        return await self._kube.patch(
            ALLOCATIONS,
            meta.name,
            {
                "metadata": {
                    "resourceVersion": meta.resource_version,
                    "finalizers": [*meta.finalizers, TEARDOWN_FINALIZER],
                }
            },
            namespace=meta.namespace,
        )

    async def _put(self, found: Allocation, **changes: object) -> AppliedEffect:
        written = with_status(found, msgspec.structs.replace(found.status, **changes))
        return AppliedEffect(outcome=EffectOutcome.APPLIED, allocation=await self._send(written))

    async def _send(self, written: Allocation) -> Allocation:
        """PUT only the status: the server ignores everything else in a PUT of `/status`, and a spec may be large."""
        return await self._kube.replace_status(
            ALLOCATIONS, {"metadata": written.metadata.fence, "status": written.status}
        )

    async def _retried(self, namespace: str, name: str, write: Write, seen: Allocation | None = None) -> AppliedEffect:
        """Read, then write; after a stale read, repeat both a few times."""
        for attempt in range(STALE_ATTEMPTS_MAX):
            found, seen = seen, None
            try:
                return await write(found or await self._kube.get(ALLOCATIONS, name, namespace=namespace))
            except NotFoundError:
                return AppliedEffect(outcome=EffectOutcome.VOID, allocation=None)
            except StaleError:
                if attempt + 1 == STALE_ATTEMPTS_MAX:
                    raise
        raise AssertionError("unreachable")


def _with_notice(found: Allocation, decision: Decision, now: str) -> list[Preempted]:
    """Return its list of preemptions, with this one; an eviction that is for no other allocation is no preemption."""
    known = found.status.preemptions
    if not decision.by:
        return known
    return [*known, Preempted(at=now, by=decision.by, attempt=decision.attempt)][-PREEMPTIONS_MAX:]


def _placements(found: Allocation, decision: Decision, nodes: Sequence[str]) -> list[Placement]:
    roles = [role.name for role in found.spec.ranks for _ in range(role.count)] or ["worker"]
    return [
        Placement(
            rank=rank,
            role=roles[rank] if rank < len(roles) else "",
            node=node,
            device=list(decision.devices.get(str(rank), ())),
        )
        for rank, node in node_names(decision, nodes).items()
    ]


def _is_unreleased(member: GangMember) -> bool:
    return not member.pod_uid


def _node_counts(placements: Sequence[Placement]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for placement in placements:
        counts[placement.node] = counts.get(placement.node, 0) + 1
    return counts


def _with_condition(conditions: Sequence[Condition], condition: Condition) -> list[Condition]:
    before = condition_of(list(conditions), condition.type)
    if before is not None and before.status == condition.status and before.last_transition_time:
        condition = msgspec.structs.replace(condition, last_transition_time=before.last_transition_time)
    return [*(item for item in conditions if item.type != condition.type), condition]


def _without_stalled(conditions: Sequence[Condition]) -> list[Condition]:
    return [item for item in conditions if item.type != CONDITION_STALLED]


def _stalled_since(conditions: Sequence[Condition]) -> str | None:
    before = condition_of(list(conditions), CONDITION_STALLED)
    return before.last_transition_time if before is not None else None


def _is_same_text(before: Condition, after: Condition) -> bool:
    return (before.status, before.reason, before.message, before.observed_generation) == (
        after.status,
        after.reason,
        after.message,
        after.observed_generation,
    )


def _as_duration(limit: float | None) -> str | None:
    return None if limit is None else f"{math.ceil(limit)}s"
