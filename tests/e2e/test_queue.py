"""The job queue, nodes, usage and history on a whole local stack, through the command."""

import csv
import io
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

Json = dict[str, Any]
SLEEPER = ["python", "-u", "-c", "import time; print('up', flush=True); time.sleep(300)"]
OBEDIENT = ["python", "-u", "-c", "import signal, time; signal.signal(15, lambda *_: exit(0)); time.sleep(300)"]


@pytest.fixture
def spent(stack: RunningStack) -> Generator[None]:
    """Return every node to use after the test."""
    yield
    stack.command("node", "enable", "--all")


def launched(stack: RunningStack, **body: Any) -> str:
    """Launch an allocation that stays; return its id."""
    api = stack.api()
    try:
        return str(api.launch({"kind": "command", "command": SLEEPER, **body})["id"])
    finally:
        api.close()


def until(stack: RunningStack, id_: str, check: Callable[[Json], bool], what: str) -> Json:
    """Wait until the allocation meets the condition and return it."""

    def reached() -> Json | None:
        view = stack.view(id_)
        return view if check(view) else None

    found = wait_until(reached, f"{id_} {what}", timeout_s=40.0)
    assert found is not None
    return found


def is_running(view: Json) -> bool:
    return bool(view["phase"] == "Running")


def nodes_of(view: Json) -> set[str]:
    return {rank["node"] for rank in view["status"]["ranks"]}


def test_a_disabled_node_is_left_and_not_used_again(stack: RunningStack, spent: None) -> None:
    """Its allocation restarts elsewhere, as an attempt that is not counted; when it is enabled, the node is used
    again."""
    id_ = launched(stack, name=fresh("moves"))
    before = nodes_of(until(stack, id_, is_running, "running"))
    (node,) = before
    assert stack.command("node", "disable", node).code == 0
    after = until(stack, id_, lambda view: view["attempt"] == 2 and is_running(view), "running elsewhere")
    assert node not in nodes_of(after)
    assert (after["status"].get("restarts", 0), "NodeDisabled" in stack.command("describe", id_).out) == (0, True)
    assert f"{node}  Disabled" in stack.command("nodes").out
    assert stack.command("node", "enable", node).code == 0
    stack.command("kill", id_, "--wait")


def test_draining_lets_finish_and_says_so(stack: RunningStack, spent: None) -> None:
    """Running allocations continue; a waiting one's explanation names the draining node, and it starts when the node
    is enabled."""
    stays = launched(stack, name=fresh("stays"))
    until(stack, stays, is_running, "running")
    assert stack.command("node", "drain", "--all").code == 0
    waits = launched(stack, name=fresh("waits"))
    until(stack, waits, lambda view: "draining" in str(view["status"].get("conditions")), "explained")
    assert "draining" in stack.command("explain", waits).out
    assert (stack.view(stays)["phase"], stack.view(stays)["attempt"]) == ("Running", 1)
    assert stack.command("node", "enable", "--all").code == 0
    until(stack, waits, is_running, "running")
    stack.command("kill", stays, waits, "--wait")


def test_the_order_of_the_queue_is_the_order_of_the_starts(stack: RunningStack, spent: None) -> None:
    """An allocation that is moved ahead gets free resources first; a job is moved as a whole."""
    stack.command("node", "drain", "--all")
    sweep = fresh("sweep")
    assert stack.command("job", "create", sweep).code == 0
    first, second = launched(stack, name=fresh("first")), launched(stack, name=fresh("second"))
    member = launched(stack, name=fresh("member"), job=sweep)
    assert stack.command("move", second, "--ahead-of", first).code == 0
    assert stack.command("job", "move", sweep, "--ahead-of", second).code == 0
    lines = stack.command("queue", "show").out.splitlines()[1:]
    assert [line.split()[1] for line in lines] == [member, second, first]
    assert stack.command("node", "enable", "--all").code == 0
    starts = {
        id_: until(stack, id_, lambda view: view["status"].get("admission") is not None, "admitted")["status"][
            "admission"
        ]
        for id_ in (first, second, member)
    }
    order = [starts[id_]["decisionId"].rsplit("-", 1) for id_ in (member, second, first)]
    assert order == sorted(order, key=lambda each: (each[0], int(each[1])))
    stack.command("kill", first, second, member, "--wait")


def test_a_new_priority_of_a_job_begins_its_running_work_again(stack: RunningStack) -> None:
    """A preemptible allocation is asked to save its work and restarts; for one that is not preemptible the change is
    refused."""
    urgent = fresh("urgent")
    assert stack.command("job", "create", urgent, "--priority", "10").code == 0
    id_ = launched(
        stack,
        name=fresh("preemptible"),
        kind="training",
        job=urgent,
        preemptible=True,
        preemptionGrace="1s",
        command=OBEDIENT,
    )
    until(stack, id_, is_running, "running")
    changed = stack.command("job", "update", urgent, "--priority", "90")
    assert (changed.code, f"{id_} was asked to save its work" in changed.out) == (0, True)
    again = until(stack, id_, lambda view: view["attempt"] == 2 and is_running(view), "running again")
    assert again["status"].get("restarts", 0) == 0
    fixed = launched(stack, name=fresh("fixed"), job=urgent)
    until(stack, fixed, is_running, "running")
    refused = stack.command("job", "update", urgent, "--priority", "20")
    assert (refused.code, fixed in refused.err) == (1, True)
    assert stack.view(fixed)["attempt"] == 1
    stack.command("kill", id_, fixed, "--wait")


def test_usage_survives_the_object_and_the_services(stack: RunningStack) -> None:
    """Usage has exact seconds per user, also after the object was deleted and the watcher killed; as CSV too."""
    user = fresh("counted")
    mine = ("--owner", user)
    id_ = stack.command("run", "--user", user, "--detach", "-q", "--", *SLEEPER).out.strip()
    until(stack, id_, is_running, "running")
    stack.command("kill", id_, "--wait")
    (line,) = [row for row in _csv(stack, "usage", "--raw", "--csv") if row["id"] == id_]
    ran_s = float(line["running_seconds"])
    assert ran_s > 0

    def seconds() -> float:
        return sum(float(row["running_seconds"]) for row in _csv(stack, "usage", *mine, "--by", "user,day", "--csv"))

    before = seconds()
    assert before == pytest.approx(ran_s)
    stack.kill("watcher")
    api = stack.api()
    api.call("DELETE", f"/allocations/{id_}")
    api.close()
    wait_until(lambda: stack.command("get", id_).code == 3, "the object is gone", timeout_s=40.0)
    assert seconds() == pytest.approx(before)
    assert id_ not in stack.command("usage", "--raw").out


def test_history_shows_what_stood_where(stack: RunningStack) -> None:
    """It shows a past moment of the allocation's life, and ended allocations, newest first."""
    id_ = launched(stack, name=fresh("past"))
    node = nodes_of(until(stack, id_, is_running, "running"))
    moment = stack.view(id_)["startedAt"]
    stack.command("kill", id_, "--wait")
    (then,) = [line for line in stack.command("history", "--at", moment).out.splitlines() if id_ in line]
    assert "Running" in then
    assert then.split()[-1] in node
    assert id_ not in stack.command("history", "--at", "0s").out
    assert stack.command("history").out.splitlines()[1].split()[0] == id_
    assert id_ in stack.command("ps", "-a").out


def test_ended_work_is_known_after_every_service_was_killed(stack: RunningStack) -> None:
    """Ended allocations are listed, described and explained, with transitions and times, until retention deletes
    them."""
    id_ = launched(stack, name=fresh("ended"), command=["python", "-c", "raise SystemExit(3)"])
    until(stack, id_, lambda view: view["phase"] == "Terminated", "ended")
    for service in ("api", "scheduler", "podworker", "watcher"):
        stack.kill(service)
    view = stack.view(id_)
    assert (view["result"], view["status"]["ranks"][0]["exitCode"]) == ("Failed", 3)
    for words, said in (
        (("describe", id_), "rank 0 exited with 3"),
        (("explain", id_), "ended: Failed"),
        (("timeline", id_), "Running"),
        (("history",), id_),
        (("ps", "-a"), id_),
    ):
        ran = stack.command(*words)
        assert (ran.code, said in ran.out) == (0, True), (words, ran.out, ran.err)


def _csv(stack: RunningStack, *words: str) -> list[dict[str, str]]:
    ran = stack.command(*words)
    assert ran.code == 0, ran.err
    return list(csv.DictReader(io.StringIO(ran.out)))
