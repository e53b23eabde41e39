"""Joins the ranks of one attempt: for each rank, its record in the allocation and its pod.

Owns which pod belongs to which rank (by the uids in the release), when a gang has succeeded, and when it has lost too
many ranks. Pure. Must not decide what follows from that.

Invariants: a recorded end never changes; a pod that was not seen changes nothing by itself; only a consistent read
(`consistent`) turns "not seen" into "gone", and the loss of a node into the loss of a rank.

The record of one rank is updated from its pod, and changes in one direction only. Two watchers may see one pod in views
of different ages, and both may have to act. So a record is a join: it adopts newer information from a view, and never
drops what another watcher has seen, in whatever order the views arrive.

Invariants: the state of one pod never goes back, its node stays, and the reason why it will be lost only becomes more
certain. Joining a view twice changes nothing. A recorded end stays as it is.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress

import msgspec

from slipway.crd.members import members, rank_count, restarts_ranks
from slipway.crd.policies import (
    FailureAction,
    FailurePolicy,
    RankEnd,
    SuccessPolicy,
    SuccessState,
    action_of,
    deciding_rule,
    said_by,
    success_state,
)
from slipway.crd.transitions import is_released, leaving_ranks, ring_of, stop_reason
from slipway.crd.v1alpha1 import SLICES_MAX, Allocation, RankStatus
from slipway.facts.core_objects import pod_fact
from slipway.kube.objects import Pod
from slipway.model.lifecycle import RANK_ENDS, Event, Phase, RankState, is_behind
from slipway.model.mig import slices_in, whole_gpus
from slipway.model.reasons import INFRASTRUCTURE, Reason
from slipway.model.resources import Resources, total
from slipway.model.times import parse_time
from slipway.pods.ended import recorded
from slipway.watcher import ends, exits
from slipway.watcher.exits import RankExit

_BY_CERTAINTY = (Reason.NONE, Reason.POD_DELETED, Reason.PREEMPTED, Reason.EVICTED, Reason.NODE_LOST)
"""Why a living rank will be lost, by certainty.
A program that deletes a pod may give its reason before or after the delete, or never."""


def merged(known: RankStatus | None, seen: RankStatus) -> RankStatus:
    """Return the record after a view, given the record before it;
    both are of the same pod. An end is recorded as seen."""
    if known is None:
        return seen
    if known.phase in RANK_ENDS:
        return known
    if seen.phase in RANK_ENDS:
        return seen
    return RankStatus(
        pod_uid=seen.pod_uid,
        node=known.node or seen.node,
        phase=known.phase if is_behind(seen.phase, known.phase) else seen.phase,
        reason=max(known.reason, seen.reason, key=_certainty),
    )


def _certainty(reason: str) -> int:
    """Return the position of a reason in `_BY_CERTAINTY`; a reason that is not in it is the most certain."""
    return next((index for index, each in enumerate(_BY_CERTAINTY) if each == reason), len(_BY_CERTAINTY))


NODES_CHARS_MAX = 96
_DECIDED = frozenset(
    {
        Reason.COMPLETED,
        Reason.KILLED,
        Reason.DELETED,
        Reason.NAMESPACE_TERMINATING,
        Reason.PREEMPTED,
        Reason.PREEMPTION_GRACE,
        Reason.IDLE,
        Reason.MAX_RUNTIME,
        Reason.PENDING_TIMEOUT,
        Reason.LAUNCH_STUCK,
        Reason.INVALID_SPEC,
        Reason.LAUNCH_REFUSED,
    }
)
"""Reasons that concern an attempt as a whole, not one rank of it."""
_OF_THE_PROGRAM = frozenset({Reason.RANK_FAILED, Reason.OUT_OF_MEMORY, Reason.INIT_FAILED, Reason.UNKNOWN_EXIT})
"""Failures that a failure rule may match by role and exit code."""
_WITH_A_CODE = frozenset({Reason.RANK_FAILED, Reason.OUT_OF_MEMORY})
"""The failures whose exit code is that of the main container."""
_DISRUPTIONS = frozenset({Reason.NODE_LOST, Reason.EVICTED, Reason.REJECTED, Reason.POD_DELETED, Reason.POD_LOST})
"""Losses of one rank that a failure rule may match by `disruption`."""


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One placed rank.

    `exit` is set when it has ended; `loss` when it still runs, but will certainly be lost; `missing` when its pod was
    not seen or its node is gone, and no consistent read has confirmed that yet.
    """

    index: int
    role: str
    uid: str
    pod: Pod | None = None
    stored: RankStatus | None = None
    exit: RankExit | None = None
    loss: RankExit | None = None
    missing: bool = False
    daemon: bool = False
    placed_on: str = ""
    grown: bool = False
    """it was added while the other ranks ran"""
    leaving: bool = False
    """it is evicted while the rest of the gang goes on"""
    ended_by: str = ""
    """why the whole attempt is being ended: the reason of each rank that is killed with it; else empty"""
    decided_at: float | None = None
    """when the end of this rank was decided (epoch seconds); None when it was not"""
    rule: int | None = None
    """the index of the failure policy's rule that matches its failure; None without one"""
    action: FailureAction | None = None
    """the action of that rule"""
    retried: RankExit | None = None
    """how its pod ended, if the rank starts again in its place: the gang treats such a rank as not ended"""
    is_spared: bool = False
    """a failure rule does not count this restart against maxRestarts"""
    restarts: int = 0
    """how many times it was restarted in this attempt"""

    @property
    def node(self) -> str:
        """Its node: that of its pod, else the recorded one, else the planned one."""
        seen = self.pod.spec.node_name if self.pod else ""
        return seen or (self.stored.node if self.stored else "") or self.placed_on

    @property
    def is_live(self) -> bool:
        """Whether its pod may still run."""
        return self.pod is not None and not exits.is_over(self.pod)

    @property
    def is_bound(self) -> bool:
        """Whether it has, or had, a node."""
        return self.end is not None or (self.pod is not None and exits.is_bound(self.pod))

    @property
    def end(self) -> RankExit | None:
        """How its pod ended, whether or not the rank starts again."""
        return self.exit or self.retried

    @property
    def is_recorded(self) -> bool:
        """Whether its end is recorded in the status."""
        return self.stored is not None and self.stored.phase in RANK_ENDS

    @property
    def has_started(self) -> bool:
        """Whether its main container runs or has run."""
        if self.retried is not None or (self.pod is not None and exits.has_started(self.pod)):
            return True
        return self.exit is not None and (self.exit.state is RankState.SUCCEEDED or self.is_ignored)

    @property
    def is_ignored(self) -> bool:
        """Whether it failed, and a failure rule treats that as an exit with 0."""
        return self.exit is not None and self.action is FailureAction.IGNORE

    @property
    def is_fatal(self) -> bool:
        """Whether it failed, and by a failure rule its whole allocation has failed."""
        return self.action is FailureAction.FAIL and self.failure is not None

    @property
    def order(self) -> tuple[bool, bool, float, bool, int]:
        """The sort key of ends, by time. A recorded end comes before one that is only seen;
        in one second, a success is first."""
        end = self.end or self.loss
        if self.is_recorded and self.pod is not None:
            # The record does not contain the time of the end. The pod does, and it exists as long as its attempt.
            end = exits.exit_of(self.pod) or end
        at = end.at if end is not None else None
        return not self.is_recorded, at is None, at or 0.0, self.failure is not None, self.index

    @property
    def is_joining(self) -> bool:
        """Whether the rank was added and has never run: the gang does not need it, and does not fail when it fails."""
        has_run = self.has_started or (self.exit is not None and self.exit.code is not None)
        if self.pod is None and self.stored is not None:
            # If a rank ended before it ran, the write that recorded its end also evicted it.
            has_run |= self.stored.phase is RankState.RUNNING or (self.is_recorded and not self.leaving)
        return self.grown and not has_run

    @property
    def failure(self) -> RankExit | None:
        """Why the rank has failed for the gang: a failed end that no rule ignores, a certain loss, or a killed success;
        else None."""
        return None if self.is_ignored else self.failed_end

    @property
    def failed_end(self) -> RankExit | None:
        """Its failure, even if a rule ignores it; None without one."""
        if self.loss is not None:
            return self.loss
        if self.exit is None:
            return None
        if self.exit.state is RankState.FAILED:
            return self.exit
        reason = Reason.PREEMPTED if self.leaving else Reason.POD_DELETED
        return msgspec.structs.replace(self.exit, reason=reason) if self.exit.killed else None

    @property
    def has_succeeded(self) -> bool:
        """Whether it ended with success and was not killed."""
        return self.exit is not None and self.failure is None

    def status(self) -> RankStatus:
        """Return its status as it is to be recorded."""
        node = self.pod.spec.node_name if self.pod else self.stored.node if self.stored else ""
        if self.end is not None:
            seen = RankStatus(
                pod_uid=self.uid,
                node=node,
                phase=self.end.state,
                exit_code=self.end.code,
                reason=self.retried.reason.value if self.retried is not None else self._reason_of_end(),
            )
        elif self.pod is not None:
            reason = self.loss.reason.value if self.loss else ""
            seen = RankStatus(pod_uid=self.uid, node=node, phase=exits.rank_state(self.pod), reason=reason)
        else:
            seen = RankStatus(pod_uid=self.uid)
        return merged(self.stored, seen)

    def _reason_of_end(self) -> str:
        if self.exit is not None and self.exit.killed and self.ended_by:
            blamed = self.stored.reason if self.stored is not None else ""
            return blamed or self.ended_by
        return self.failed_end.reason.value if self.failed_end else ""


class ObservedGang(msgspec.Struct, frozen=True, kw_only=True):
    """The placed ranks of the attempt, in order; empty before the release.
    `count` is the number of all ranks, also unplaced."""

    ranks: tuple[Rank, ...]
    count: int
    spare: int
    """the number of placed ranks that the gang can lose"""
    spare_by_role: Mapping[str, int]
    before: tuple[RankStatus, ...] = ()
    """the recorded status of each rank, including those that have left"""
    failure_policy: FailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    firsts: Mapping[str, int] = {}
    """{role: the number of its first rank}"""

    @property
    def workers(self) -> tuple[Rank, ...]:
        """The ranks that keep the gang alive: all except daemons and added ranks that have not run yet.
        The only rank of a gang is always a worker."""
        if len(self.ranks) == 1:
            return self.ranks
        return tuple(rank for rank in self.ranks if not rank.daemon and not rank.is_joining)

    @property
    def joining(self) -> list[Rank]:
        """Ranks that were added and have never run."""
        return [rank for rank in self.ranks if rank.is_joining]

    @property
    def has_ended(self) -> bool:
        """Whether every worker has ended."""
        return bool(self.ranks) and all(rank.exit is not None for rank in self.workers)

    @property
    def has_succeeded(self) -> bool:
        """Whether the success policy was met before a failure ended the gang.

        Without a policy: whether every worker has ended, and enough workers with success.

        The ends are evaluated in the order in which they happened. So a watcher that sees several ends at once decides
        like a watcher that has seen them one by one.
        """
        if not self._is_met(self.ranks):
            return False
        if self.success_policy is None and not any(rank.is_fatal for rank in self.ranks):
            return True
        before = [rank for rank in self._until_met() if rank.failure is not None and not rank.is_joining]
        is_exceeded = self.success_policy is not None and self._exceeds(before)
        return not is_exceeded and not any(rank.is_fatal for rank in before)

    @property
    def success(self) -> SuccessState:
        """The state of the success policy; once it is met, its state at that moment."""
        now = self._success(self.ranks)
        return self._success(self._until_met()) if now.is_met else now

    @property
    def ignored(self) -> list[Rank]:
        """Ranks whose failure a rule ignores."""
        return [rank for rank in self.ranks if rank.is_ignored]

    @property
    def is_broken(self) -> bool:
        """Whether more ranks are lost than the minimum allows, a rule fails the gang,
        or success has become impossible."""
        lost = self.lost
        if not lost:
            return False
        if self._exceeds(lost) or any(rank.is_fatal for rank in lost):
            return True
        success = self.success
        return success.is_out_of_reach if success.has_ranks else self.has_ended and not self.has_succeeded

    @property
    def lost(self) -> list[Rank]:
        """Ranks that have failed or certainly will, without added ranks that never ran."""
        return [rank for rank in self.ranks if rank.failure is not None and not rank.is_joining]

    @property
    def cause(self) -> Rank | None:
        """The rank whose failure is the cause: the first failure in the order of `_cause_order`.

        Failures of infrastructure come before those of the program, recorded failures before those that are only seen,
        and evicted ranks last. If a rule fails the gang, the failure that it matches is the cause, unless the gang was
        broken before.
        """
        fatal = min((rank for rank in self.lost if rank.is_fatal), key=_order, default=None)
        earlier = [rank for rank in self.lost if fatal is not None and rank.order < fatal.order]
        if fatal is not None and not self._exceeds(earlier) and not self._success(earlier).is_out_of_reach:
            return fatal
        return min(earlier or self.lost, key=_cause_order, default=None)

    @property
    def retried(self) -> list[Rank]:
        """Ranks that have failed and will start again in their place, in the order of their ends.

        If the gang has succeeded: only ranks that failed before that.
        """
        found = sorted((rank for rank in self.ranks if rank.retried is not None), key=_order)
        if not found or not self.has_succeeded:
            return found
        # A gang that has only daemons has succeeded without any end, so no failure came before that.
        until = self._until_met()
        return [rank for rank in found if until and rank.order < until[-1].order]

    @property
    def live(self) -> list[Rank]:
        """Ranks whose pod may still run."""
        return [rank for rank in self.ranks if rank.is_live]

    @property
    def missing(self) -> list[Rank]:
        """Ranks without a known end whose pod or node was not seen."""
        return [rank for rank in self.ranks if rank.missing]

    @property
    def is_bound(self) -> bool:
        """Whether every placed rank has a node."""
        return bool(self.ranks) and all(rank.is_bound for rank in self.ranks)

    @property
    def has_started(self) -> bool:
        """Whether every placed rank runs or has run; failed ranks that the gang does not need are ignored."""
        if self.is_broken:
            return all(rank.has_started for rank in self.ranks)
        waited_for = [rank for rank in self.ranks if rank.failure is None]
        return bool(waited_for) and all(rank.has_started for rank in waited_for)

    @property
    def slots(self) -> int:
        """The whole GPUs that its pods request, without evicted ranks that have ended."""
        return whole_gpus(sum(asked.gpu_units() for asked in self._requested()))

    @property
    def slices(self) -> dict[str, int]:
        """{resource: how many} of the MIG slices that these pods request."""
        asked = total(self._requested())
        return {name: asked.get(name) for name in sorted(slices_in(asked))[:SLICES_MAX]}

    def _requested(self) -> Iterator[Resources]:
        asking = (rank for rank in self.ranks if not (rank.leaving and rank.exit is not None))
        return (pod_fact(rank.pod).requests for rank in asking if rank.pod is not None)

    def statuses(self) -> list[RankStatus]:
        """Return `status.ranks`: index = rank.

        A rank that was never placed has an empty entry; a rank that has left keeps its last record; a rank that will
        start again shows how it ended.
        """
        known = dict(enumerate(self.before)) | {rank.index: rank.status() for rank in self.ranks if rank.uid}
        return [known.get(index) or RankStatus() for index in range(self.count)]

    def nodes(self) -> str:
        """Return the names of the nodes, shortened: `a,b +2`."""
        names = sorted({rank.pod.spec.node_name for rank in self.ranks if rank.pod and rank.pod.spec.node_name})
        shown: list[str] = []
        for name in names:
            if shown and len(",".join([*shown, name])) > NODES_CHARS_MAX:
                break
            shown.append(name)
        rest = len(names) - len(shown)
        return ",".join(shown) + (f" +{rest}" if rest else "")

    def exit_counts(self) -> dict[str, int]:
        """Return {exit code: how many ranks}; `?` for ends without a code."""
        counts: dict[str, int] = {}
        for rank in self.ranks:
            if rank.end is not None:
                code = "?" if rank.end.code is None else str(rank.end.code)
                counts[code] = counts.get(code, 0) + 1
        return counts

    def rule_text(self, rank: Rank) -> str:
        """Return the failure rule that matches the failure of a rank, in words; empty without one."""
        return said_by(self.failure_policy, rank.rule)

    def _is_met(self, ended: Sequence[Rank]) -> bool:
        """Whether the gang would have succeeded if only these ranks had ended."""
        if not self.ranks:
            return False
        success = self._success(ended)
        if success.has_ranks:
            return success.is_met
        known = {rank.index for rank in ended if rank.exit is not None}
        if any(rank.index not in known for rank in self.workers):
            return False
        failed = [rank for rank in self.workers if not rank.has_succeeded]
        return not self.workers or (len(failed) < len(self.workers) and not self._exceeds(failed))

    def _until_met(self) -> list[Rank]:
        """Return the ended ranks, in the order of their ends, up to the rank whose end made the gang succeed."""
        ended = sorted((rank for rank in self.ranks if rank.exit is not None or rank.loss is not None), key=_order)
        return ended[: bisect_left(range(len(ended) + 1), True, key=lambda count: self._is_met(ended[:count]))]

    def _success(self, ended: Sequence[Rank]) -> SuccessState:
        """Return the state of the success policy if only these ranks had ended."""
        if self.success_policy is None:
            return SuccessState()
        known = {rank.index for rank in ended}
        counted = (rank for rank in self.ranks if not rank.is_joining and not (rank.leaving and rank.failure))
        return success_state(
            self.success_policy,
            [
                RankEnd(
                    role=rank.role,
                    index=rank.index - self.firsts.get(rank.role, 0),
                    has_succeeded=_has_succeeded(rank) if rank.index in known else None,
                    daemon=rank.daemon,
                )
                for rank in counted
            ],
        )

    def _exceeds(self, lost: Sequence[Rank]) -> bool:
        if len(lost) > self.spare:
            return True
        by_role: dict[str, int] = {}
        for rank in lost:
            by_role[rank.role] = by_role.get(rank.role, 0) + 1
        return any(count > self.spare_by_role.get(role, 0) for role, count in by_role.items())


def is_unrecorded(allocation: Allocation, found: ObservedGang) -> bool:
    """Whether an end was seen that is not recorded yet."""
    known = recorded(allocation)
    return any(rank.end is not None and rank.uid and rank.uid not in known for rank in found.ranks)


def given_up(allocation: Allocation) -> frozenset[str]:
    """Return the nodes that an administrator has declared lost for this attempt:
    none of its ranks runs there any more."""
    signals = allocation.spec.signals
    is_current = signals is not None and signals.attempt == allocation.status.attempt
    return frozenset(signals.lost_nodes) if signals is not None and is_current else frozenset()


def assemble(
    allocation: Allocation,
    pods: Iterable[Pod],
    *,
    nodes_gone: Set[str] = frozenset(),
    consistent: bool = False,
    namespace_terminating: bool = False,
) -> ObservedGang:
    """Return the gang of the current attempt; `consistent` is whether `pods` come from a consistent read."""
    status = allocation.status
    if not is_released(allocation) or status.release is None:
        return ObservedGang(ranks=(), count=rank_count(allocation), spare=0, spare_by_role={})
    seen = {pod.metadata.uid: pod for pod in pods}
    roles = _roles(allocation)
    stored = status.ranks or []
    signals = allocation.spec.signals
    daemons = set(signals.daemons) if signals is not None and signals.attempt == status.attempt else set[int]()
    daemon_roles = {role.name for role in allocation.spec.ranks if role.daemon}
    ended_by, leaving = _ended_by(allocation), set(leaving_ranks(allocation))
    ranks: list[Rank] = []
    for member in members(allocation):
        placement, uid, index = member.placement, member.pod_uid, member.rank
        if not uid and member.restart is None:
            continue
        known = stored[index] if index < len(stored) and stored[index].pod_uid == uid else None
        rank = Rank(
            index=index,
            role=placement.role or roles.get(index, ""),
            uid=uid,
            pod=seen.get(uid),
            stored=known,
            daemon=index in daemons or (placement.role or roles.get(index, "")) in daemon_roles,
            placed_on=placement.node,
            grown=member.grown,
            leaving=index in leaving,
            ended_by=ended_by,
            decided_at=_decided_at(allocation, is_leaving=index in leaving),
            restarts=member.restart.n if member.restart is not None else 0,
        )
        if not uid:
            ranks.append(rank)
            continue
        seen_end = _with_preempted_reason(_with_end(rank, nodes_gone=nodes_gone, consistent=consistent))
        ranks.append(_with_rule(seen_end, allocation.spec.failure_policy))
    ranks = _without_restarts(allocation, ranks)
    minimum, by_role = _minimums(allocation)
    placed: dict[str, int] = {}
    counted = [rank for rank in ranks if not rank.is_joining]
    for rank in counted:
        placed[rank.role] = placed.get(rank.role, 0) + 1
    return ObservedGang(
        ranks=_with_restarts(allocation, ranks, namespace_terminating=namespace_terminating),
        count=max(rank_count(allocation), len(stored), *(rank.index + 1 for rank in ranks)),
        spare=max(0, len(counted) - minimum),
        spare_by_role={role: max(0, count - by_role.get(role, 0)) for role, count in placed.items()},
        before=tuple(stored),
        failure_policy=allocation.spec.failure_policy,
        success_policy=allocation.spec.success_policy,
        firsts={role: index for index, role in reversed(roles.items())},
    )


def _with_end(rank: Rank, *, nodes_gone: Set[str], consistent: bool) -> Rank:
    """Return the rank with its end or its loss, if it has one."""
    stored, pod = rank.stored, rank.pod
    if stored is not None and stored.phase in RANK_ENDS:
        return msgspec.structs.replace(rank, exit=_recorded(stored))
    if pod is None:
        if not consistent:
            return msgspec.structs.replace(rank, missing=True)
        # The reason of its loss may have been recorded before the pod was gone.
        known = Reason(stored.reason) if stored is not None and stored.reason in INFRASTRUCTURE else Reason.POD_LOST
        lost = RankExit(state=RankState.FAILED, reason=known, message="the pod is gone", killed=True)
        return msgspec.structs.replace(rank, exit=lost)
    end = exits.exit_of(pod, decided_at=rank.decided_at)
    if end is not None:
        return msgspec.structs.replace(rank, exit=end)
    if pod.spec.node_name in nodes_gone and not consistent:
        # The rank may have ended before its node was gone; only a later version of the pod would show that.
        return msgspec.structs.replace(rank, missing=True)
    if pod.spec.node_name in nodes_gone:
        text = f"node {pod.spec.node_name} is gone"
        return msgspec.structs.replace(
            rank, loss=RankExit(state=RankState.FAILED, reason=Reason.NODE_LOST, message=text, killed=True)
        )
    return msgspec.structs.replace(rank, loss=exits.certain_loss(pod))


def _with_preempted_reason(rank: Rank) -> Rank:
    """Return the rank, with the reason Preempted if it was killed after it was evicted."""
    if not rank.leaving:
        return rank
    known = {name: end for name, end in (("exit", rank.exit), ("loss", rank.loss)) if end is not None}
    told = {
        name: msgspec.structs.replace(end, reason=Reason.PREEMPTED)
        for name, end in known.items()
        if end.killed and end.reason in (Reason.POD_DELETED, Reason.POD_LOST)
    }
    return msgspec.structs.replace(rank, **told) if told else rank


def _with_rule(rank: Rank, policy: FailurePolicy | None) -> Rank:
    """Return the rank with the failure rule that matches its failure, if there is one."""
    failed = rank.failed_end if policy is not None else None
    if failed is None:
        return rank
    is_disruption = failed.reason in _DISRUPTIONS
    if not is_disruption and failed.reason not in _OF_THE_PROGRAM:
        return rank
    code = failed.code if failed.reason in _WITH_A_CODE else None
    rule = deciding_rule(policy, role=rank.role, code=code, is_disruption=is_disruption)
    return msgspec.structs.replace(rank, rule=rule, action=action_of(policy, rule))


def _without_restarts(allocation: Allocation, ranks: list[Rank]) -> list[Rank]:
    """Return the ranks; in an attempt that has to stop, ranks that wait for their next pod have ended.

    This applies only once all other ranks have ended, because the others may still save their work.
    """
    stored = allocation.status.ranks or []
    if stop_reason(allocation) is None or any(rank.uid and rank.exit is None for rank in ranks):
        return ranks
    return [
        rank
        if rank.uid or rank.index >= len(stored)
        else msgspec.structs.replace(rank, exit=_recorded(stored[rank.index]))
        for rank in ranks
    ]


def _with_restarts(allocation: Allocation, ranks: Sequence[Rank], *, namespace_terminating: bool) -> tuple[Rank, ...]:
    """Return the ranks; ranks that have failed and will start again in their place are marked as not ended.

    Failures are evaluated in the order of their time, up to the first one that ends the attempt. So a watcher that sees
    several failures at once counts like a watcher that has seen them one by one.
    """
    spec, status = allocation.spec, allocation.status
    is_stopping = stop_reason(allocation, namespace_terminating=namespace_terminating) is not None
    if not restarts_ranks(allocation) or is_stopping or ends.preemption(allocation) is not None:
        return tuple(ranks)
    rules = spec.failure_policy
    counted = spec.max_restarts - status.restarts
    spared = rules.max_uncounted_restarts - status.uncounted_restarts if rules is not None else 0
    again: dict[int, Rank] = {}
    for rank in sorted((rank for rank in ranks if rank.failure is not None), key=_order):
        failed, is_spared = rank.failure, rank.action is FailureAction.NOT_COUNTED and spared > 0
        if rank.exit is None or failed is None or failed.reason not in _WITH_A_CODE or rank.is_fatal:
            break
        if not is_spared and counted <= 0:
            break
        spared, counted = spared - is_spared, counted - (not is_spared)
        again[rank.index] = msgspec.structs.replace(rank, exit=None, retried=failed, is_spared=is_spared)
    return tuple(again.get(rank.index, rank) for rank in ranks)


def _has_succeeded(rank: Rank) -> bool | None:
    """Whether the rank has succeeded (True) or failed (False); None while neither is known."""
    if rank.failure is not None:
        return False
    return True if rank.exit is not None else None


def _cause_order(rank: Rank) -> tuple[bool | float | int, ...]:
    """Return the sort key of failures by which the cause comes first."""
    failure = rank.failure
    return rank.leaving, failure is None or not failure.is_infrastructure, *rank.order


def _order(rank: Rank) -> tuple[bool, bool, float, bool, int]:
    return rank.order


def _ended_by(allocation: Allocation) -> str:
    """Return the reason of the decision that ends the attempt; BelowMinimum if a rank's failure ends it; else empty."""
    status = allocation.status
    if status.phase is not Phase.TERMINATING or not status.reason:
        return ""
    is_decided = status.reason in _DECIDED or (status.stop is not None and status.stop.reason == status.reason)
    return status.reason if is_decided else Reason.BELOW_MINIMUM.value


def _decided_at(allocation: Allocation, *, is_leaving: bool) -> float | None:
    """Return when the eviction of a rank, or the end of its attempt, was decided (epoch seconds). Its pod is deleted
    later."""
    status, shrink = allocation.status, allocation.status.shrink
    times = [parse_time(shrink.at)] if is_leaving and shrink is not None and shrink.at else []
    for entry in reversed(ring_of(allocation)):
        if entry.attempt == status.attempt and entry.type is Event.TERMINATING:
            times.append(parse_time(entry.time))
            break
    return min(times, default=None)


def _recorded(stored: RankStatus) -> RankExit:
    reason = Reason.UNKNOWN_EXIT if stored.phase is RankState.FAILED else Reason.NONE
    with suppress(ValueError):
        reason = Reason(stored.reason)
    text = f"exit code {stored.exit_code}" if stored.exit_code else ""
    killed = stored.phase is RankState.SUCCEEDED and reason in (Reason.POD_DELETED, Reason.PREEMPTED)
    return RankExit(state=stored.phase, code=stored.exit_code, reason=reason, message=text, killed=killed)


def _roles(allocation: Allocation) -> dict[int, str]:
    names = [role.name for role in allocation.spec.ranks for _ in range(role.count)] or ["worker"]
    return dict(enumerate(names))


def _minimums(allocation: Allocation) -> tuple[int, dict[str, int]]:
    """Return the gang's minimum of ranks, and {role: minimum}.

    The default of a role is all its ranks, or 0 when the allocation states a minimum of its own.
    """
    spec = allocation.spec
    by_role: dict[str, int] = {}
    for role in spec.ranks:
        default = 0 if spec.min_available is not None else role.count
        by_role[role.name] = role.min_available if role.min_available is not None else default
    minimum = spec.min_available if spec.min_available is not None else sum(by_role.values())
    return (minimum if spec.ranks else 1), by_role
