"""An allocation that waits for others, on a whole system: it starts when they have ended, or never."""

from pathlib import Path

from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

SMALL = ("--cpus", "50m", "--memory", "64Mi", "--image", "local", "--detach")


def test_one_after_the_other(stack: RunningStack, marks: Path) -> None:
    """The first allocation fails when it is resumed. The one that waits for its success is canceled, and so is the one
    that waits for that; the one that waits for the failure runs. Until then each explanation names what it waits
    for."""
    names = {word: fresh(word) for word in ("first", "next", "last", "repair")}

    def launch(word: str, *options: str, script: str) -> str:
        ran = stack.command("run", "--name", names[word], *SMALL, *options, "--", "sh", "-c", script)
        assert ran.code == 0, ran.err
        return ran.out.split()[0]

    first = launch("first", script=f"until test -e {marks}/go; do sleep 0.1; done; exit 3")
    then = launch("next", "--after", names["first"], script=f"touch {marks}/next")
    last = launch("last", "--after", then, script=f"touch {marks}/last")
    repair = launch("repair", "--after", f"{first}:failed", script=f"touch {marks}/repair")

    def told(word: str) -> bool:
        return word in stack.command("explain", then).out

    wait_until(lambda: told(f"waits for {first} to succeed"), "it is told for whom it waits")
    stack.wait_for(first, "Running")
    assert {stack.view(id_)["phase"] for id_ in (then, last, repair)} == {"Pending"}
    (marks / "go").touch()
    ended = {id_: stack.wait_for(id_, "Terminated") for id_ in (first, then, last, repair)}
    assert [view["result"] for view in ended.values()] == ["Failed", "Canceled", "Canceled", "Succeeded"]
    assert ended[then]["reason"] == ended[last]["reason"] == "DependencyNotMet"
    assert ended[last]["message"] == f"{then} ended with Canceled; this allocation starts only if it succeeded"
    assert sorted(path.name for path in marks.iterdir()) == ["go", "repair"]
    refused = stack.command("run", *SMALL, "--after", first, "--", "true")
    assert refused.code != 0
    assert f"{first} ended with Failed" in refused.err
