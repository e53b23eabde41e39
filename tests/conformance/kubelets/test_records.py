"""The records contain what really ran: each start once and each end once."""

from pathlib import Path

import msgspec

from tests.conformance.kubelets.builders import a_pod
from tests.conformance.kubelets.objects import Pod
from tests.conformance.kubelets.records import Records, Run, doubles


def ranked(uid: str, *, rank: int = 0, attempt: int = 1) -> Pod:
    """A pod of an allocation."""
    labels = {"slipway.dev/allocation": "a-1", "slipway.dev/attempt": str(attempt), "slipway.dev/rank": str(rank)}
    return a_pod(metadata={"uid": uid, "labels": {**labels, "team": "blue"}})


def test_a_run_has_its_start_its_end_and_slipway_s_labels() -> None:
    """A run is found by pod, uid and allocation."""
    records = Records()
    records.start(ranked("u-1", rank=3), "main", 0, 10.0)
    assert [run.uid for run in records.live()] == ["u-1"]
    records.end("u-1", "main", 7, 12.0)
    [run] = records.of("default/p")
    assert (run.allocation, run.attempt, run.rank, run.code, run.ended_at) == ("a-1", 1, 3, 7, 12.0)
    assert "team" not in run.labels
    assert records.of("u-1") == records.of_allocation("a-1") == [run]
    assert records.live() == []


def test_a_rank_that_ran_twice_in_one_attempt_is_a_double() -> None:
    """A second run of a rank in another pod is a double; a restart in place, another rank and another attempt are
    not."""
    records = Records()
    records.start(ranked("u-1"), "main", 0, 1.0)
    records.start(ranked("u-1"), "main", 1, 2.0)
    records.start(ranked("u-2", rank=1), "main", 0, 3.0)
    records.start(ranked("u-3", attempt=2), "main", 0, 4.0)
    assert doubles(records.runs) == []
    records.start(ranked("u-4"), "main", 0, 5.0)
    assert [(first.uid, again.uid) for first, again in doubles(records.runs)] == [("u-1", "u-4")]


def test_adopting_a_running_container_is_no_start() -> None:
    """An adopted container is recorded, and not counted as a start."""
    records = Records()
    records.adopt(ranked("u-1"), "main", 0, 1.0)
    assert records.count.started == 0
    assert records.runs[0].is_adopted


def test_each_start_and_each_end_is_a_line_in_the_file(tmp_path: Path) -> None:
    """Each start and each end is a line in the file, so that another process can read it."""
    records = Records(tmp_path / "runs")
    records.start(ranked("u-1"), "main", 0, 1.0)
    records.end("u-1", "main", 0, 2.0)
    records.end("u-1", "main", 0, 3.0)
    records.close()
    lines = [msgspec.json.decode(line, type=Run) for line in (tmp_path / "runs").read_bytes().splitlines()]
    assert [line.ended_at for line in lines] == [None, 2.0]
