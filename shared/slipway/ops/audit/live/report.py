"""The report of an audit, in the form in which it is printed, served and stored.

This module counts how many objects were checked for each invariant, and owns the advice for each violation. Pure.
"""

from collections.abc import Sequence

import msgspec

from slipway.ops.audit.check import verdicts
from slipway.ops.audit.evidence import CONFIG_MAPS, PODS, SERVICES, AuditEvidence, InvariantViolation

ADVICE: dict[str, str] = {
    "I1": "search the audit log of the API server for its DELETE; launch it again with the same key",
    "I2": "list both with `slipway ps`; kill the younger one",
    "I3": "`slipway describe` it, delete the pod of the older attempt by its uid, and report this",
    "I4": "compare the two starts in the node's log; report this",
    "I5": "stop the pod worker, keep its log, and report this",
    "I6": "`slipway explain` it; kill it if it does not end by itself",
    "I7": "look for other writers of allocations/status; check that the CRDs are those of this version",
    "I8": "look for other writers of allocations/status; check that the CRDs are those of this version",
    "I9": "look for a second installation that schedules this pool; `kubectl get leases`",
    "I10": "cordon the node, compare its pods with `slipway nodes`, and look for other schedulers",
    "I11": "if it stays, delete it by hand; `kubectl describe` says which finalizer holds it",
    "I12": "delete the pod by its uid; if it stays, its node may be off: run `slipway forget`",
    "I13": "kill it again, keep the pod worker's log, and report this",
    "I14": "delete the stream's key in Redis: the watcher writes it again from the object",
    "I15": "wait a minute; then restart the watcher: it compares every stream with its object",
    "I16": "`slipway dead` lists letters; restart the pod worker if hints stay",
    "I17": "`slipway dead show` shows it; drop it or replay it",
    "I18": "`slipway explain` it; search the logs of the pod worker and the watcher for its name",
    "I19": "check that all replicas of the api reach the same API server",
    "I20": "compare with `kubectl get pod -o yaml` while the pod exists; report this",
    "I21": "`slipway replay --from TICK` shows the decision",
    "I22": "stop the api, keep its log, and report this",
    "I23": "rotate this secret, and report this",
    "I24": "delete old ended allocations (retention), and report which object it is",
    "I25": "look for other writers of pods; report this",
    "I26": "compare `slipway usage` with the totals' ConfigMap of that day",
    "I27": "compare `slipway logs` with `kubectl logs` while the pod exists; report this",
}
_REPORT_IT = "keep the services' logs, and report this"

_PODS = frozenset({"I3", "I4", "I5", "I6", "I12", "I20"})
_LEDGERS = frozenset({"I9", "I10"})
_STREAMS = frozenset({"I14", "I15", "I16", "I17"})


class ReportedViolation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One violation, and what to do next."""

    subject: str
    message: str
    next: str
    version: int = 0


class InvariantLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One invariant. `looked_at` is the number of objects or streams that were checked; None when it could not be
    judged.
    """

    invariant: str
    promise: str
    looked_at: int | None
    violations: list[ReportedViolation] = []
    unknown: list[str] = []
    """The missing evidence that some of its checks need."""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One audit. `problem` states in words what could not be read; empty when everything was read."""

    at: float
    watched_s: float
    versions: int
    is_complete: bool
    """Whether every version since the beginning was seen."""
    invariants: list[InvariantLine]
    problem: str = ""

    @property
    def violations(self) -> int:
        """The number of violations of all invariants."""
        return sum(len(line.violations) for line in self.invariants)


def report(
    evidence: AuditEvidence, *, watched_s: float, problem: str = "", confirmed: frozenset[tuple[str, str]] | None = None
) -> AuditReport:
    """Return the report of this evidence. With `confirmed`, only these (invariant, subject) are reported; None: all."""
    lines: list[InvariantLine] = []
    for verdict in verdicts(evidence):
        name = verdict.invariant.id
        told = [each for each in verdict.violations if confirmed is None or _key(each) in confirmed]
        lines.append(
            InvariantLine(
                invariant=name,
                promise=verdict.invariant.promise,
                looked_at=_looked_at(name, evidence) if verdict.judged else None,
                violations=[_found(each) for each in told],
                unknown=[need.value for need in verdict.missing],
            )
        )
    return AuditReport(
        at=evidence.end_at,
        watched_s=watched_s,
        versions=len(evidence.versions),
        is_complete=not evidence.is_sampled,
        invariants=lines,
        problem=problem,
    )


def keys(violations: Sequence[InvariantViolation]) -> frozenset[tuple[str, str]]:
    """Return the keys by which two audits are compared: (invariant, subject)."""
    return frozenset(map(_key, violations))


def _key(violation: InvariantViolation) -> tuple[str, str]:
    return violation.invariant, violation.subject


def _found(violation: InvariantViolation) -> ReportedViolation:
    return ReportedViolation(
        subject=violation.subject,
        message=violation.message,
        next=ADVICE.get(violation.invariant, _REPORT_IT),
        version=violation.version,
    )


def _looked_at(invariant: str, evidence: AuditEvidence) -> int:
    if invariant in _STREAMS:
        return len(evidence.streams)
    if invariant in _LEDGERS:
        return len({version.uid for version, _ in evidence.pools})
    if invariant in _PODS:
        return len({change.pod.metadata.uid for change in evidence.pods})
    if invariant == "I11":
        return len(evidence.last((PODS, CONFIG_MAPS, SERVICES)))
    return len(evidence.allocations)
