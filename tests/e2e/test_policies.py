"""Rules on failures and on success, on real processes, as the command and the events show them."""

from typing import Any

from tests.support.local_stack import RunningStack

Json = dict[str, Any]
SMALL: Json = {"cpu": "50m", "memory": "64Mi"}
FAILS = ["python", "-c", "import sys; sys.exit(64)"]
BUSY_ONCE = ["python", "-c", "import os, sys; sys.exit(75 if os.environ['SLIPWAY_ATTEMPT'] == '1' else 0)"]
ENDS = ["python", "-c", "print('done')"]
STAYS = ["python", "-c", "import time; time.sleep(600)"]


def role(name: str, command: list[str], count: int = 1) -> Json:
    """Ranks that stop at once on SIGTERM."""
    container = {"name": "main", "image": "local", "command": command}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    return {"name": name, "count": count, "resources": SMALL, "template": template}


def ended(stack: RunningStack, **body: Any) -> Json:
    id_ = stack.launch({"kind": "training", **body})
    return stack.wait_for(id_, "Terminated", timeout_s=90)


def test_an_exit_code_fails_it_at_once(stack: RunningStack) -> None:
    """It fails although maxRestarts would allow more; message, events and the command's output name the rule."""
    rules = [{"action": "retry", "roles": ["worker"]}, {"action": "fail", "exitCodes": ["64-78"]}]
    roles = [role("driver", FAILS), role("worker", STAYS)]
    view = ended(stack, ranks=roles, maxRestarts=3, failurePolicy={"rules": rules})
    assert (view["result"], view["reason"], view["attempt"]) == ("Failed", "RankFailed", 1)
    assert view["message"].endswith("exit code 64; failurePolicy.rules[1] says fail")
    (entry,) = [each for each in view["status"]["transitions"] if each["type"] == "terminating"]
    assert (entry["data"]["rank"], entry["data"]["rule"]) == (0, 1)
    for words in (("explain", view["id"]), ("describe", view["id"])):
        said = stack.command(*words)
        assert (said.code, "failurePolicy.rules[1] says fail" in said.out) == (0, True), said.out


def test_an_exit_code_that_is_not_counted_is_tried_again(stack: RunningStack) -> None:
    """It is retried with maxRestarts 0, and with a failed rank of a helper role beside it."""
    rules = [{"action": "notCounted", "exitCodes": [75]}, {"action": "ignore", "roles": ["helper"]}]
    view = ended(stack, ranks=[role("main", BUSY_ONCE), role("helper", FAILS)], failurePolicy={"rules": rules})
    assert (view["result"], view["attempt"], view["status"]["uncountedRestarts"]) == ("Succeeded", 2, 1)
    assert view["status"].get("restarts", 0) == 0
    assert view["message"] == "rank 1: exit code 64; failurePolicy.rules[1] says ignore"


def test_an_allocation_succeeds_when_enough_ranks_have(stack: RunningStack) -> None:
    """The other ranks are ended."""
    roles = [role("driver", ENDS), role("worker", STAYS, count=2)]
    view = ended(stack, ranks=roles, successPolicy={"targets": [{"role": "driver"}]})
    assert (view["result"], view["reason"], view["status"]["ranks"][0]["exitCode"]) == ("Succeeded", "Completed", 0)
    assert view["message"] == "successPolicy.targets[0]: 1 of 1 rank of driver ended well"
