"""Webhooks under the api's own account: their Secrets, their deliveries, the death of the process that sends."""

from collections.abc import Generator

import pytest

from tests.conformance.system.system import System, a_body
from tests.support.receiver import Receiver, receiving
from tests.support.wait import wait_until

PATH = "/api/v1/namespaces/{}/secrets"


@pytest.fixture
def receiver(system: System) -> Generator[Receiver]:
    """A webhook `conformance` and its receiver on this machine, which the values allow."""
    with receiving() as found:
        made = system.post("/webhooks", {"name": "conformance", "url": found.url})
        found.secret = made["secret"]
        try:
            yield found
        finally:
            system.ask(lambda api: api.call("DELETE", "/webhooks/conformance"))


def seqs_of(receiver: Receiver, id_: str) -> list[int]:
    """The numbers of the allocation's events that have arrived."""
    return [event["data"]["seq"] for event in receiver.got if event["subject"] == id_]


def wait_until_delivered(receiver: Receiver, id_: str) -> None:
    wait_until(lambda: "terminated" in receiver.of(id_), f"the end of {id_} told", timeout_s=60)


def test_a_webhook_is_a_secret_of_its_own_namespace(system: System, receiver: Receiver) -> None:
    """A webhook is added, changed and removed over REST; the API server stores the key with which a receiver checks
    signatures."""
    path = PATH.format(f"{system.installation.namespace}-webhooks")
    stored = system.operator.get(f"{path}/slipway-webhook-conformance")
    assert stored["metadata"]["labels"]["slipway.dev/webhook"] == "true"
    changed = system.ask(lambda api: api.patch("/webhooks/conformance", {"rotateSecret": True}))
    assert changed["secret"] != receiver.secret
    receiver.secret = changed["secret"]
    assert system.get("/webhooks/conformance")["name"] == "conformance"
    assert "secret" not in system.get("/webhooks/conformance")
    assert system.cli("webhook", "test", "conformance").code == 0


def test_events_of_an_allocation_are_delivered_in_order_and_signed(system: System, receiver: Receiver) -> None:
    """Each transition arrives once, in the order of seq."""
    id_ = system.launch(a_body(script={"runsS": 0.1}))
    system.ended(id_, "Succeeded")
    wait_until_delivered(receiver, id_)
    seqs = seqs_of(receiver, id_)
    assert seqs == list(range(1, len(seqs) + 1))
    assert receiver.refused == []


def test_two_replicas_and_a_kill_lose_no_event(system: System, receiver: Receiver) -> None:
    """While both replicas run each event arrives once; when the sending replica is killed, all arrive at least once."""
    system.installation.resume("api-1")
    try:
        id_ = system.launch(a_body(script={"runsS": 0.1}))
        last = system.ended(id_, "Succeeded")["status"]["seq"]
        # Leadership may just have changed, so the events need not arrive in order.
        wait_until(lambda: len(seqs_of(receiver, id_)) >= last, f"all of {id_} told", timeout_s=60)
        assert sorted(seqs_of(receiver, id_)) == list(range(1, last + 1))
        ids: list[str] = []
        for _ in range(3):
            ids.append(system.launch(a_body(script={"runsS": 0.1})))
            system.installation.kill("api")
        for each in ids:
            last = system.ended(each, "Succeeded")["status"]["seq"]
            wait_until(
                lambda each=each, last=last: set(seqs_of(receiver, each)) == set(range(1, last + 1)),
                f"all of {each} told",
                timeout_s=90,
            )
    finally:
        system.installation.halt("api-1")
        system.installation.await_ready()
