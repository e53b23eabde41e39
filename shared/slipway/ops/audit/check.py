"""The register of invariants: each with its promise, its checks and the evidence that they need.

The simulation runs the checks after every run; chaos runs and live audits run them too, read-only. The ids are stable,
because gauges and reports use them. A check does not run when evidence that it needs is missing. Such a check does not
confirm its promise: `verdicts` lists the checks that ran. Pure.

Some evidence is needed before the absence of violations means anything; each check names what it needs.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import msgspec

from slipway.ops.audit import bounds, capacity, clients, exits, gangs, ledgers, lives, logs, preemptions, rest, streams
from slipway.ops.audit.clients import (
    objects_stay_at_home,
    secrets_stay_out_of_objects,
    secrets_stay_out_of_text,
    workspaces_keep_apart,
)
from slipway.ops.audit.evidence import AuditEvidence, InvariantViolation
from slipway.ops.audit.rest import (
    everything_is_as_desired,
    no_service_writes_at_rest,
    restarts_change_nothing,
    usage_is_exact,
)


class EvidenceKind(StrEnum):
    """One kind of evidence. The value is its description."""

    EVERY_VERSION = "every version of every object"
    BEGINNING = "the history from its beginning"
    WRITERS = "the writer of each version"
    REST = "an observation at rest"
    STREAMS = "the event streams"
    REQUESTS = "the requests of the services"
    PROMISES = "the answers that clients received"
    ACKS = "which hints were acknowledged"
    DELIVERIES = "how often each hint was delivered"
    CONSUMERS = "the members of the consumer groups"
    ANSWERS = "the clients' log"
    SECRETS = "planted secrets"
    TENANTS = "the strings that the test planted in workspaces"
    SPOKEN = "all texts that the services put out"
    SIZES = "samples of sizes"
    RESTARTS = "the times of restarts of all services"
    LOGS = "the stored logs"
    PRINTED = "the output of each rank"
    RULES = "the rules that the API server holds"
    SILENCE = "the time since which there was no work to do"


def lacking(evidence: AuditEvidence) -> frozenset[EvidenceKind]:
    """Return the kinds that this evidence lacks."""
    known = {
        EvidenceKind.EVERY_VERSION: not evidence.is_sampled,
        EvidenceKind.BEGINNING: not evidence.starts_late,
        EvidenceKind.WRITERS: evidence.has_writers,
        EvidenceKind.REST: evidence.is_at_rest,
        EvidenceKind.STREAMS: evidence.has_streams,
        EvidenceKind.REQUESTS: bool(evidence.requests),
        EvidenceKind.PROMISES: bool(evidence.promises or evidence.answers),
        EvidenceKind.ACKS: bool(evidence.acked),
        EvidenceKind.DELIVERIES: bool(evidence.deliveries),
        EvidenceKind.CONSUMERS: bool(evidence.consumers),
        EvidenceKind.ANSWERS: bool(evidence.answers),
        EvidenceKind.SECRETS: any(canary.is_secret for canary in evidence.canaries),
        EvidenceKind.TENANTS: any(canary.workspace for canary in evidence.canaries),
        EvidenceKind.SPOKEN: bool(evidence.spoken),
        EvidenceKind.SIZES: bool(evidence.measures),
        EvidenceKind.RESTARTS: bool(evidence.restarts),
        EvidenceKind.LOGS: evidence.logs is not None,
        EvidenceKind.PRINTED: bool(evidence.printed),
        EvidenceKind.RULES: evidence.crd_rules is not None,
        EvidenceKind.SILENCE: evidence.rest_from is not None,
    }
    return frozenset(need for need, is_known in known.items() if not is_known)


class InvariantCheck(msgspec.Struct, frozen=True):
    """One function that finds violations of an invariant. It runs only when all needed evidence is known."""

    find: Callable[[AuditEvidence], Iterator[InvariantViolation]]
    needs: tuple[EvidenceKind, ...] = ()

    @property
    def name(self) -> str:
        """The name for people."""
        return self.find.__name__.replace("_", " ")


class Invariant(msgspec.Struct, frozen=True):
    """One promise and its checks."""

    id: str
    promise: str
    checks: tuple[InvariantCheck, ...]


class InvariantVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit for one invariant. `judged` are the checks that ran, `missing` the evidence that others
    needed.
    """

    invariant: Invariant
    violations: tuple[InvariantViolation, ...]
    judged: tuple[str, ...]
    missing: tuple[EvidenceKind, ...] = ()


_N = EvidenceKind

INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "I1",
        "an acknowledged launch is never lost",
        (
            InvariantCheck(clients.acknowledged_launches_last, (_N.PROMISES,)),
            InvariantCheck(clients.what_lives_is_kept, (_N.EVERY_VERSION, _N.WRITERS)),
        ),
    ),
    Invariant(
        "I2",
        "the same Idempotency-Key gives one allocation; a launch with the same key and another body gets 422",
        (InvariantCheck(clients.keys_launch_once, (_N.ANSWERS,)),),
    ),
    Invariant(
        "I3",
        "at most one bound, live pod for each rank, over all attempts",
        (InvariantCheck(gangs.one_live_pod_per_rank),),
    ),
    Invariant(
        "I4",
        "at most one start for each rank and attempt",
        (InvariantCheck(gangs.one_start_per_attempt),),
    ),
    Invariant(
        "I5",
        "no pod is bound before all pods exist and the release record lists their uids",
        (InvariantCheck(gangs.release_before_bind, (_N.EVERY_VERSION,)),),
    ),
    Invariant(
        "I6",
        "at rest either no rank runs, or at least the minimum",
        (InvariantCheck(rest.gangs_are_whole), InvariantCheck(rest.lost_ranks_end_their_attempt)),
    ),
    Invariant(
        "I7",
        "an ended allocation stays ended; seq, attempt and epoch never decrease; results are written once",
        (InvariantCheck(lives.terminal_is_absorbing), InvariantCheck(lives.rules_are_installed, (_N.RULES,))),
    ),
    Invariant(
        "I8",
        "all transitions are legal",
        (InvariantCheck(lives.transitions_are_legal), InvariantCheck(streams.writes_are_allowed, (_N.REQUESTS,))),
    ),
    Invariant(
        "I9",
        "the epochs of a ledger increase, and every admission is a decision that was in a ledger before",
        (
            InvariantCheck(ledgers.epochs_rise),
            InvariantCheck(ledgers.admissions_come_from_decisions),
            InvariantCheck(ledgers.admissions_wait_for_dependencies),
            InvariantCheck(ledgers.growths_come_from_decisions),
            InvariantCheck(ledgers.decisions_are_finished, (_N.EVERY_VERSION,)),
        ),
    ),
    Invariant(
        "I10",
        "no capacity of a node and no quota is given twice",
        (
            InvariantCheck(capacity.nothing_is_given_twice, (_N.EVERY_VERSION,)),
            InvariantCheck(capacity.quotas_hold, (_N.EVERY_VERSION,)),
        ),
    ),
    Invariant(
        "I11",
        "no pod, ConfigMap, service or finalizer is left 60 s after the end",
        (InvariantCheck(rest.nothing_leaks),),
    ),
    Invariant(
        "I12",
        "no container runs longer than its grace after its allocation has ended",
        (
            InvariantCheck(gangs.nothing_outlives_its_end),
            InvariantCheck(gangs.what_is_deleted_has_its_grace, (_N.WRITERS,)),
        ),
    ),
    Invariant(
        "I13",
        "a committed cancel wins",
        (InvariantCheck(lives.cancels_win), InvariantCheck(lives.cancels_are_carried_out)),
    ),
    Invariant(
        "I14",
        "each stream is strictly ordered and contiguous, with one payload for each seq",
        (InvariantCheck(streams.streams_are_ordered, (_N.STREAMS,)),),
    ),
    Invariant(
        "I15",
        "at rest each stream is complete",
        (InvariantCheck(streams.streams_are_complete, (_N.STREAMS,)),),
    ),
    Invariant(
        "I16",
        "no pending hint, idle consumer or unexplained dead letter is left",
        (
            InvariantCheck(streams.nothing_stays_pending, (_N.REST, _N.STREAMS)),
            InvariantCheck(streams.nothing_is_lost, (_N.DELIVERIES, _N.REST)),
            InvariantCheck(streams.consumers_leave, (_N.CONSUMERS,)),
            InvariantCheck(streams.dead_letters_are_named, (_N.DELIVERIES,)),
        ),
    ),
    Invariant(
        "I17",
        "a hint that always fails is a dead letter after five deliveries, and delays no other hint",
        (
            InvariantCheck(streams.poison_is_set_aside, (_N.DELIVERIES,)),
            InvariantCheck(streams.poison_delays_no_other_hint, (_N.DELIVERIES,)),
        ),
    ),
    Invariant(
        "I18",
        "60 s after the last fault every object has its desired state, and from then on only leases are written",
        (
            InvariantCheck(everything_is_as_desired),
            InvariantCheck(no_service_writes_at_rest, (_N.SILENCE, _N.WRITERS)),
        ),
    ),
    Invariant(
        "I19",
        "no client sees an older state than before, and every answer is valid at every replica",
        (
            InvariantCheck(clients.time_runs_forward, (_N.ANSWERS,)),
            InvariantCheck(clients.cancels_are_seen, (_N.ANSWERS,)),
            InvariantCheck(clients.launches_are_found, (_N.ANSWERS,)),
        ),
    ),
    Invariant(
        "I20",
        "recorded exits are the exits of the containers",
        (InvariantCheck(exits.exits_are_true), InvariantCheck(exits.failures_have_an_exit)),
    ),
    Invariant(
        "I21",
        "preemptions have a decision, a beneficiary and their full grace, and are rare",
        (
            InvariantCheck(preemptions.preemptions_are_decided, (_N.EVERY_VERSION, _N.BEGINNING, _N.WRITERS)),
            InvariantCheck(preemptions.nobody_else_makes_room, (_N.EVERY_VERSION, _N.WRITERS)),
            InvariantCheck(preemptions.preemptions_have_a_beneficiary, (_N.EVERY_VERSION,)),
            InvariantCheck(preemptions.preemptions_have_their_grace),
            InvariantCheck(preemptions.preemptions_are_rare),
        ),
    ),
    Invariant(
        "I22",
        "no answer to one workspace contains data of another",
        (
            InvariantCheck(workspaces_keep_apart, (_N.TENANTS,)),
            InvariantCheck(objects_stay_at_home),
        ),
    ),
    Invariant(
        "I23",
        "secrets never reach Redis, ConfigMaps, events, logs, URLs or metrics",
        (
            InvariantCheck(secrets_stay_out_of_text, (_N.SECRETS, _N.SPOKEN)),
            InvariantCheck(secrets_stay_out_of_objects, (_N.SECRETS,)),
        ),
    ),
    Invariant(
        "I24",
        "the sizes of objects and streams, the number of writes, and the memory are bounded",
        (
            InvariantCheck(bounds.objects_are_bounded),
            InvariantCheck(bounds.writes_are_bounded, (_N.WRITERS, _N.BEGINNING)),
            InvariantCheck(bounds.streams_are_bounded, (_N.SIZES,)),
            InvariantCheck(bounds.memory_is_flat, (_N.SIZES,)),
        ),
    ),
    Invariant(
        "I25",
        "a restart of all services writes to no pod and changes no phase",
        (InvariantCheck(restarts_change_nothing, (_N.RESTARTS,)),),
    ),
    Invariant(
        "I26",
        "the daily totals contain each ended allocation once, to the millisecond",
        (InvariantCheck(usage_is_exact, (_N.REST, _N.BEGINNING, _N.EVERY_VERSION)),),
    ),
    Invariant(
        "I27",
        "each line that a rank prints is stored once, or counted in a marked hole; its last line is never missing",
        (
            InvariantCheck(logs.lines_come_once, (_N.LOGS,)),
            InvariantCheck(logs.holes_are_counted, (_N.LOGS, _N.PRINTED)),
            InvariantCheck(logs.holes_are_marked, (_N.LOGS,)),
            InvariantCheck(logs.logs_are_whole, (_N.LOGS, _N.PRINTED, _N.REST)),
        ),
    ),
    Invariant(
        "ACK",
        "a hint is acknowledged only after its effect",
        (InvariantCheck(streams.hints_are_acked_after_their_effect, (_N.ACKS,)),),
    ),
    Invariant(
        "FENCE",
        "every bind and delete request has a uid, every replacement has a version",
        (InvariantCheck(streams.writes_carry_fences, (_N.REQUESTS,)),),
    ),
)
"""In the order in which they are reported."""

BY_ID: Mapping[str, Invariant] = {invariant.id: invariant for invariant in INVARIANTS}


def audit(evidence: AuditEvidence) -> list[InvariantViolation]:
    """Return every violation that the checks find."""
    unknown = lacking(evidence)
    return [
        violation
        for invariant in INVARIANTS
        for check in invariant.checks
        if unknown.isdisjoint(check.needs)
        for violation in check.find(evidence)
    ]


def verdicts(evidence: AuditEvidence) -> list[InvariantVerdict]:
    """Return the violations by invariant, with the checks that could not run and why."""
    unknown = lacking(evidence)
    found: list[InvariantVerdict] = []
    for invariant in INVARIANTS:
        ran = [check for check in invariant.checks if unknown.isdisjoint(check.needs)]
        missing = {need for check in invariant.checks for need in check.needs if need in unknown}
        found.append(
            InvariantVerdict(
                invariant=invariant,
                violations=tuple(violation for check in ran for violation in check.find(evidence)),
                judged=tuple(check.name for check in ran),
                missing=tuple(sorted(missing)),
            )
        )
    return found
