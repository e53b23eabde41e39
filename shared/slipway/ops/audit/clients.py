"""Checks of the answers to clients: launches, idempotency keys, no older states later, and no disclosure.

I1, I2, I19, I22, I23. Pure: evidence in, violations out. Status 0 means that no answer arrived. Such an answer is not
counted, but its request may have been carried out.

Disclosure: workspaces are isolated, and secrets stay in their place. The checks search for planted strings only. A
violation contains only a digest of a secret.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from slipway.crd.hashing import key_hash
from slipway.crd.meta import ANNOTATION_IDEMPOTENCY_KEY, ANNOTATION_USER, LABEL_ALLOCATION_UID
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import (
    CONFIG_MAPS,
    PODS,
    SERVICES,
    AllocationVersion,
    AuditEvidence,
    Canary,
    ClientRequest,
    InvariantViolation,
)

LAUNCH, CANCEL, DELETE = "launch", "cancel", "delete"
KEY_REUSED = 422
_GONE = (404, 410)
_API = "api"


def acknowledged_launches_last(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I1: an acknowledged launch exists, and is removed only after a delete or after its end."""
    deleted = {promise.uid for promise in evidence.promises if promise.kind == "deleted"}
    deleted |= {answer.uid for answer in evidence.told if answer.verb == DELETE}
    launched = [promise.uid for promise in evidence.promises if promise.kind == "launched"]
    launched += [answer.uid for answer in evidence.told if answer.verb == LAUNCH and _is_yes(answer) and answer.uid]
    for uid in dict.fromkeys(launched):
        history = evidence.allocations.get(uid, [])
        if not history:
            if not evidence.is_sampled:
                yield InvariantViolation(invariant="I1", subject=uid, message="was acknowledged and never existed")
            continue
        end = history[-1]
        was_told = any(each.allocation.metadata.deletion_timestamp for each in history)
        if (
            end.version.is_deletion
            and uid not in deleted
            and not was_told
            and end.allocation.status.phase != Phase.TERMINATED
        ):
            message = "no longer exists, although no client deleted it and it had not ended"
            yield InvariantViolation(invariant="I1", subject=_name(end), message=message, version=end.version.number)


def what_lives_is_kept(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I1: a service deletes an allocation only after its end, or through the api on request of a caller."""
    for history in evidence.allocations.values():
        for before, after in pairwise(history):
            if before.allocation.metadata.deletion_timestamp or before.allocation.status.phase is Phase.TERMINATED:
                break
            is_told = after.version.is_deletion or after.allocation.metadata.deletion_timestamp
            writer = after.version.writer
            if is_told and writer and not writer.startswith(_API):
                message = f"is deleted by {writer} although it has not ended"
                yield InvariantViolation(
                    invariant="I1", subject=_name(after), message=message, version=after.version.number
                )


def keys_launch_once(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I2: one key of one user in one workspace makes one allocation. Another body is refused; a retry finds the
    first.
    """
    for (workspace, user, key), answers in _by_key(evidence).items():
        subject = f"{workspace}/{user}/{key}"
        made = _made_by(evidence, workspace, user, key)
        if len(made) > 1:
            yield _broken("I2", subject, f"one key made {len(made)} allocations: {sorted(made)}")
        told = [answer for answer in answers if _is_yes(answer)]
        uids = {answer.uid for answer in told if answer.uid}
        if len(uids) > 1 and not _are_successors(evidence, uids):
            yield _broken("I2", subject, f"one key got the answers {sorted(uids)}")
        bodies = {answer.body_hash for answer in told}
        if len(bodies) > 1:
            yield _broken("I2", subject, "two bodies with one key were both accepted")
        yield from _refused(evidence, subject, answers)


def time_runs_forward(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I19: no client reads an older state than it has seen, and no ended allocation runs again."""
    seen: dict[tuple[str, str], ClientRequest] = {}
    for answer in sorted(evidence.told, key=_asked):
        if not _is_yes(answer) or not answer.uid or not answer.seq:
            continue
        before = _latest(evidence.told, seen, answer)
        if before is None:
            continue
        if answer.seq < before.seq:
            message = f"{answer.client} read seq {answer.seq} from {answer.replica} after seq {before.seq}"
            yield _broken("I19", answer.allocation or answer.uid, message)
        elif before.phase == Phase.TERMINATED and answer.phase not in ("", Phase.TERMINATED):
            yield _broken(
                "I19", answer.allocation or answer.uid, f"{answer.client} saw it ended, and then {answer.phase}"
            )


def cancels_are_seen(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I19: after the 2xx answer to a cancel, every replica returns the cancelled state to every client."""
    cancelled: dict[str, float] = {}
    for answer in evidence.told:
        if answer.verb == CANCEL and _is_yes(answer) and answer.uid:
            cancelled[answer.uid] = min(answer.at, cancelled.get(answer.uid, answer.at))
    for answer in evidence.told:
        since = cancelled.get(answer.uid)
        if since is None or answer.asked_at < since or not _is_yes(answer) or not answer.desired:
            continue
        if answer.desired != "Stopped" and answer.phase != Phase.TERMINATED:
            message = f"{answer.replica} tells {answer.client} that {answer.desired} is desired after the cancel"
            yield _broken("I19", answer.allocation or answer.uid, message)


def launches_are_found(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I19: after the 2xx answer to a launch, every replica finds the allocation as long as it exists."""
    since: dict[str, float] = {}
    for answer in evidence.told:
        if answer.verb == LAUNCH and _is_yes(answer) and answer.allocation:
            since[answer.allocation] = min(answer.at, since.get(answer.allocation, answer.at))
    gone = {
        str(history[-1].allocation.metadata.uid): history[-1].version.at
        for history in evidence.allocations.values()
        if history[-1].version.is_deletion
    }
    uids = {answer.allocation: answer.uid for answer in evidence.told if answer.uid}
    for answer in evidence.told:
        begun = since.get(answer.allocation)
        if begun is None or answer.verb == LAUNCH or answer.status not in _GONE or answer.asked_at < begun:
            continue
        if gone.get(uids.get(answer.allocation, ""), answer.at + 1) > answer.at:
            yield _broken("I19", answer.allocation, f"{answer.replica} tells {answer.client} that it does not exist")


def _by_key(evidence: AuditEvidence) -> dict[tuple[str, str, str], list[ClientRequest]]:
    found: dict[tuple[str, str, str], list[ClientRequest]] = {}
    for answer in evidence.told:
        if answer.verb == LAUNCH and answer.idempotency_key:
            found.setdefault((answer.workspace, answer.user, answer.idempotency_key), []).append(answer)
    return found


def _made_by(evidence: AuditEvidence, workspace: str, user: str, key: str) -> list[str]:
    """Return the uids of simultaneous allocations with this key. A deleted allocation may have a successor."""
    hashed, alive, most = key_hash(key), list[str](), list[str]()
    for version in evidence.versions:
        item = evidence.decoded.get(version.number)
        if item is None or version.namespace != workspace:
            continue
        notes = item.allocation.metadata.annotations
        is_same = notes.get(ANNOTATION_IDEMPOTENCY_KEY) == hashed and (not user or notes.get(ANNOTATION_USER) == user)
        if not is_same:
            continue
        if version.is_deletion:
            alive = [uid for uid in alive if uid != version.uid]
        elif version.uid not in alive:
            alive.append(version.uid)
        most = max(most, list(alive), key=len)
    return most


def _are_successors(evidence: AuditEvidence, uids: set[str]) -> bool:
    """Whether at most one of them still exists: a key is free again when its allocation is deleted."""
    there = 0
    for uid in uids:
        history = evidence.allocations.get(uid, [])
        there += bool(history) and not history[-1].version.is_deletion
    return there <= 1 and all(evidence.allocations.get(uid) for uid in uids)


def _refused(evidence: AuditEvidence, subject: str, answers: Sequence[ClientRequest]) -> Iterator[InvariantViolation]:
    """Yield wrong refusals: of the same body that the key has launched, or of another body with the wrong status."""
    first = next((answer for answer in sorted(answers, key=_asked) if _is_yes(answer)), None)
    if first is None:
        return
    history = evidence.allocations.get(first.uid, [])
    gone_at = history[-1].version.at if history and history[-1].version.is_deletion else None
    going = any(each.allocation.metadata.deletion_timestamp for each in history)
    for answer in answers:
        is_later = answer.asked_at >= first.at and (gone_at is None or answer.at < gone_at) and not going
        if not is_later or not 400 <= answer.status < 500 or answer.status == 429:
            continue
        if answer.body_hash == first.body_hash:
            yield _broken("I2", subject, f"the same body again is refused with {answer.status}")
        elif answer.status != KEY_REUSED:
            yield _broken("I2", subject, f"another body is refused with {answer.status}, not {KEY_REUSED}")


def _latest(
    answers: Sequence[ClientRequest], seen: dict[tuple[str, str], ClientRequest], answer: ClientRequest
) -> ClientRequest | None:
    """Return the newest state that this client had received before its request. `seen` is updated to the newest of
    all.
    """
    key = (answer.client, answer.uid)
    known = seen.get(key)
    if known is None or answer.seq >= known.seq:
        seen[key] = answer
    if known is None or known.at <= answer.asked_at:
        return known
    earlier = [
        each
        for each in answers
        if each.client == answer.client and each.uid == answer.uid and _is_yes(each) and each.at <= answer.asked_at
    ]
    return max(earlier, key=lambda each: each.seq, default=None)


def _is_yes(answer: ClientRequest) -> bool:
    return 200 <= answer.status < 300


def _asked(answer: ClientRequest) -> float:
    return answer.asked_at


def _name(item: AllocationVersion) -> str:
    return item.allocation.metadata.name


def _broken(invariant: str, subject: str, message: str) -> InvariantViolation:
    return InvariantViolation(invariant=invariant, subject=subject, message=message)


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
