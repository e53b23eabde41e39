"""The part of its evidence that a bad run prints: enough to understand it, and not all of it."""

from pathlib import Path

from slipway.ops.audit.evidence import AuditEvidence
from tests.chaos import bad_run_report
from tests.chaos.run import keep
from tests.chaos.test_table import outcome


def a_log(folder: Path, name: str, *lines: str) -> Path:
    """A log of these lines."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_it_says_what_happened_to_the_subject_in_the_order_of_time(tmp_path: Path) -> None:
    """Lines about the subject are from the logs of all processes, each with its position; only the last of many."""
    many = [f'{{"ts":"2026-01-01T00:00:{second:02}","msg":"run-1"}}' for second in range(10, 59)]
    first = a_log(tmp_path, "api.log", *many)
    second = a_log(tmp_path, "watcher.log", '{"ts":"2026-01-01T00:00:57.5","msg":"run-1"}', '{"msg":"run-2"}')
    found = list(bad_run_report.lines(tmp_path, [first, second], ["run-1", "run-1", ""]))
    assert sum("lines about it" in line for line in found) == 1
    about = [line for line in found if line.startswith(("api.log: ", "watcher.log: "))]
    assert len(about) == bad_run_report.LAST
    assert [line.partition(":")[0] for line in about[-3:]] == ["api.log", "watcher.log", "api.log"]


def test_it_shows_the_errors_of_each_log_or_else_its_end(tmp_path: Path) -> None:
    """Tracebacks are shown to their end; of a log without errors the last lines; a missing log is no error."""
    quiet = a_log(tmp_path, "api.log", "one", "two", "three")
    failed = a_log(tmp_path, "watcher.log", '{"level":"error","msg":"refused"}', "fine")
    crashed = a_log(tmp_path, "scheduler.log", "fine", "Traceback (most recent call last):", "  File", "OSError: no")
    found = list(bad_run_report.lines(tmp_path, [quiet, failed, crashed, tmp_path / "gone.log"], []))
    assert {"two", "three", '{"level":"error","msg":"refused"}', "OSError: no"} <= set(found)
    assert not {"one", "fine"} & set(found)


def test_long_lines_are_cut(tmp_path: Path) -> None:
    """Objects are logged whole, so lines are cut; the file has the rest."""
    log = a_log(tmp_path, "api.log", "x" * 100_000)
    assert max(map(len, bad_run_report.lines(tmp_path, [log], []))) <= max(
        bad_run_report.CHARS_MAX, len(str(tmp_path)) + 100
    )


def test_stored_results_do_not_overwrite_the_record_of_the_machine(tmp_path: Path) -> None:
    """To find a cause, both are needed: what really ran, and what the audit read of it."""
    record = tmp_path / "containers.jsonl"
    record.write_text("what ran\n", "utf-8")
    keep(AuditEvidence(versions=[]), outcome(violations=["I27 run-a: a line is missing"]), tmp_path)
    assert record.read_text("utf-8") == "what ran\n"
    assert "a line is missing" in (tmp_path / "outcome.json").read_text("utf-8")
