"""`slipway run --array`: each launch runs with its own index, and the job limits how many run at a time."""

from itertools import pairwise
from pathlib import Path

from tests.support.local_stack import RunningStack
from tests.support.names import fresh

SCRIPT = 'echo "$ARRAY_INDEX of $ARRAY_COUNT" > {marks}/$ARRAY_INDEX'


def test_each_index_of_an_array_runs(stack: RunningStack, marks: Path) -> None:
    """The allocations of one job run one at a time here."""
    name = fresh("sweep")
    words = ("--name", name, "--gpus", "1", "--cpus", "50m", "--memory", "64Mi", "--image", "local")
    ran = stack.command("run", *words, "--array", "0-2%1", "--", "sh", "-c", SCRIPT.format(marks=marks))
    assert ran.code == 0, ran.err
    ids = ran.out.split()
    ended = [stack.wait_for(id_, "Terminated") for id_ in ids]
    assert [view["result"] for view in ended] == ["Succeeded"] * 3
    assert {path.name: path.read_text("utf-8") for path in marks.iterdir()} == {
        str(index): f"{index} of 3\n" for index in range(3)
    }
    spans = sorted((view["status"]["startedAt"], view["status"]["endedAt"]) for view in ended)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
