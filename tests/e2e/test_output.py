"""What ranks print, as its readers get it: every line once, in order, to the end, however fast it comes.

The readers are `run`, `logs`, `logs -f` and the pages of the REST API. Ranks and watcher are real processes.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from tests.support.cli import Ran
from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

Json = dict[str, Any]
ByRank = dict[int, list[str]]
READ_S = 120.0
PAGE_LINES = 700
"""Small, so that a log has several pages."""
PRINTS = "import os, sys, time\nrank = int(os.environ['RANK'])\n"
MARK = re.compile(r"-- (\d+) lines? (?:is|are) missing here")


def program(text: str) -> list[str]:
    """The command of a rank; it knows its `rank`."""
    return ["python", "-c", PRINTS + text]


def run(stack: RunningStack, text: str, *, ranks: int = 1, words: Sequence[str] = ()) -> Ran:
    """`slipway run` with that program on so many ranks, to its end."""
    asked = ["run", "--ranks", str(ranks), "--cpus", "100m", "--memory", "64Mi", *words, "--", *program(text)]
    return stack.command(*asked, timeout_s=READ_S)


def launch(stack: RunningStack, text: str, *, ranks: int = 1) -> str:
    """The same, and nobody reads along; its id."""
    done = run(stack, text, ranks=ranks, words=["--detach", "--quiet"])
    assert done.code == 0, done.err
    return done.out.strip()


def id_of(ran: Ran) -> str:
    """What `slipway run` launched."""
    found = re.search(r"[a-z0-9-]+-[0-9a-f]{8}", ran.err)
    assert found is not None, ran.err
    return found[0]


def by_rank(text: str, *, ranks: int) -> ByRank:
    """The lines of each rank, in the order in which they were shown."""
    found: ByRank = {rank: [] for rank in range(ranks)}
    for line in text.splitlines():
        mark, _, words = line.partition(" ") if ranks > 1 else ("[0]", "", line)
        found[int(mark.strip("[]"))].append(words)
    return found


def pages(stack: RunningStack, id_: str, **query: Any) -> list[Json]:
    """All lines by the REST API, page after page."""
    found, cursor = list[Json](), ""
    while True:
        asked = {"stream": "stdout", "head": PAGE_LINES, "after": cursor, **query}
        answer: Json = stack.ask(lambda api, asked=asked: api.get(f"/allocations/{id_}/logs", asked))
        found += answer["items"]
        if not answer["items"] or answer["metadata"]["continue"] == cursor:
            return found
        cursor = answer["metadata"]["continue"]


def read_by_all(stack: RunningStack, id_: str, *, ranks: int = 1) -> dict[str, ByRank]:
    """{reader: what it shows of an allocation that has ended}; each reader has to come to an end by itself."""
    shown: dict[str, ByRank] = {}
    for name, words in (("logs -f", ["-f"]), ("logs", [])):
        done = stack.command("logs", id_, "--stream", "stdout", *words, timeout_s=READ_S)
        assert done.code == 0, done.err
        shown[name] = by_rank(done.out, ranks=ranks)
    listed = defaultdict[int, list[str]](list)
    for item in pages(stack, id_):
        listed[item["rank"]].append(f"-- {item['text']}" if item.get("missing") else item["text"])
    shown["pages"] = {rank: listed[rank] for rank in range(ranks)}
    return shown


def assert_shown(shown: Mapping[str, ByRank], wanted: Mapping[int, Sequence[str]]) -> None:
    """Each reader shows exactly these lines of each rank, in this order."""
    for reader, ranks in shown.items():
        for rank, lines in wanted.items():
            found = ranks[rank]
            assert len(found) == len(lines), (reader, rank, len(found), len(lines), found[-3:])
            different = [(number, each, lines[number]) for number, each in enumerate(found) if each != lines[number]]
            assert not different, (reader, rank, different[:3])


def missing_in(lines: Iterable[str]) -> int:
    """How many lines the marks of a log say are missing."""
    return sum(int(found[1]) for line in lines if (found := MARK.match(line)) is not None)


def test_a_burst_of_several_ranks(stack: RunningStack) -> None:
    """Three ranks that print 3,000 lines at once and end: 9,000 lines, for each reader."""
    ran = run(stack, "for n in range(3000): print(rank, n)", ranks=3)
    assert ran.code == 0, ran.err
    wanted = {rank: [f"{rank} {n}" for n in range(3000)] for rank in range(3)}
    shown = {"run": by_rank(ran.out, ranks=3), **read_by_all(stack, id_of(ran), ranks=3)}
    assert_shown(shown, wanted)


def test_a_flood_and_its_traceback(stack: RunningStack) -> None:
    """A rank that prints 40,000 lines and fails: its log is whole, and ends with the error."""
    text = "for n in range(40_000): print('line', n)\nsys.stdout.flush()\nraise RuntimeError('the cause')"
    ran = run(stack, text)
    assert ran.code == 1
    shown = {"run": by_rank(ran.out, ranks=1), **read_by_all(stack, id_of(ran))}
    for reader, (lines,) in ((reader, ranks.values()) for reader, ranks in shown.items()):
        assert lines[:40_000] == [f"line {n}" for n in range(40_000)], reader
        assert (lines[40_000], lines[-1]) == ("Traceback (most recent call last):", "RuntimeError: the cause"), reader


def test_the_cause_stands_among_the_lines_of_others(stack: RunningStack) -> None:
    """Of eight ranks that print, one says why it fails: its line is kept, and the failure is told by its name."""
    text = """
if rank == 3:
    time.sleep(1.5); print("THE CAUSE", file=sys.stderr, flush=True); sys.exit(7)
for step in range(30):
    for n in range(200): print("step", step * 200 + n)
    sys.stdout.flush(); time.sleep(0.1)
time.sleep(60)
"""
    ran = run(stack, text, ranks=8)
    id_ = id_of(ran)
    assert ran.code == 1
    assert "(RankFailed): rank 3 exited with 7" in ran.err.splitlines()[-1]
    shown = {"run": by_rank(ran.out, ranks=8), **read_by_all(stack, id_, ranks=8)}
    assert_shown(shown, {3: ["THE CAUSE"]})
    for reader, ranks in shown.items():
        for rank in set(range(8)) - {3}:
            lines = ranks[rank]
            assert lines, (reader, rank)
            assert lines == [f"step {n}" for n in range(len(lines))], (reader, rank)
    (why,) = [line for line in stack.command("describe", id_).out.splitlines() if line.lower().startswith("why")]
    assert "rank 3 exited with 7" in why
    assert "143" not in why.partition("rank 3 exited with 7")[0]


def test_the_watcher_is_killed(stack: RunningStack) -> None:
    """What prints on while the only watcher is killed and started again, and ends soon after, loses no line."""
    text = "for n in range(60): print('line', n, flush=True); time.sleep(0.05)\nprint('the last line')"
    id_ = launch(stack, text)
    wait_until(lambda: pages(stack, id_), "its first lines", timeout_s=60)
    killed = stack.kill("watcher")
    stack.wait_for(id_, "Terminated", timeout_s=90)
    assert stack.pid("watcher") != killed
    assert_shown(read_by_all(stack, id_), {0: [*(f"line {n}" for n in range(60)), "the last line"]})


def test_a_flooding_rank_costs_no_other_rank_a_line(stack: RunningStack) -> None:
    """Of a rank that prints more than is kept, each missing line is counted; of its neighbour none is missing."""
    text = """
import base64
if rank == 0:
    for n in range(14_000): print(n, base64.b64encode(os.urandom(900)).decode())
else:
    for n in range(500): print(n, "neighbour", flush=True); time.sleep(0.005)
"""
    id_ = launch(stack, text, ranks=2)
    stack.wait_for(id_, "Terminated", timeout_s=90)
    shown = read_by_all(stack, id_, ranks=2)
    assert_shown(shown, {1: [f"{n} neighbour" for n in range(500)]})
    for reader, ranks in shown.items():
        kept = [int(line.partition(" ")[0]) for line in ranks[0] if not line.startswith("--")]
        missing = missing_in(ranks[0])
        assert missing > 0, reader
        assert len(kept) + missing == 14_000, reader
        assert kept == sorted(set(kept)), reader
        assert (kept[0], kept[-1]) == (0, 13_999), reader


def test_a_line_that_is_too_long(stack: RunningStack) -> None:
    """Its beginning and its end are kept, and between them stands how much is not; the lines around it are whole."""
    ran = run(stack, "print('before'); print('<' + 'x' * 100_000 + '>'); print('after')")
    shown = {"run": by_rank(ran.out, ranks=1), **read_by_all(stack, id_of(ran))}
    for reader, ranks in shown.items():
        before, line, after = ranks[0]
        assert (before, after) == ("before", "after"), reader
        found = re.fullmatch(r"(<x+) \[\.\.\. (\d+) bytes of this line are not kept \.\.\.\] (x+>)", line)
        assert found is not None, (reader, line[:50])
        assert len(found[1]) + int(found[2]) + len(found[3]) == 100_002, reader


def test_a_progress_bar(stack: RunningStack) -> None:
    """Updates that begin with a carriage return: the newest is shown while the line goes on, and the last one stays."""
    text = r"""
for n in range(100):
    sys.stdout.write("\rprogress %3d%% [%s]" % (n, "#" * 100)); sys.stdout.flush(); time.sleep(0.005)
while not os.path.exists(sys.argv[0] + "go"): time.sleep(0.02)
for n in range(100, 200):
    sys.stdout.write("\rprogress %3d%% [%s]" % (n, "#" * 100)); sys.stdout.flush(); time.sleep(0.002)
print("\nafter")
"""
    go = stack.folder / "bar-may-go"
    id_ = launch(stack, text.replace('sys.argv[0] + "go"', repr(str(go))))
    wait_until(
        lambda: any("progress  99%" in item["text"] for item in pages(stack, id_)), "the newest update", timeout_s=60
    )
    go.touch()
    stack.wait_for(id_, "Terminated")
    for reader, ranks in read_by_all(stack, id_).items():
        *_, last, after = ranks[0]
        assert (last, after) == (f"progress 199% [{'#' * 100}]", "after"), reader


def test_init_containers_and_sidecars(stack: RunningStack) -> None:
    """What they print is read by the name of the container, and does not stand among the lines of the rank."""
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
        assert [item["text"] for item in pages(stack, id_, container=container)] == [line]


@pytest.mark.parametrize("text", ["$$", "$(RANK)", "$(HOME)/x", "$$(RANK)", "a$b"])
def test_a_command_runs_as_it_was_typed(stack: RunningStack, text: str) -> None:
    """Kubernetes would expand `$(NAME)` and `$$`; what runs has the words that were typed."""
    ran = stack.command("run", "--", "python", "-c", "import sys; print(sys.argv[1])", text)
    assert (ran.code, ran.out) == (0, f"{text}\n"), ran.err


def test_a_variable_of_the_caller(stack: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--env NAME` passes on the value that the caller has; without one it is refused, by name."""
    monkeypatch.setenv("LEARNING_RATE", "0.1 $(RANK)")
    ran = stack.command(
        "run", "--env", "LEARNING_RATE", "--", "python", "-c", "import os; print(os.environ['LEARNING_RATE'])"
    )
    assert (ran.code, ran.out) == (0, "0.1 $(RANK)\n"), ran.err
    refused = stack.command("run", "--env", "NOT_SET_HERE", "--", "true")
    assert (refused.code, "NOT_SET_HERE" in refused.err) == (2, True), refused.err
