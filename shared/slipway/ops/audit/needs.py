"""The evidence that a check needs before the absence of violations means anything. Pure."""

from enum import StrEnum

from slipway.ops.audit.evidence import AuditEvidence


class Need(StrEnum):
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


def lacking(evidence: AuditEvidence) -> frozenset[Need]:
    """Return the kinds that this evidence lacks."""
    known = {
        Need.EVERY_VERSION: not evidence.is_sampled,
        Need.BEGINNING: not evidence.starts_late,
        Need.WRITERS: evidence.has_writers,
        Need.REST: evidence.is_at_rest,
        Need.STREAMS: evidence.has_streams,
        Need.REQUESTS: bool(evidence.requests),
        Need.PROMISES: bool(evidence.promises or evidence.answers),
        Need.ACKS: bool(evidence.acked),
        Need.DELIVERIES: bool(evidence.deliveries),
        Need.CONSUMERS: bool(evidence.consumers),
        Need.ANSWERS: bool(evidence.answers),
        Need.SECRETS: any(canary.is_secret for canary in evidence.canaries),
        Need.TENANTS: any(canary.workspace for canary in evidence.canaries),
        Need.SPOKEN: bool(evidence.spoken),
        Need.SIZES: bool(evidence.measures),
        Need.RESTARTS: bool(evidence.restarts),
        Need.LOGS: evidence.logs is not None,
        Need.PRINTED: bool(evidence.printed),
        Need.RULES: evidence.crd_rules is not None,
        Need.SILENCE: evidence.rest_from is not None,
    }
    return frozenset(need for need, is_known in known.items() if not is_known)
