"""The evidence that a check needs before the absence of violations means anything. Pure."""

from enum import StrEnum

from slipway.ops.audit.evidence import AuditEvidence


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
