"""Texts for users: states, tables, waterfalls, errors."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest

from slipway.cli import labels, table, waterfall
from slipway.cli.follow import progress_of
from slipway.cli.terminal import Terminal
from slipway.cli.verb import command_line, describe, exit_code, named
from slipway.cli.verbs.show import explain_text, forecast_text, timeline_text
from slipway.cli.verbs.streams import event_text
from slipway.cli.waterfall import WorkSpan
from slipway.errors import (
    DeadlineError,
    DeniedError,
    FieldError,
    InvalidError,
    NotFoundError,
    PermanentError,
    UnavailableError,
)

Json = dict[str, Any]


def a_view(**changes: Any) -> Json:
    """An allocation as the API answers it."""
    base: Json = {
        "id": "run-a-12345678",
        "phase": "Running",
        "result": None,
        "reason": "",
        "message": "",
        "ready": False,
        "hold": False,
        "desired": "Running",
        "spec": {"ranks": [{"name": "worker", "count": 2}]},
        "status": {"ranks": [{"phase": "Running"}, {"phase": "Bound"}], "nodes": "node-0"},
    }
    return {**base, **changes}


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "Running"),
        ({"ready": True}, "Ready"),
        ({"ready": True, "waiting": True}, "Waiting"),
        ({"phase": "Pending", "hold": True}, "Held"),
        ({"phase": "Terminated", "result": "Failed"}, "Failed"),
        ({"phase": "Starting"}, "Starting"),
    ],
)
def test_states(changes: Json, state: str) -> None:
    """A state is one word: the phase, or a word that is clearer."""
    assert labels.state_of(a_view(**changes)) == state


def test_ranks_and_notes() -> None:
    """The columns show how many ranks run, on which nodes, and what is wrong."""
    assert labels.running_of(a_view()) == "1/2"
    assert labels.note_of(a_view()) == "node-0"
    waiting = [{"type": "Admitted", "status": "False", "reason": "NoFit", "message": "no room"}]
    assert labels.note_of(a_view(phase="Pending", status={"conditions": waiting})) == "NoFit: no room"
    failed = {"ranks": [{"phase": "Succeeded", "exitCode": 0}, {"phase": "Failed", "exitCode": 3}]}
    ended = a_view(phase="Terminated", result="Failed", reason="RankFailed", status=failed)
    assert labels.note_of(ended) == "rank 1 exited with 3"
    assert labels.summary_of(ended) == "run-a-12345678 Failed (RankFailed): rank 1 exited with 3"


@pytest.mark.parametrize(
    ("end", "ranks", "code"),
    [
        ({"result": "Succeeded"}, [{"exitCode": 0}], 0),
        ({"result": "Failed", "reason": "RankFailed"}, [{"exitCode": 7, "reason": "RankFailed"}], 7),
        # The code of the rank that ended the allocation, not of the ranks that were stopped for it.
        (
            {"result": "Failed", "reason": "RankFailed", "message": "rank 1 on node-a: exit code 7"},
            [{"exitCode": 143}, {"exitCode": 7, "reason": "RankFailed"}],
            7,
        ),
        (
            {"result": "Failed", "reason": "RankFailed"},
            [{"exitCode": 143}, {"exitCode": 9, "reason": "RankFailed"}],
            9,
        ),
        # There is no exit code of a program: the image or the node failed.
        ({"result": "Failed", "reason": "ImagePullBackOff"}, [{"exitCode": None, "reason": "ImagePullBackOff"}], 1),
        ({"result": "Failed", "reason": "NodeLost", "message": "rank 5: the node is gone"}, [], 1),
        # An end by others is no result of the program.
        ({"result": "Canceled", "reason": "Killed"}, [{"exitCode": 143}], 1),
        ({"result": "TimedOut", "reason": "MaxRuntime"}, [{"exitCode": 137}], 1),
        ({"result": "Preempted", "reason": "Preempted"}, [{"exitCode": 0}], 1),
        # No process can exit with this code.
        ({"result": "Failed", "reason": "RankFailed"}, [{"exitCode": 256, "reason": "RankFailed"}], 1),
    ],
)
def test_following_ends_with_the_exit_code_of_the_rank(end: Json, ranks: list[Json], code: int) -> None:
    """Following exits with the exit code of the rank that ended the allocation; with 1 for every other end."""
    assert labels.exit_code_of(a_view(phase="Terminated", status={"ranks": ranks}, **end)) == code


def test_tables() -> None:
    """The columns of tables are aligned; when the terminal is too narrow, the last one is cut."""
    text = table.render(["A", "NOTE"], [["long cell", "x" * 50], ["b", ""]], width=40)
    assert [len(line) for line in text.splitlines()] == [15, 40, 1]
    assert text.splitlines()[1].endswith("…")
    assert table.render(["A", "NOTE"], [["a", "x" * 90]]).endswith("x" * 90)


def test_pairs_leave_out_what_is_empty() -> None:
    """Pairs with an empty value are left out, and the names are aligned."""
    assert table.pairs([("A", "1"), ("Long", ""), ("Bcd", "2")]) == "A:    1\nBcd:  2"


def test_facts_keep_to_the_columns_of_a_terminal() -> None:
    """A long reason continues on the next line below itself and loses no word; a name that is wider than the terminal
    stays whole."""
    reason = "no node of pool default has room for a rank of 4 cpu, 8Gi and 2 nvidia.com/gpu now"
    shown = table.pairs([("ID", "a"), ("Why", reason), ("Page", "x" * 50)], width=40).splitlines()
    assert [line[:7] for line in shown] == ["ID:    ", "Why:   ", *[" " * 7] * (len(shown) - 3), "Page:  "]
    assert max(len(line) for line in shown[:-1]) <= 40
    assert " ".join(line[7:] for line in shown[1:-1]) == reason
    assert shown[-1] == "Page:  " + "x" * 50


def test_a_command_that_is_copied_has_its_words_quoted() -> None:
    """In a command that a user copies, a name from a server is quoted as one word."""
    assert command_line("follow", "run-a-12345678") == "slipway follow run-a-12345678"
    assert command_line("follow", "a; rm -rf ~", "$(id)") == "slipway follow 'a; rm -rf ~' '$(id)'"


def test_ages() -> None:
    """Ages are short and never negative."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert table.age("2026-01-02T03:01:05Z", moment) == "3m"
    assert table.age("2026-01-02T03:04:09Z", moment) == "0ms"
    assert table.age("", moment) == ""


def test_pipes_get_plain_lines() -> None:
    """A pipe gets plain lines: no colour, no rewritten line, each progress once."""
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err)
    terminal.live("waits")
    terminal.live("waits")
    terminal.live("runs")
    terminal.clear()
    terminal.line(terminal.state("Failed"))
    assert (out.getvalue(), err.getvalue()) == ("Failed\n", "waits\nruns\n")


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colour_and_one_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets colour and one live line: progress is rewritten, and is removed for a line of output."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out, err = Tty(), Tty()
    terminal = Terminal(out, err)
    terminal.live("waits")
    terminal.line("a result")
    assert out.getvalue() == "a result\n"
    assert err.getvalue() == "\r\x1b[2Kwaits\r\x1b[2K\r\x1b[2Kwaits"
    terminal.line(terminal.state("Failed"))
    assert out.getvalue().endswith("\n\x1b[31mFailed\x1b[0m\n")


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR switches colour off, whatever its value."""
    monkeypatch.setenv("NO_COLOR", "")
    assert Terminal(Tty(), Tty()).state("Failed") == "Failed"


def a_span(id_: str, parent: str, start_ms: int, end_ms: int, *, is_ok: bool = True) -> WorkSpan:
    """A span."""
    return WorkSpan(id_, parent, f"work {id_}", "api", start_ms * 1_000_000, end_ms * 1_000_000, is_ok)


def test_waterfall() -> None:
    """In a waterfall children follow their parents on one axis; failed spans are marked."""
    spans = [a_span("c", "a", 50, 100, is_ok=False), a_span("a", "", 0, 100), a_span("b", "a", 0, 50)]
    lines = waterfall.render(spans, width=60).splitlines()
    assert [line.split()[2] for line in lines[:3]] == ["a", "b", "c"]
    whole, first, second = (line.split("|")[1] for line in lines[:3])
    assert whole == "█" * len(whole)
    assert (first.strip(), second.strip()) == (first.rstrip(), second.lstrip())
    assert len(whole) <= len(first.strip()) + len(second.strip()) <= len(whole) + 1
    assert lines[2].endswith("!")
    assert all(len(line) <= 62 for line in lines)


def test_waterfall_of_strangers_and_rings() -> None:
    """A missing parent, a span that is its own parent, and spans that are each other's parents hide no span."""
    spans = [a_span("a", "gone", 0, 1), a_span("b", "b", 0, 1)]
    assert len(waterfall.in_order(spans)) == 2
    ring = [a_span("x", "z", 0, 9), a_span("y", "x", 1, 2), a_span("z", "y", 3, 4), a_span("child", "z", 5, 6)]
    assert [(depth, span.id) for depth, span in waterfall.in_order(ring)] == [
        (0, "x"),
        (1, "y"),
        (2, "z"),
        (3, "child"),
    ]
    twins = [a_span("t", "", 0, 1), a_span("t", "t", 0, 1), a_span("u", "t", 0, 1)]
    assert sorted(span.id for _, span in waterfall.in_order(twins)) == ["t", "t", "u"]
    assert waterfall.render([]) == ""


def test_events() -> None:
    """An event is one line, with objects in a short form."""
    data = {"seq": 2, "phase": "Assigned", "nodes": {"node-0": 3}, "uid": "x"}
    event = {"type": "dev.slipway.allocation.assigned", "time": "2026-01-02T03:04:05.678Z", "data": data}
    assert event_text(event) == "03:04:05.678    2  assigned     Assigned     nodes=node-0:3"


def test_a_preemption_says_for_whom() -> None:
    """The event of a preemption names the beneficiary first."""
    data = {"seq": 7, "phase": "Running", "reason": "Preempted", "by": "default/urgent", "requeue": True}
    event = {"type": "dev.slipway.allocation.preempting", "time": "2026-01-02T03:04:05.678Z", "data": data}
    assert event_text(event) == "03:04:05.678    7  preempting   Running      Preempted for default/urgent requeue=True"


def test_explanations() -> None:
    """An explanation has the gate, the position and what would help; or the placement."""
    why: Json = {
        "id": "a",
        "phase": "Pending",
        "result": None,
        "code": "NoFit",
        "message": "no room",
        "position": 2,
        "queue": "q",
        "pool": "p",
        "jobsAhead": ["b"],
        "change": [{"kind": "fit", "detail": "wait"}],
    }
    assert explain_text(why).splitlines() == [
        "a  Pending",
        "  NoFit: no room",
        "  position 2 in queue q of pool p",
        "  ahead: b",
        "  what helps: wait",
    ]
    deadline = {"name": "idle", "at": "2020-01-02T03:04:05.678Z", "detail": "unless it is used before"}
    unknown = {"name": "idle", "detail": "Redis is away"}
    assert explain_text({**why, "deadlines": [deadline, unknown]}).splitlines()[5:] == [
        "  idle: ends at 03:04:05 UTC, now",
        "    unless it is used before",
        "  idle: no end expected",
        "    Redis is away",
    ]
    assert progress_of(why) == "waits, position 2 in queue q: NoFit: no room"
    assert progress_of({**why, "phase": "Starting", "message": "starting: 1 of 2 ranks running"}).startswith("starting")


def test_an_explanation_names_the_holders() -> None:
    """The allocations that occupy the required resources are listed, one line each, with the number of further ones."""
    holders = [{"id": "b", "user": "ada", "slots": 8, "since": "2026-01-02T03:04:05Z"}]
    why: Json = {"id": "a", "phase": "Pending", "code": "NoFit", "message": "no room", "holders": holders}
    assert explain_text({**why, "othersHolding": 2}).splitlines()[2:] == [
        "  held by b of ada: 8 GPUs since 2026-01-02T03:04:05Z",
        "  held by 2 others too",
    ]
    assert explain_text({**why, "holders": [], "othersHolding": 1}).splitlines()[2:] == ["  held by 1 other"]


def test_an_explanation_keeps_to_the_columns_of_a_terminal() -> None:
    """Long sentences are broken between words; elsewhere each is one line, which can be searched."""
    message = (
        "can never start with the pool's current nodes: even when empty, the pool has no place for a rank like this; "
        "the largest node that it may use has 4 nvidia.com/gpu: ask for at most that per rank; 0 of 2 nodes fit"
    )
    why: Json = {"id": "a", "phase": "Pending", "code": "NoFit", "message": message}
    lines = explain_text(why, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line[:4].isspace() for line in lines] == [False, False, True, True]
    assert " ".join(line.strip() for line in lines) == f"a  Pending NoFit: {message}"
    assert explain_text(why).splitlines() == ["a  Pending", f"  NoFit: {message}"]


def test_timelines() -> None:
    """In a timeline the longest phase has the longest bar; an open phase is marked."""
    spans = [
        {
            "from": "2026-01-02T03:04:05Z",
            "to": "2026-01-02T03:04:06Z",
            "phase": "Pending",
            "attempt": 1,
            "seconds": 1.0,
        },
        {"from": "2026-01-02T03:04:06Z", "phase": "Running", "attempt": 1, "seconds": 4.0},
    ]
    lines = timeline_text({"spans": spans, "totalSeconds": 5.0}).splitlines()
    assert lines[2].count("█") == 4 * lines[1].count("█")
    assert lines[2].endswith("…")
    assert lines[3] == "total 5.0s"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidError("x"), 2),
        (NotFoundError("x"), 3),
        (DeniedError("x"), 4),
        (DeadlineError("x"), 124),
        (UnavailableError("x"), 1),
        (PermanentError("x"), 1),
    ],
)
def test_exit_codes(error: Any, code: int) -> None:
    """Each kind of error has its exit code."""
    assert exit_code(error) == code


def test_errors_name_every_field() -> None:
    """An error names every field, with pointers in the form that users write."""
    fields = (FieldError("/ranks/0/count", "too many"), FieldError("/labels/a~1b", "not yours"))
    text = describe(InvalidError("2 problems in the launch; each is listed under errors", fields=fields))
    assert text.splitlines() == ["2 problems in the launch:", "  ranks[0].count: too many", "  labels.a/b: not yours"]
    assert named("") == "(the whole)"


def test_a_forecast_start_is_shown() -> None:
    """The forecast has the GPUs ahead, the smallest change in the planner's words, and the start, or that it is
    unknown."""
    told = {"aheadSlots": 8, "helps": ["uncordon node n3"], "estimatedStart": {"latest": "2026-01-01T00:01:40Z"}}
    assert forecast_text(told) == [
        "GPUs ahead: 8",
        "smallest change: uncordon node n3",
        "estimated start: by 2026-01-01T00:01:40Z at the latest",
    ]
    unknown = forecast_text({"helps": [], "estimatedStart": {"earliest": "2026-01-01T00:01:40Z"}})
    assert unknown == ["estimated start: unknown, since something that it waits for has no run limit"]
    assert forecast_text({}) == []


@pytest.mark.parametrize(
    ("start", "line"),
    [
        (
            {"likely": {"earliest": "2026-01-01T14:05:00Z", "latest": "2026-01-02T16:30:00Z"}},
            "likely start: between 2026-01-01 14:05 UTC and 2026-01-02 16:30 UTC",
        ),
        ({"likely": {"earliest": "2026-01-01T14:05:00Z"}}, "likely start: 2026-01-01 14:05 UTC or later"),
        (
            {"likelyUnknown": "fewer than 10 allocations of the pool are known to have ended"},
            "likely start: unknown, fewer than 10 allocations of the pool are known to have ended",
        ),
    ],
)
def test_a_likely_start_is_told_or_why_it_is_unknown(start: dict[str, Any], line: str) -> None:
    """A likely start, or why it is unknown, is shown in 80 columns below the explanation."""
    assert forecast_text({"estimatedStart": start}) == [line]
    why = {"id": "a", "phase": "Pending", "message": "no room", "foreseen": {"estimatedStart": start}}
    assert all(len(part) <= 80 for part in explain_text(why, width=80).splitlines())


def test_the_rank_that_failed_is_named_before_those_that_were_stopped_for_it() -> None:
    """The rank that failed is named before those that were stopped for it, whatever its number; one that failed by
    itself is not called stopped; without a causing rank all are named."""
    stopped = {"phase": "Failed", "exitCode": 143, "reason": "BelowMinimum"}
    failed = {"phase": "Failed", "exitCode": 1, "reason": "RankFailed"}
    view = {"id": "run-a-12345678", "phase": "Terminated", "result": "Failed", "reason": "RankFailed"}
    gang = view | {"status": {"ranks": [stopped, stopped, stopped, failed]}}
    assert labels.summary_of(gang).endswith(
        "(RankFailed): rank 3 exited with 1; 3 other ranks were stopped because of it"
    )
    pair = view | {"status": {"ranks": [stopped, failed]}}
    assert labels.note_of(pair) == "rank 1 exited with 1; 1 other rank was stopped because of it"
    own = {"phase": "Failed", "exitCode": 2, "reason": "BelowMinimum"}
    both = view | {"status": {"ranks": [failed, own, stopped, stopped]}}
    assert labels.note_of(both) == (
        "rank 0 exited with 1; 1 other rank failed as well; 2 other ranks were stopped because of it"
    )
    lost = view | {"reason": "NodeLost", "status": {"ranks": [stopped, stopped]}}
    assert labels.failures_of(lost) == ["rank 0 exited with 143 (SIGTERM)", "rank 1 exited with 143 (SIGTERM)"]


def test_what_was_killed_says_so_and_not_how_each_rank_ended_for_it() -> None:
    """A killed allocation is shown as killed; only ranks that ended in another way than by the kill's signal are
    listed."""
    ranks = [{"phase": "Failed", "exitCode": code, "reason": "Killed"} for code in (143, 137, 143)]
    killed = {"id": "run-a-12345678", "phase": "Terminated", "result": "Canceled", "reason": "Killed"}
    gang = killed | {"status": {"ranks": ranks}}
    assert labels.summary_of(gang) == "run-a-12345678 Canceled (Killed)"
    assert labels.note_of(gang) == "Killed"
    told = killed | {"status": {"ranks": [*ranks, {"phase": "Failed", "exitCode": 3, "reason": "Killed"}]}}
    assert labels.failures_of(told) == ["rank 3 exited with 3"]
    preempted = killed | {"result": "Preempted", "reason": "Preempted"}
    assert labels.failures_of(preempted | {"status": {"ranks": [ranks[0] | {"reason": "Preempted"}]}}) == []


def test_the_rank_that_failed_is_told_in_the_words_that_were_recorded_of_it() -> None:
    """The failed rank is shown with its recorded message, which says more than its code: that the program does not
    exist, or its last output."""
    failed = {"phase": "Failed", "exitCode": 128, "reason": "RankFailed"}
    view = {"id": "run-a-12345678", "phase": "Terminated", "result": "Failed", "reason": "RankFailed"}
    said = "rank 1 on n1: python4 could not be started: no such file in $PATH"
    both = view | {"message": said, "status": {"ranks": [failed, failed]}}
    assert labels.summary_of(both) == f"run-a-12345678 Failed (RankFailed): {said}; rank 0 exited with 128"
    plain = view | {"message": "rank 0 on n0: exit code 137 (SIGKILL)"}
    killed = {"phase": "Failed", "exitCode": 137, "reason": "RankFailed"}
    assert labels.note_of(plain | {"status": {"ranks": [killed]}}) == "rank 0 exited with 137 (SIGKILL)"
    hungry = view | {"reason": "OutOfMemory", "status": {"ranks": [killed | {"reason": "OutOfMemory"}]}}
    assert labels.note_of(hungry) == "rank 0 exited with 137 (out of memory)"
