"""Invariants of answers to clients, of hints, of secrets and of sizes: for each a history that breaks it, and one that
does not."""

from typing import Any

import msgspec

from slipway.crd.hashing import key_hash
from slipway.crd.meta import ANNOTATION_IDEMPOTENCY_KEY, ANNOTATION_USER
from slipway.crd.transitions import id_of
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.ops.audit.check import audit
from slipway.ops.audit.evidence import (
    EVENT,
    LOG,
    REDIS,
    RSS_BYTES,
    STREAM_BYTES,
    AckedHint,
    Canary,
    ClientRequest,
    Consumer,
    EmittedText,
    HintHistory,
    RestartPeriod,
    SizeSample,
)
from tests.support.history import BEGUN, History, running


def reported(history: History, **known: Any) -> list[str]:
    """The invariants that an audit reports as broken, once each."""
    return list(dict.fromkeys(violation.invariant for violation in audit(history.evidence(**known))))


def keyed(history: History, name: str = "job", key: str = "k") -> ClientRequest:
    """A launch with a key, and its answer."""
    notes = {ANNOTATION_IDEMPOTENCY_KEY: key_hash(key), ANNOTATION_USER: "ada"}
    made = history.launch(name, meta={"annotations": notes})
    return ClientRequest(
        at=history.now,
        asked_at=history.now - 1,
        client="c1",
        user="ada",
        replica="api-1",
        workspace="default",
        verb="launch",
        idempotency_key=key,
        body_hash="b1",
        status=201,
        allocation=str(id_of(made)),
        uid=made.metadata.uid,
        desired="Running",
    )


def test_one_key_makes_one_allocation() -> None:
    """I2: one key makes one allocation, also when the first answer was lost, and when two replicas are called at
    once."""
    history = History()
    answer = keyed(history)
    lost = msgspec.structs.replace(answer, status=0, allocation="", uid="")
    again = msgspec.structs.replace(answer, asked_at=answer.at + 1, at=answer.at + 2, status=200)
    assert reported(history, answers=[lost, answer, again]) == []
    keyed(history, "other")
    assert reported(history, answers=[lost, answer]) == ["I2"]


def test_a_key_is_for_one_body() -> None:
    """I2: a key with another body is refused with 422, with the same body never."""
    history = History()
    answer = keyed(history)
    later = {"asked_at": answer.at + 1, "at": answer.at + 2}
    other = msgspec.structs.replace(answer, body_hash="b2", status=422, uid="", **later)
    assert reported(history, answers=[answer, other]) == []
    assert reported(history, answers=[answer, msgspec.structs.replace(other, status=409)]) == ["I2"]
    assert reported(history, answers=[answer, msgspec.structs.replace(other, status=200)]) == ["I2"]
    refused = msgspec.structs.replace(answer, status=409, uid="", **later)
    assert reported(history, answers=[answer, refused]) == ["I2"]


def test_an_acknowledged_launch_exists() -> None:
    """I1: an acknowledged launch exists, by the clients' own log."""
    history = History()
    answer = keyed(history)
    assert reported(history, answers=[msgspec.structs.replace(answer, uid="nobody", idempotency_key="")]) == ["I1"]


def read(seq: int, at: float, **changes: Any) -> ClientRequest:
    """A read of the job."""
    known = ClientRequest(
        at=at + 0.5,
        asked_at=at,
        client="c1",
        verb="get",
        status=200,
        allocation="a",
        uid="u",
        seq=seq,
        phase="Running",
        desired="Running",
    )
    return msgspec.structs.replace(known, **changes)


def test_nobody_reads_an_older_state() -> None:
    """I19: successive reads of one client never return an older state; parallel reads may."""
    history = History()
    assert reported(history, answers=[read(3, 1), read(3, 2), read(4, 3)]) == []
    assert reported(history, answers=[read(4, 1), read(3, 2)]) == ["I19"]
    assert reported(history, answers=[read(4, 1), read(3, 2, client="c2")]) == []
    assert reported(history, answers=[read(4, 1), read(3, 1.2)]) == []
    assert reported(history, answers=[read(4, 1, phase="Terminated"), read(4, 2)]) == ["I19"]


def test_a_cancel_is_seen_by_all() -> None:
    """I19: after the 2xx of a cancel every replica shows it to every client."""
    history = History()
    cancel = read(3, 1, verb="cancel", desired="Stopped")
    stopped = read(3, 2, client="c2", replica="api-2", desired="Stopped")
    assert reported(history, answers=[cancel, stopped]) == []
    assert reported(history, answers=[cancel, msgspec.structs.replace(stopped, desired="Running")]) == ["I19"]
    before = read(3, 1, client="c2")
    assert reported(history, answers=[cancel, before]) == []


def test_a_launch_is_found_by_all() -> None:
    """I19: no client gets 404 for an existing launch."""
    history = History()
    answer = keyed(history)
    missing = msgspec.structs.replace(answer, verb="get", status=404, uid="", asked_at=answer.at + 1, at=answer.at + 2)
    assert reported(history, answers=[answer, missing]) == ["I19"]
    assert reported(history, answers=[missing]) == []


def test_workspaces_keep_apart() -> None:
    """I22: no string of one workspace is in an answer to another, nor in its stored data."""
    history = History()
    canary = Canary(text="canary-of-a", workspace="a", planted="a label")
    to_a = ClientRequest(at=1, client="c1", workspace="a", verb="list", status=200, text="... canary-of-a ...")
    assert reported(history, canaries=[canary], answers=[to_a]) == []
    assert reported(history, canaries=[canary], answers=[msgspec.structs.replace(to_a, workspace="b")]) == ["I22"]
    kept = EmittedText(place=REDIS, name="slipway:alloc:x", text="canary-of-a", workspace="b")
    assert reported(history, canaries=[canary], spoken=[kept]) == ["I22"]


def test_secrets_stay_where_they_are() -> None:
    """I23: secrets are not in ConfigMaps, logs, URLs or events; the violation does not contain the secret."""
    history = History()
    canary = Canary(text="hunter2hunter2", is_secret=True, planted="env of job")
    history.launch(env={"PASSWORD": canary.text})
    assert reported(history, canaries=[canary]) == []
    for place in (LOG, EVENT, REDIS):
        spoken = EmittedText(place=place, name="x", text=f"PASSWORD={canary.text}")
        assert reported(history, canaries=[canary], spoken=[spoken]) == ["I23"]
    url = ClientRequest(at=1, verb="get", url=f"/x?token={canary.text}", status=404)
    found = audit(history.evidence(canaries=[canary], answers=[url]))
    assert [violation.invariant for violation in found] == ["I23"]
    assert canary.text not in str(found)
    history.config_map("run", {"env": canary.text})
    assert reported(history, canaries=[canary]) == ["I23"]


def hint(number: int, **changes: Any) -> HintHistory:
    """A hint that was done at once."""
    at = BEGUN + number
    known = HintHistory(hint=f"0:{number}-0", allocation="a", times=1, added_at=at, done_at=at + 0.1)
    return msgspec.structs.replace(known, **changes)


def test_nothing_is_left_of_hints() -> None:
    """I16: pending hints, members that left long ago, and unexplained dead letters are violations."""
    history = History()
    assert reported(history, has_streams=True, pending_hints=1) == ["I16"]
    member = Consumer(stream="slipway:work:0", group="podworker", name="w1", pending=0, idle_s=30.0)
    assert reported(history, consumers=[member]) == []
    assert reported(history, consumers=[msgspec.structs.replace(member, idle_s=4_000.0)]) == ["I16"]
    name = str(id_of(history.launch()))
    dead = hint(1, allocation=name, times=5, done_at=None, dead_at=BEGUN + 9)
    assert reported(history, deliveries=[dead]) == ["I16"]


def test_undecodable_hints_become_dead_letters_and_delay_no_others() -> None:
    """I17: an invalid hint is a dead letter after five deliveries, and does not delay the others."""
    history = History()
    poison = hint(50, is_poison=True, times=5, done_at=None, dead_at=BEGUN + 80)
    others = [hint(number) for number in range(100)]
    assert reported(history, deliveries=[poison, *others]) == []
    assert reported(history, deliveries=[msgspec.structs.replace(poison, times=6)]) == ["I17"]
    assert "I17" in reported(history, deliveries=[msgspec.structs.replace(poison, dead_at=None)])
    slow = [hint(number, done_at=BEGUN + number + (5 if 50 <= number < 80 else 0.1)) for number in range(100)]
    assert reported(history, deliveries=[poison, *slow]) == ["I17"]


def test_an_early_acknowledgement_is_told() -> None:
    """ACK: an acknowledgement before the work is done is a violation, when no other hint demands the work."""
    history = History()
    ack = AckedHint(allocation=AllocationId("a"), demands="the pods", others=0, process="podworker-1")
    assert reported(history, acked=[ack]) == ["ACK"]
    assert reported(history, acked=[msgspec.structs.replace(ack, others=1)]) == []


def test_writes_at_rest_are_reported() -> None:
    """I18: after the rest begins only leases may be written."""
    history = History()
    history.run()
    assert reported(history, rest_from=history.now) == []
    history.put("leases", "scheduler", {"spec": {}}, writer="scheduler-1")
    assert reported(history, rest_from=BEGUN + 30) == []
    history.ledger()
    assert reported(history, rest_from=history.now - 2) == ["I18"]


def test_a_restart_changes_nothing() -> None:
    """I25: no pod is written and no phase moves between its begin and its end; status writes of nodes are excluded."""
    history = History()
    history.run()
    begun = history.now
    history.pod(0, node="n1", **running(begun))
    spans = [RestartPeriod(begun_at=begun, ended_at=begun + 10)]
    assert reported(history, restarts=spans) == ["I25"]
    assert reported(history, restarts=spans, has_writers=False) == []
    later = [RestartPeriod(begun_at=history.now, ended_at=history.now + 10)]
    assert reported(history, restarts=later) == []
    history.step(Event.TERMINATING)
    assert "I25" in reported(history, restarts=later)


def test_sizes_are_bounded() -> None:
    """I24: the size of a live allocation's stream, and the memory of a process over time, are bounded."""
    history = History()
    name = str(id_of(history.launch()))
    sample = SizeSample(kind=STREAM_BYTES, subject=name, at=1, value=8_000)
    assert reported(history, measures=[sample]) == []
    assert reported(history, measures=[msgspec.structs.replace(sample, value=9_000)]) == ["I24"]
    flat = [SizeSample(kind=RSS_BYTES, subject="watcher", at=60 * count, value=1e8) for count in range(20)]
    assert reported(history, measures=flat) == []
    steep = [msgspec.structs.replace(each, value=1e8 + each.at * 1e5) for each in flat]
    assert reported(history, measures=steep) == ["I24"]
