"""Output of ranks on a local stack: readers get every line once, in order, to the end, or a count of missing ones.

Ranks, nodes and watcher are real processes. The first four cases are also tested on a real API server
(`tests/conformance/system/test_output.py`).
"""

import re

import pytest

from tests.support import output
from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.output import Readers, assert_shown
from tests.support.wait import wait_until


@pytest.fixture
def readers(stack: RunningStack) -> Readers:
    """The readers of the local stack."""
    return Readers(stack.command, stack.ask)


def test_a_burst_of_several_ranks(readers: Readers) -> None:
    """Three ranks that print 3,000 lines at once and end: each reader gets 9,000 lines."""
    output.check_burst(readers)


def test_a_flood_and_its_traceback(readers: Readers) -> None:
    """A rank prints 40,000 lines and fails: its log is complete, and ends with the error."""
    output.check_flood_and_traceback(readers)


def test_the_cause_stands_among_the_lines_of_others(readers: Readers) -> None:
    """Of eight ranks that print, one prints why it fails: the log contains its line, and the failure names that
    rank."""
    output.check_cause_among_others(readers)


def test_the_watcher_is_killed(stack: RunningStack, readers: Readers) -> None:
    """Output that continues while the only watcher is killed and restarted, and ends soon after, loses no line."""
    before = stack.pid("watcher")
    output.check_kill_of_the_watcher(readers, lambda: stack.kill("watcher"))
    assert stack.pid("watcher") != before


def test_a_flooding_rank_costs_no_other_rank_a_line(stack: RunningStack, readers: Readers) -> None:
    """Each line of a flooding rank is shown or counted as missing; no line of its neighbour is missing."""
    text = """
import base64
if rank == 0:
    for n in range(14_000): print(n, base64.b64encode(os.urandom(900)).decode())
else:
    for n in range(500): print(n, "neighbour", flush=True); time.sleep(0.005)
"""
    id_ = readers.launch(text, ranks=2)
    stack.wait_for(id_, "Terminated", timeout_s=90)
    shown = readers.read(id_, ranks=2)
    assert_shown(shown, {1: [f"{n} neighbour" for n in range(500)]})
    for reader, ranks in shown.items():
        kept = [int(line.partition(" ")[0]) for line in ranks[0] if not line.startswith("--")]
        missing = output.missing_in(ranks[0])
        assert len(kept) + missing == 14_000, reader
        assert kept == sorted(set(kept)), reader
        assert (kept[0], kept[-1]) == (0, 13_999), reader


def test_a_line_that_is_too_long(readers: Readers) -> None:
    """Its beginning and its end are shown, with the number of omitted bytes between them; the lines around it are
    complete."""
    ran = readers.run("print('before'); print('<' + 'x' * 100_000 + '>'); print('after')")
    for reader, ranks in readers.read_after_run(ran).items():
        before, line, after = ranks[0]
        assert (before, after) == ("before", "after"), reader
        found = re.fullmatch(r"(<x+) \[\.\.\. (\d+) bytes of this line are not kept \.\.\.\] (x+>)", line)
        assert found is not None, (reader, line[:50])
        assert len(found[1]) + int(found[2]) + len(found[3]) == 100_002, reader


def test_a_progress_bar(stack: RunningStack, readers: Readers) -> None:
    """Of updates that begin with a carriage return the newest is shown while the line is unfinished, and the last
    one stays."""
    go = stack.folder / fresh("bar-may-go")
    text = rf"""
def show(n): sys.stdout.write("\rprogress %3d%% [%s]" % (n, "#" * 100)); sys.stdout.flush(); time.sleep(0.005)
for n in range(100): show(n)
while not os.path.exists({str(go)!r}): time.sleep(0.02)
for n in range(100, 200): show(n)
print("\nafter")
"""
    id_ = readers.launch(text)
    wait_until(
        lambda: any("progress  99%" in item["text"] for item in readers.pages(id_)), "the newest update", timeout_s=60
    )
    go.touch()
    stack.wait_for(id_, "Terminated")
    for reader, ranks in readers.read(id_).items():
        *_, last, after = ranks[0]
        assert (last, after) == (f"progress 199% [{'#' * 100}]", "after"), reader


def test_init_containers_and_sidecars(stack: RunningStack, readers: Readers) -> None:
    """Their output is read by the name of the container, and is not among the lines of the rank."""
    template = {
        "spec": {
            "initContainers": [{"name": "setup", "image": "local", "command": ["sh", "-c", "echo shard 3 of 4"]}],
            "containers": [
                {"name": "main", "image": "local", "command": ["sh", "-c", "echo main; sleep 1; exit 5"]},
                {"name": "helper", "image": "local", "command": ["sh", "-c", "echo helper; exec sleep 60"]},
            ],
        }
    }
    id_ = stack.launch({"kind": "command", "template": template})
    stack.wait_for(id_, "Terminated")
    for container, line in (("", "main"), ("main", "main"), ("setup", "shard 3 of 4"), ("helper", "helper")):
        words = ["--container", container] if container else []
        for following in ([], ["-f"]):
            done = stack.command("logs", id_, "--stream", "stdout", *words, *following)
            assert (done.code, done.out) == (0, f"{line}\n"), (container, following, done.err)
        assert [item["text"] for item in readers.pages(id_, container=container)] == [line]


@pytest.mark.parametrize("text", ["$$", "$(RANK)", "$(HOME)/x", "$$(RANK)", "a$b"])
def test_a_command_runs_as_it_was_typed(stack: RunningStack, text: str) -> None:
    """Kubernetes would expand `$(NAME)` and `$$`; the program gets the words as typed."""
    ran = stack.command("run", "--", "python", "-c", "import sys; print(sys.argv[1])", text)
    assert (ran.code, ran.out) == (0, f"{text}\n"), ran.err


def test_a_variable_of_the_caller(stack: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--env NAME` passes on the caller's value; a variable that the caller does not have is refused, by name."""
    monkeypatch.setenv("LEARNING_RATE", "0.1 $(RANK)")
    program = "import os; print(os.environ['LEARNING_RATE'])"
    ran = stack.command("run", "--env", "LEARNING_RATE", "--", "python", "-c", program)
    assert (ran.code, ran.out) == (0, "0.1 $(RANK)\n"), ran.err
    refused = stack.command("run", "--env", "NOT_SET_HERE", "--", "true")
    assert (refused.code, "NOT_SET_HERE" in refused.err) == (2, True), refused.err
