"""Webhooks on the whole system: a real receiver, the API killed in between, Redis emptied."""

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.gangs import let_go
from tests.support.local_stack import RunningStack
from tests.support.receiver import Receiver, receiving
from tests.support.wait import wait_until

FIRST_AND_LAST = ("requested", "terminated")


@pytest.fixture
def receiver(stack: RunningStack) -> Generator[Receiver]:
    """A webhook `e2e` and its receiver, added by the command."""
    with receiving() as found:
        made = stack.command("webhook", "create", found.url, "--name", "e2e", "-o", "json")
        assert made.code == 0, made.err
        found.secret = made.json["secret"]
        yield found
        stack.ask(lambda api: api.call("DELETE", "/webhooks/e2e"))


def ended(receiver: Receiver, *ids: str, timeout_s: float = 60.0) -> None:
    """Wait until all have ended."""
    wait_until(lambda: all("terminated" in receiver.of(id_) for id_ in ids), "all ends told", timeout_s=timeout_s)


def wait_until_delivered(stack: RunningStack, receiver: Receiver, *ids: str, timeout_s: float = 60.0) -> None:
    """Wait until every transition of each, to the last, has reached the receiver."""
    for id_ in ids:
        seqs = set(range(1, stack.wait_for(id_, "Terminated", timeout_s=timeout_s)["status"]["seq"] + 1))
        wait_until(
            lambda id_=id_, seqs=seqs: {each["data"]["seq"] for each in receiver.got if each["subject"] == id_} == seqs,
            f"every transition of {id_} told",
            timeout_s=timeout_s,
        )


def test_a_receiver_is_told_everything_once_in_order_and_signed(stack: RunningStack, receiver: Receiver) -> None:
    """Events are CloudEvents, and the code of the documentation accepts every signature. No log contains the key or
    the URL."""
    assert stack.command("webhook", "test", "e2e").code == 0
    assert receiver.got.pop()["type"] == "dev.slipway.webhook.test"
    ids = [stack.launch({"kind": "command", "command": ["true"]}) for _ in range(3)]
    ended(receiver, *ids)
    for id_ in ids:
        types = receiver.of(id_)
        assert (types[0], types[-1]) == FIRST_AND_LAST
        assert [event["data"]["seq"] for event in receiver.got if event["subject"] == id_] == list(
            range(1, len(types) + 1)
        )
    wait_until_delivered(stack, receiver, *ids)
    assert receiver.refused == []
    for log in (stack.folder / "logs").glob("*.log"):
        text = log.read_text("utf-8", errors="replace")
        assert receiver.secret.removeprefix("whsec_") not in text, log.name
        assert "T0KEN" not in text, log.name


def test_an_api_that_is_killed_loses_no_event(stack: RunningStack, receiver: Receiver, marks: Path) -> None:
    """kill -9 while events are being sent: all arrive, at least once."""
    del marks
    ids: list[str] = []
    for _ in range(4):
        ids.append(stack.launch({"kind": "command", "command": ["true"]}))
        stack.kill("api")
        time.sleep(0.4)
    wait_until_delivered(stack, receiver, *ids)


def test_a_redis_that_is_emptied_loses_no_event(stack: RunningStack, receiver: Receiver, marks: Path) -> None:
    """Lost events are published and delivered again."""
    id_ = stack.launch({"kind": "command", "command": ["sh", "-c", f"while [ ! -e {marks}/go ]; do sleep 0.1; done"]})
    stack.wait_for(id_, "Running")
    wait_until(lambda: "running" in receiver.of(id_), "running told")
    with stack.redis() as client:
        client.flushall()
    (marks / "go").touch()
    let_go(marks)
    wait_until_delivered(stack, receiver, id_, timeout_s=90.0)


def test_what_a_receiver_refuses_is_a_dead_letter_that_is_sent_again(stack: RunningStack, receiver: Receiver) -> None:
    """410 is final; the letter names its event; a replay by the command delivers it."""
    receiver.answer = lambda event: 410 if event["type"].endswith(".running") else 204
    id_ = stack.launch({"kind": "command", "command": ["true"]})
    ended(receiver, id_)

    def letters() -> list[str]:
        listed = stack.command("dead", "ls", "--source", "webhook")
        return [line.split()[0] for line in listed.out.splitlines() if id_ in line]

    [letter] = wait_until(letters, "the dead letter") or []
    assert "running" not in receiver.of(id_)
    assert "answered 410" in stack.command("dead", "show", letter).out
    receiver.answer = lambda _event: 204
    assert stack.command("dead", "replay", letter).code == 0
    wait_until(lambda: "running" in receiver.of(id_), "the replay")
    assert letters() == []


def test_a_receiver_that_is_away_holds_up_no_other_one(stack: RunningStack, receiver: Receiver) -> None:
    """A receiver that is down gets the missed events when it is back, in order."""
    is_away = True
    with receiving() as other:
        made = stack.command("webhook", "create", other.url, "--name", "other", "-o", "json")
        other.secret = made.json["secret"]
        other.answer = lambda _event: 503 if is_away else 204
        try:
            ids = [stack.launch({"kind": "command", "command": ["true"]}) for _ in range(3)]
            ended(receiver, *ids)
            assert other.got == []
            is_away = False
            ended(other, *ids)
            for id_ in ids:
                assert other.of(id_) == receiver.of(id_)
        finally:
            stack.ask(lambda api: api.call("DELETE", "/webhooks/other"))
