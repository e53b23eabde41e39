"""Every verb shows within seconds what blocks a start; then the start succeeds or is given up. On the whole local
system."""

from typing import Any

import pytest

from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

Json = dict[str, Any]
MOUNT: Json = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}


def with_token_of(secret: str) -> Json:
    return {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "t"}}}]}


def body(name: str, main: Json, **more: Any) -> Json:
    volumes = more.pop("volumes", [])
    spec = {"containers": [{"name": "main", **main}], "volumes": volumes}
    command = ["sh", "-c", "echo ${TOKEN:-none}"]
    return {"kind": "command", "name": fresh(name), "command": command, "template": {"spec": spec}, **more}


@pytest.mark.parametrize(
    ("name", "main", "volumes", "said"),
    [
        ("no-secret", with_token_of("never"), [], 'secret "never" not found'),
        ("no-config", MOUNT, [{"name": "v", "configMap": {"name": "gone"}}], 'configmap "gone" not found'),
        ("no-claim", MOUNT, [{"name": "v", "persistentVolumeClaim": {"claimName": "gone"}}], "volume claim gone"),
    ],
)
def test_what_is_missing_is_told_and_bounded(
    stack: RunningStack, name: str, main: Json, volumes: list[Json], said: str
) -> None:
    """`ps`, `describe` and `explain` show what is missing and when the start is given up; after that time the end
    shows it too."""
    id_ = stack.launch(body(name, main, volumes=volumes, pendingTimeout="10m"))
    wait_until(lambda: said in stack.command("explain", id_).out, "the explanation")
    told = stack.command("explain", id_).out
    assert "what helps:" in told
    assert "pending: ends at" in told
    assert said in stack.command("describe", id_).out
    assert said in stack.command("ps").out
    assert stack.command("limit", id_, "--pending-timeout", "1s").code == 0
    view = stack.wait_for(id_, "Terminated")
    assert (view["result"], view["reason"]) == ("TimedOut", "PendingTimeout")
    assert said in view["message"]


def test_it_starts_once_what_it_lacked_is_there(stack: RunningStack) -> None:
    """It starts by itself, as its explanation promises."""
    later = fresh("later")
    id_ = stack.launch(body("waits", with_token_of(later)))
    wait_until(lambda: later in stack.command("explain", id_).out, "the explanation")
    secret = {"metadata": {"name": later}, "data": {"t": "aGVyZQ=="}}
    stack.kubernetes("POST", "/api/v1/namespaces/default/secrets", secret)
    assert stack.wait_for(id_, "Terminated")["result"] == "Succeeded"
    wait_until(lambda: "here" in stack.command("logs", id_, "--stream", "stdout").out, "its line")


def stubborn(stack: RunningStack, name: str) -> str:
    """The id of an allocation that ignores SIGTERM, with a grace of ten minutes; it has printed that it does."""
    command = ["sh", "-c", "trap '' TERM; echo ignores; while true; do sleep 0.2; done"]
    spec = {"terminationGracePeriodSeconds": 600, "containers": [{"name": "main"}]}
    id_ = stack.launch({"kind": "command", "name": fresh(name), "command": command, "template": {"spec": spec}})
    stack.wait_for(id_, "Running")
    wait_until(lambda: "ignores" in stack.command("logs", id_, "--stream", "stdout").out, "its trap is set")
    return id_


@pytest.mark.parametrize(("name", "how"), [("forced", ["--force"]), ("graceless", ["--grace", "0s"])])
def test_a_forced_kill_does_not_wait_for_the_grace(stack: RunningStack, name: str, how: list[str]) -> None:
    """`--force` and `--grace 0s` end it at once."""
    id_ = stubborn(stack, name)
    assert stack.command("kill", id_, *how, "--wait").code == 0
    assert stack.view(id_)["result"] == "Canceled"


def test_a_second_kill_ends_the_grace(stack: RunningStack) -> None:
    """The first kill waits for the ten minutes; a second one some seconds later ends it."""
    id_ = stubborn(stack, "twice")
    assert stack.command("kill", id_).code == 0
    stack.wait_for(id_, "Terminating")
    for verb in ("explain", "describe"):
        wait_until(lambda verb=verb: "to end (600 s)" in stack.command(verb, id_).out, f"{verb} says until when")

    def killed_again() -> bool:
        assert stack.command("kill", id_).code == 0
        return stack.view(id_)["phase"] == "Terminated"

    wait_until(killed_again, "the end", timeout_s=30.0)
    assert stack.view(id_)["result"] == "Canceled"
