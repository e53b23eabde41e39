"""The output of ranks, as every reader gets it: `run`, `logs`, `logs -f` and the pages of the REST API.

Owns the readers and the cases that hold on any system with real processes: the local one, and the one on a real API
server. A case is a program of the ranks, and the output that each reader must show: every line once, in order, to the
end.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from slipway.cli.http import Api
from tests.support.cli import CommandResult
from tests.support.wait import wait_until

Json = dict[str, Any]
ByRank = dict[int, list[str]]
READ_S = 120.0
PAGE_LINES = 700
"""Small, so that a log has several pages."""
PRINTS = "import os, sys, time\nrank = int(os.environ['RANK'])\n"
MARK = re.compile(r"-- (\d+) lines? (?:is|are) missing here")


class Command(Protocol):
    """Runs `slipway ...` as a process and waits for its end."""

    def __call__(self, *words: str, timeout_s: float = ...) -> CommandResult: ...


class Readers:
    """Launches programs and reads what they print. `where` are words of `run` that select the place."""

    def __init__(
        self, command: Command, ask: Callable[[Callable[[Api], Any]], Any], *, where: Sequence[str] = ()
    ) -> None:
        self.command = command
        self._ask = ask
        self._where = where

    def run(self, text: str, *, ranks: int = 1, words: Sequence[str] = ()) -> CommandResult:
        """Run a Python program on `ranks` ranks by `slipway run` and wait for its end. The program knows its `rank`."""
        asked = ["run", "--ranks", str(ranks), "--cpus", "100m", "--memory", "64Mi", *self._where, *words]
        return self.command(*asked, "--", "python", "-c", PRINTS + text, timeout_s=READ_S)

    def launch(self, text: str, *, ranks: int = 1) -> str:
        """Launch the program without waiting for it; return the id of the allocation."""
        done = self.run(text, ranks=ranks, words=["--detach", "--quiet"])
        assert done.code == 0, done.err
        return done.out.strip()

    def pages(self, id_: str, **query: Any) -> list[Json]:
        """Read all lines by the REST API, page after page."""
        found, cursor = list[Json](), ""
        while True:
            asked = {"stream": "stdout", "head": PAGE_LINES, "after": cursor, **query}
            answer: Json = self._ask(lambda api, asked=asked: api.get(f"/allocations/{id_}/logs", asked))
            found += answer["items"]
            if not answer["items"] or answer["metadata"]["continue"] == cursor:
                return found
            cursor = answer["metadata"]["continue"]

    def has_ended(self, id_: str) -> bool:
        """Whether the allocation has ended."""
        view: Json = self._ask(lambda api: api.get(f"/allocations/{id_}"))
        return view["phase"] == "Terminated"

    def read(self, id_: str, *, ranks: int = 1) -> dict[str, ByRank]:
        """{reader: what it shows of an allocation that has ended}; each reader ends by itself."""
        shown: dict[str, ByRank] = {}
        for name, words in (("logs -f", ["-f"]), ("logs", [])):
            done = self.command("logs", id_, "--stream", "stdout", *words, timeout_s=READ_S)
            assert done.code == 0, done.err
            shown[name] = by_rank(done.out, ranks=ranks)
        listed = defaultdict[int, list[str]](list)
        for item in self.pages(id_):
            listed[item["rank"]].append(f"-- {item['text']}" if item.get("missing") else item["text"])
        shown["pages"] = {rank: listed[rank] for rank in range(ranks)}
        return shown

    def read_after_run(self, ran: CommandResult, *, ranks: int = 1) -> dict[str, ByRank]:
        """Like `read`, with the output that `slipway run` itself has shown."""
        return {"run": by_rank(ran.out, ranks=ranks), **self.read(id_of(ran), ranks=ranks)}


def id_of(ran: CommandResult) -> str:
    """The id of the allocation that `slipway run` launched."""
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


def assert_shown(shown: Mapping[str, ByRank], wanted: Mapping[int, Sequence[str]]) -> None:
    """Each reader shows exactly these lines of each rank, in this order."""
    for reader, ranks in shown.items():
        for rank, lines in wanted.items():
            found = ranks[rank]
            assert len(found) == len(lines), (reader, rank, len(found), len(lines), found[-3:])
            different = [(number, each, lines[number]) for number, each in enumerate(found) if each != lines[number]]
            assert not different, (reader, rank, different[:3])


def missing_in(lines: Iterable[str]) -> int:
    """The number of lines that are missing, according to the marks in a log."""
    return sum(int(found[1]) for line in lines if (found := MARK.match(line)) is not None)


# --- cases ------------------------------------------------------------------------------------------------------------


def check_burst(readers: Readers) -> None:
    """Three ranks print 3,000 lines each at once and end."""
    ran = readers.run("for n in range(3000): print(rank, n)", ranks=3)
    assert ran.code == 0, ran.err
    assert_shown(
        readers.read_after_run(ran, ranks=3), {rank: [f"{rank} {n}" for n in range(3000)] for rank in range(3)}
    )


def check_flood_and_traceback(readers: Readers) -> None:
    """A rank prints 40,000 lines and fails: its log is whole and ends with the error."""
    ran = readers.run("for n in range(40_000): print('line', n)\nsys.stdout.flush()\nraise RuntimeError('the cause')")
    assert ran.code == 1, ran.err
    for reader, ranks in readers.read_after_run(ran).items():
        lines = ranks[0]
        assert lines[:40_000] == [f"line {n}" for n in range(40_000)], reader
        assert (lines[40_000], lines[-1]) == ("Traceback (most recent call last):", "RuntimeError: the cause"), reader


def check_cause_among_others(readers: Readers) -> None:
    """Of eight ranks that print, one prints why it fails: its line is stored, and the message of the failure names the
    rank."""
    text = """
if rank == 3:
    time.sleep(1.5); print("THE CAUSE", file=sys.stderr, flush=True); sys.exit(7)
for step in range(30):
    for n in range(200): print("step", step * 200 + n)
    sys.stdout.flush(); time.sleep(0.1)
time.sleep(60)
"""
    ran = readers.run(text, ranks=8)
    assert ran.code == 7
    assert "(RankFailed): rank 3 exited with 7" in ran.err.splitlines()[-1]
    shown = readers.read_after_run(ran, ranks=8)
    assert_shown(shown, {3: ["THE CAUSE"]})
    for reader, ranks in shown.items():
        for rank in set(range(8)) - {3}:
            lines = ranks[rank]
            assert lines, (reader, rank)
            # The failure ends the other ranks while they print: their last line may be incomplete.
            assert f"step {len(lines) - 1}".startswith(lines[-1]), (reader, rank, lines[-2:])
            wrong = next((n for n, line in enumerate(lines[:-1]) if line != f"step {n}"), None)
            assert wrong is None, (reader, rank, len(lines), lines[max(0, wrong - 2) : wrong + 4])
    described = readers.command("describe", id_of(ran)).out.splitlines()
    (why,) = [line for line in described if line.lower().startswith("why")]
    assert "rank 3 exited with 7" in why
    assert "143" not in why.partition("rank 3 exited with 7")[0]


def check_kill_of_the_watcher(readers: Readers, kill: Callable[[], object]) -> None:
    """A rank that prints while the only watcher is killed and restarted, and ends soon after, loses no line."""
    text = "for n in range(60): print('line', n, flush=True); time.sleep(0.05)\nprint('the last line')"
    id_ = readers.launch(text)
    wait_until(lambda: readers.pages(id_), "its first lines", timeout_s=60)
    kill()
    wait_until(lambda: readers.has_ended(id_), "its end", timeout_s=90)
    assert_shown(readers.read(id_), {0: [*(f"line {n}" for n in range(60)), "the last line"]})
