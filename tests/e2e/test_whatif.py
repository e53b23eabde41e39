"""What-if questions about a running system, and a shadow policy in it."""

import json
from typing import Any

import httpx2

from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

Json = dict[str, Any]
POOL = "/apis/slipway.dev/v1alpha1/resourcepools/default"
SLEEP = ["python", "-c", "import time; time.sleep(120)"]


def asked(stack: RunningStack, *words: str) -> Json:
    """The answer to a question, which must succeed."""
    ran = stack.command("simulate", "--live", "-o", "json", *words)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def set_shadow(stack: RunningStack, shadow: Json | None) -> bool:
    """Write the pool; False when the scheduler wrote it at the same time."""
    pool = stack.kubernetes("GET", POOL)
    pool["spec"]["shadow"] = shadow
    try:
        stack.kubernetes("PUT", POOL, pool)
    except httpx2.HTTPStatusError as exc:
        if exc.response.status_code == 409:
            return False
        raise
    return True


def test_what_another_node_would_change(stack: RunningStack) -> None:
    """An allocation that is too large for the nodes would start at once on a larger one; nothing really changes."""
    large = stack.launch({"kind": "command", "command": ["true"], "ranks": [{"resources": {"cpu": "4000"}}]})
    runs = stack.launch({"kind": "command", "command": SLEEP})
    stack.wait_for(runs, "Running")
    try:
        answer = asked(stack, "--add-nodes", "name=huge,cpu=4096,memory=64Gi")
        [difference] = answer["differences"]
        assert difference["before"]["id"] == large
        assert difference["before"]["explain"]["code"] in ("NoFit", "TopologyTooSmall")
        assert (difference["after"]["start"], difference["after"]["placements"][0]["node"]) == (0.0, "huge")
        node = stack.view(runs)["status"]["admission"]["placements"][0]["node"]
        moved = {each["before"]["id"] for each in asked(stack, "--remove-node", node)["differences"]}
        assert moved == {runs}
        assert stack.view(runs)["phase"] == "Running"
    finally:
        assert stack.command("kill", large, runs).code == 0


def test_a_shadow_policy_is_tried_and_touches_nothing(stack: RunningStack) -> None:
    """Its differences are in the log and in the metrics; a replay finds them again."""
    wait_until(lambda: set_shadow(stack, {"scores": {"MostAllocated": 1}}), "the shadow is set")
    ids = [stack.launch({"kind": "command", "command": ["true"], "ranks": [{"count": 4}]}) for _ in range(3)]
    try:
        for id_ in ids:
            stack.wait_for(id_, "Terminated")
        ran = stack.command("replay", "--shadow", "-o", "json")
        assert ran.code == 0, ran.err
        report = json.loads(ran.out)
        assert report["would"], report
        assert all(each["kind"] == "admit" for would in report["would"] for each in would["different"])
    finally:
        wait_until(lambda: set_shadow(stack, None), "the shadow is gone")
    assert stack.command("replay").code == 0
