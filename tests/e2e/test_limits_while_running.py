"""Time limits of running allocations are changed: the end follows, whichever user changes them, and in which
direction."""

from typing import Any

import pytest

from slipway.model.lifecycle import Phase
from tests.support.local_stack import RunningStack

SLEEPS_S = 12


def _running(stack: RunningStack, **limits: str) -> str:
    command = ["sleep", str(SLEEPS_S)]
    id_ = stack.launch({"kind": "training", "image": "local", "command": command, **limits})
    stack.wait_for(id_, "Running")
    return id_


def _change(stack: RunningStack, id_: str, way: str, limit: str) -> None:
    if way == "REST":
        stack.ask(lambda api: api.patch(f"/allocations/{id_}", {"maxRuntime": limit}))
        return
    name = stack.view(id_)["name"]
    path = f"/apis/slipway.dev/v1alpha1/namespaces/default/allocations/{name}"
    stack.kubernetes("PATCH", path, {"spec": {"maxRuntime": limit}})


@pytest.mark.parametrize("way", ["REST", "kubectl"])
@pytest.mark.parametrize(
    ("first", "then", "result", "reason"),
    [("6s", "1h", "Succeeded", "Completed"), ("1h", "2s", "TimedOut", "MaxRuntime")],
    ids=["put off", "brought forward"],
)
def test_the_end_follows_the_limit(
    stack: RunningStack, way: str, first: str, then: str, result: str, reason: str
) -> None:
    """An allocation with a later limit runs to its own end; one with an earlier limit ends before it."""
    id_ = _running(stack, maxRuntime=first)
    _change(stack, id_, way, then)
    ended: dict[str, Any] = stack.wait_for(id_, Phase.TERMINATED.value)
    assert (ended["status"]["result"], ended["status"]["reason"]) == (result, reason)
