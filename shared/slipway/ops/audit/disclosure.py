"""Checks of disclosure: workspaces are isolated, and secrets stay in their place.

I22, I23. Pure: evidence in, violations out. The checks search for planted strings only. A violation contains only a
digest of a secret.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.model.events import AllocationEvent
from slipway.ops.audit.evidence import CONFIG_MAPS, PODS, SERVICES, AuditEvidence, Canary, InvariantViolation

_KEPT = (PODS, CONFIG_MAPS, SERVICES)
EVENTS = "events"
_TOLD = (CONFIG_MAPS, EVENTS)


def workspaces_keep_apart(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I22: no answer to a workspace and no text output of a workspace contains a string of another workspace."""
    planted = [canary for canary in evidence.canaries if canary.workspace]
    for answer in evidence.answers:
        for canary in planted if answer.workspace else ():
            if canary.workspace != answer.workspace and canary.text in answer.text:
                message = f"{answer.verb} {answer.url} discloses data of {canary.workspace} to {answer.workspace}"
                yield _broken("I22", answer.client, message)
    for spoken in evidence.spoken:
        for canary in planted if spoken.workspace else ():
            if canary.workspace != spoken.workspace and canary.text in spoken.text:
                message = f"{spoken.place} of {spoken.workspace} contains data of {canary.workspace}"
                yield _broken("I22", spoken.name, message)


def objects_stay_at_home(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I22: every object of an allocation is in the namespace of the allocation."""
    homes = {uid: history[0].version.namespace for uid, history in evidence.allocations.items()}
    for version in evidence.of(*_KEPT):
        labels: Mapping[str, str] = version.obj["metadata"].get("labels") or {}
        home = homes.get(labels.get(LABEL_ALLOCATION_UID, ""))
        if home is not None and version.namespace != home and version.before is None:
            message = f"{version.resource} in {version.namespace}, its allocation is in {home}"
            yield InvariantViolation(invariant="I22", subject=version.name, message=message, version=version.number)


def secrets_stay_out_of_text(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I23: no planted secret is in any text output: in Redis, in a log, in a metric."""
    secrets = [canary for canary in evidence.canaries if canary.is_secret]
    for spoken in evidence.spoken:
        yield from _told(secrets, spoken.text, f"{spoken.place} {spoken.name}")
        yield from _told(secrets, spoken.name, f"the name of a {spoken.place}")


def secrets_stay_out_of_objects(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I23: no planted secret is in a URL, in a stream, or in a stored object that must not contain secrets."""
    secrets = [canary for canary in evidence.canaries if canary.is_secret]
    if not secrets:
        return
    for answer in evidence.answers:
        yield from _told(secrets, answer.url, f"url of {answer.verb}")
    for version in evidence.of(*_TOLD):
        yield from _told(secrets, _text(version.obj), f"{version.resource} {version.name}", version.number)
    events: Sequence[AllocationEvent] = evidence.appended
    for event in events or [event for stream in evidence.streams.values() for event in stream]:
        yield from _told(secrets, _text(event), f"stream of {event.allocation_id}")


def _told(secrets: Sequence[Canary], text: str, place: str, version: int = 0) -> Iterator[InvariantViolation]:
    for canary in secrets:
        if canary.text in text:
            digest = hashlib.sha256(canary.text.encode()).hexdigest()[:12]
            message = f"contains the secret {digest} that was planted in {canary.planted or 'it'}"
            yield InvariantViolation(
                invariant="I23", subject=place.replace(canary.text, digest), message=message, version=version
            )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _broken(invariant: str, subject: str, message: str) -> InvariantViolation:
    return InvariantViolation(invariant=invariant, subject=subject, message=message)
