"""The log of a container follows from its script, and queries are answered as by a kubelet."""

from typing import Any

import pytest

from tests.conformance.kubelets.builders import a_pod
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.logs import LogError, Query, lines_of, query_of, rendered, run_of
from tests.conformance.kubelets.script import Script

BEGIN = 1_767_225_600.0


def logged(query: Query, until: float = 10.0, **more: Any) -> str:
    """The log after so many seconds of a container that writes each second."""
    life = Life(a_pod(), Script(starts_s=0, logs=("hello",), log_every_s=1, **more), BEGIN)
    life.advance(BEGIN)
    life.advance(BEGIN + until)
    box, run = run_of(life, "main", previous=query.previous)
    return rendered(lines_of(box, run, [(BEGIN + 2.5, "added")], BEGIN + until), query).decode()


def test_lines_come_with_time() -> None:
    """The log contains the lines of the start, the lines that a test adds, and one line each second."""
    assert logged(Query(), 3) == "hello\nline 1\nline 2\nadded\nline 3\n"


def test_nothing_is_written_after_the_end() -> None:
    """A container that has ended writes nothing more."""
    life = Life(a_pod(), Script(starts_s=0, runs_s=2, log_every_s=1), BEGIN)
    life.advance(BEGIN)
    life.advance(BEGIN + 2)
    box, run = run_of(life, "main", previous=False)
    assert [text for _, text in lines_of(box, run, [], BEGIN + 9)] == ["line 1", "line 2"]


def test_query_parameters_limit_the_log() -> None:
    """Tail, time and bytes limit the answer, each as PodLogOptions says."""
    assert logged(Query(tail=2), 3) == "added\nline 3\n"
    assert logged(Query(tail=0), 3) == ""
    assert logged(Query(since=BEGIN + 2.2), 3) == "added\nline 3\n"
    assert logged(Query(bytes_max=4), 3) == "hell"
    assert logged(Query(tail=1, timestamps=True), 1) == "2026-01-01T00:00:01.000000000Z line 1\n"


def test_parameters_are_read_as_the_api_server_sends_them() -> None:
    """Parameters are read, and one that is not a number is refused."""
    given = {"follow": "true", "tailLines": "5", "sinceSeconds": "10", "limitBytes": "7"}
    assert query_of(given, 100.0) == Query(follow=True, tail=5, since=90.0, bytes_max=7)
    with pytest.raises(LogError):
        query_of({"tailLines": "many"}, 0.0)


@pytest.mark.parametrize(
    ("script", "container", "previous", "words"),
    [
        (Script(starts_s=60), "main", False, "is waiting to start: ContainerCreating"),
        (Script(starts_s=0, pull_fails=-1), "main", False, "is waiting to start: image can't be pulled"),
        (Script(starts_s=0), "main", True, 'previous terminated container "main" in pod "p" not found'),
        (Script(starts_s=0), "other", False, 'container "other" not found in pod "p"'),
    ],
)
def test_a_missing_log_gives_the_error_message_of_a_kubelet(
    script: Script, container: str, previous: bool, words: str
) -> None:
    """A container without a log gets a kubelet's error, so kubectl shows the same message."""
    life = Life(a_pod(), script, BEGIN)
    life.advance(BEGIN)
    with pytest.raises(LogError, match=words):
        run_of(life, container, previous=previous)
