"""What a bad run prints of its evidence: enough to understand it, and not the whole of it."""

from pathlib import Path

from tests.chaos import told


def a_log(folder: Path, name: str, *lines: str) -> Path:
    """A log of these lines."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_it_says_what_happened_to_the_subject_in_the_order_of_time(tmp_path: Path) -> None:
    """Across the logs of all processes, each line with where it stands; only the last of many."""
    many = [f'{{"ts":"2026-01-01T00:00:{second:02}","msg":"run-1"}}' for second in range(10, 59)]
    first = a_log(tmp_path, "api.log", *many)
    second = a_log(tmp_path, "watcher.log", '{"ts":"2026-01-01T00:00:57.5","msg":"run-1"}', '{"msg":"run-2"}')
    found = list(told.lines(tmp_path, [first, second], ["run-1", "run-1", ""]))
    assert sum("lines about it" in line for line in found) == 1
    about = [line for line in found if line.startswith(("api.log: ", "watcher.log: "))]
    assert len(about) == told.LAST
    assert [line.partition(":")[0] for line in about[-3:]] == ["api.log", "watcher.log", "api.log"]


def test_it_shows_the_errors_of_each_log_or_else_its_end(tmp_path: Path) -> None:
    """A traceback to its end; of a log without errors the last lines; a log that is gone is no error."""
    quiet = a_log(tmp_path, "api.log", "one", "two", "three")
    failed = a_log(tmp_path, "watcher.log", '{"level":"error","msg":"refused"}', "fine")
    crashed = a_log(tmp_path, "scheduler.log", "fine", "Traceback (most recent call last):", "  File", "OSError: no")
    found = list(told.lines(tmp_path, [quiet, failed, crashed, tmp_path / "gone.log"], []))
    assert {"two", "three", '{"level":"error","msg":"refused"}', "OSError: no"} <= set(found)
    assert not {"one", "fine"} & set(found)


def test_long_lines_are_cut(tmp_path: Path) -> None:
    """Objects are logged whole; the file has the rest."""
    log = a_log(tmp_path, "api.log", "x" * 100_000)
    assert max(map(len, told.lines(tmp_path, [log], []))) <= max(told.CHARS_MAX, len(str(tmp_path)) + 100)
