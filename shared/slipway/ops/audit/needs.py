"""The evidence that a check needs before the absence of violations means anything. Pure."""

from enum import StrEnum

from slipway.ops.audit.evidence import AuditEvidence


class Need(StrEnum):
    """One kind of evidence. The value is its description."""

    EVERY_VERSION = "every version of every object"
    BEGINNING = "the history from its beginning"
    WRITERS = "who wrote each version"
    REST = "an end at rest"
    STREAMS = "the event streams"
    REQUESTS = "the services' own requests"
    PROMISES = "what clients were promised"
    ACKS = "which hints were acknowledged"
    DELIVERIES = "how often each hint was delivered"
    CONSUMERS = "the members of the consumer groups"
    ANSWERS = "the clients' log"
    SECRETS = "planted secrets"
    TENANTS = "planted strings of workspaces"
    SPOKEN = "what left us as text"
    SIZES = "samples of sizes"
    RESTARTS = "when all of us were restarted"
    LOGS = "the stored logs"
    PRINTED = "what each rank printed"
    RULES = "the rules that the API server holds"
    SILENCE = "since when there was nothing left to do"


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
