"""A pod's life is a function of its script and of time: computing it needs no clock and no API server."""

from typing import Any

import pytest

from tests.conformance.kubelets.builders import a_pod
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.script import Script
from tests.conformance.kubelets.states import NEVER, HasEnded, IsRunning, IsWaiting, NoteKind, Verdict
from tests.conformance.kubelets.status import phase_of

BEGIN = 1_700_000_000.0


def lived(script: Script, until: float, **spec: Any) -> Life:
    """The life of a pod after so many seconds, advanced at each of its due times as the pod manager would."""
    life = Life(a_pod(**spec), script, BEGIN)
    go(life, until)
    return life


def go(life: Life, until: float) -> None:
    """Advance the life to that time."""
    while life.due_at <= BEGIN + until:
        life.advance(max(life.due_at, BEGIN))
    life.advance(BEGIN + until)


def what(life: Life) -> list[str]:
    """The events so far, in words."""
    return [f"{note.what} {note.container} {note.at - BEGIN:g}" for note in life.notes]


def test_a_pod_waits_for_its_sandbox_runs_and_ends_with_its_code() -> None:
    """Pending until the containers start, Running while they do, then the phase of the exit code."""
    script = Script(starts_s=2, runs_s=3, exit=7)
    assert phase_of(lived(script, 1.9)) == "Pending"
    assert phase_of(lived(script, 2)) == "Running"
    life = lived(script, 5)
    assert phase_of(life) == "Failed"
    assert life.mains[0].end == HasEnded(7, "Error", "", BEGIN + 2, BEGIN + 5)
    assert phase_of(lived(Script(runs_s=1), 9)) == "Succeeded"


def test_a_pod_without_an_end_runs_for_ever() -> None:
    """A pod that runs without an end has no due time."""
    life = lived(Script(), 1000)
    assert phase_of(life) == "Running"
    assert life.due_at == NEVER


def test_a_stopped_container_ends_when_it_obeys() -> None:
    """SIGTERM ends it with 143, and the pod has failed."""
    life = lived(Script(starts_s=0, term_s=2), 10)
    life.stop(BEGIN + 10, 30)
    go(life, 11.9)
    assert phase_of(life) == "Running"
    go(life, 12)
    assert (phase_of(life), life.mains[0].end) == ("Failed", HasEnded(143, "Error", "", BEGIN, BEGIN + 12))


def test_a_container_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    """SIGKILL follows when the grace is over, and a shorter grace shortens it."""
    life = lived(Script(ignores_term=True), 10)
    life.stop(BEGIN + 10, 30)
    life.stop(BEGIN + 11, 60)
    go(life, 39)
    assert phase_of(life) == "Running"
    life.stop(BEGIN + 39, 0)
    go(life, 39)
    assert life.mains[0].end is not None
    assert life.mains[0].end.code == 137


def test_a_program_that_ends_by_itself_while_it_is_stopped_keeps_its_code() -> None:
    """A stopped program ends by itself, by SIGTERM or by SIGKILL: the first of these decides its code."""
    life = lived(Script(starts_s=0, runs_s=12, ignores_term=True), 10)
    life.stop(BEGIN + 10, 30)
    go(life, 12)
    assert phase_of(life) == "Succeeded"


def test_a_pod_that_is_stopped_before_it_starts_reports_what_could_not_be_located() -> None:
    """A kubelet cannot tell a container that never ran from one that it lost: both have code 137 and no times."""
    life = lived(Script(starts_s=60), 1)
    life.stop(BEGIN + 1, 30)
    go(life, 1)
    assert phase_of(life) == "Failed"
    end = life.mains[0].end
    assert end is not None
    assert (end.code, end.reason, end.started_at) == (137, "ContainerStatusUnknown", None)
    assert NoteKind.STARTED not in [note.what for note in life.notes]


def test_init_containers_run_one_after_the_other() -> None:
    """The main container starts when the last init container has succeeded."""
    inits = [{"name": "one"}, {"name": "two"}]
    life = lived(Script(starts_s=0, init_runs_s=2), 3, initContainers=inits)
    assert phase_of(life) == "Pending"
    go(life, 4)
    assert [word for word in what(life) if word.startswith("started")] == [
        "started one 0",
        "started two 2",
        "started main 4",
    ]
    assert phase_of(life) == "Running"


def test_a_failed_init_container_fails_the_pod() -> None:
    """With restartPolicy Never no other container starts, and the main container still waits."""
    life = lived(Script(starts_s=0, init_exit=2), 1, initContainers=[{"name": "one"}, {"name": "two"}])
    assert phase_of(life) == "Failed"
    assert [type(box.state) for box in life.boxes] == [HasEnded, IsWaiting, IsWaiting]


def test_a_sidecar_runs_beside_and_ends_last() -> None:
    """A sidecar neither keeps the pod from ending nor outlives it."""
    sidecar = [{"name": "proxy", "restartPolicy": "Always"}]
    life = lived(Script(starts_s=0, runs_s=5, term_s=1), 5.5, initContainers=sidecar)
    assert phase_of(life) == "Running"
    go(life, 6)
    assert phase_of(life) == "Succeeded"


def test_a_crashing_container_is_restarted_later_and_later() -> None:
    """A crashing container restarts at once, then after the backoff, then after twice the backoff."""
    script = Script(starts_s=0, runs_s=1, exit=1, backoff_s=10)
    life = lived(script, 60, restartPolicy="Always")
    starts = [word for word in what(life) if word.startswith("started")]
    assert starts == ["started main 0", "started main 1", "started main 12", "started main 33"]
    box = life.mains[0]
    assert isinstance(box.state, IsWaiting)
    assert box.state.reason == "CrashLoopBackOff"
    assert phase_of(life) == "Running"


@pytest.mark.parametrize(("policy", "code", "restarts"), [("OnFailure", 0, 0), ("OnFailure", 1, 1), ("Never", 1, 0)])
def test_the_restart_policy_decides(policy: str, code: int, restarts: int) -> None:
    """OnFailure restarts a container that failed; Never restarts none."""
    life = lived(Script(starts_s=0, runs_s=1, exits=(code, 0)), 9, restartPolicy=policy)
    assert life.mains[0].restarts == restarts
    assert life.is_ended


def test_a_failing_pull_is_reported_and_retried() -> None:
    """A pod shows ErrImagePull, then ImagePullBackOff, until the pull works."""
    script = Script(starts_s=0, pull_fails=1, backoff_s=4)
    state = lived(script, 0.5).mains[0].state
    assert isinstance(state, IsWaiting)
    assert state.reason == "ErrImagePull"
    state = lived(script, 2).mains[0].state
    assert isinstance(state, IsWaiting)
    assert state.reason == "ImagePullBackOff"
    assert lived(script, 4).mains[0].state == IsRunning(BEGIN + 4)
    assert phase_of(lived(Script(pull_fails=-1), 4000)) == "Pending"


def test_readiness_comes_later_or_never() -> None:
    """A container is ready as long after its start as its script says."""
    assert not lived(Script(starts_s=0, not_ready_s=3), 2).mains[0].is_ready
    assert lived(Script(starts_s=0, not_ready_s=3), 3).mains[0].is_ready
    assert not lived(Script(starts_s=0, not_ready_s=-1), 999).mains[0].is_ready


def test_a_volume_that_can_not_be_mounted_keeps_the_pod_creating() -> None:
    """The mount is retried until it works, then the pod starts."""
    life = lived(Script(starts_s=0, mount_fails=2), 1)
    assert phase_of(life) == "Pending"
    go(life, 2)
    assert phase_of(life) == "Running"


def test_the_active_deadline_ends_the_pod() -> None:
    """The pod fails with DeadlineExceeded."""
    life = lived(Script(starts_s=0, term_s=0), 10, activeDeadlineSeconds=10)
    assert life.verdict is not None
    assert (phase_of(life), life.verdict.reason) == ("Failed", "DeadlineExceeded")


def test_an_evicted_pod_fails_though_its_program_succeeded() -> None:
    """The eviction decides the phase, not the exit code."""
    life = lived(Script(starts_s=0, term_exit=0), 1)
    life.stop(BEGIN + 1, 5, verdict=Verdict(reason="Evicted", message="low on memory"))
    go(life, 2)
    assert phase_of(life) == "Failed"


def test_a_machine_that_dies_takes_its_containers_along() -> None:
    """The containers of a dead machine end with 255, as a runtime reports after a reboot."""
    life = lived(Script(), 1)
    life.lose(BEGIN + 1)
    go(life, 2)
    assert life.mains[0].end is not None
    assert (phase_of(life), life.mains[0].end.code, life.mains[0].end.reason) == ("Failed", 255, "Unknown")


def test_what_an_earlier_process_started_is_not_started_again() -> None:
    """A container that a status reports as running is adopted with its start time."""
    running = {"name": "main", "state": {"running": {"startedAt": "2023-11-14T22:13:19Z"}}}
    life = Life(a_pod(status={"containerStatuses": [running]}), Script(runs_s=5), BEGIN)
    go(life, 3)
    assert life.is_adopted
    assert life.notes == []
    go(life, 4)
    assert phase_of(life) == "Succeeded"


def test_nothing_changes_after_the_end() -> None:
    """A pod that has ended ignores a stop."""
    life = lived(Script(runs_s=1), 9)
    before = [box.state for box in life.boxes]
    assert not life.stop(BEGIN + 10, 5)
    go(life, 20)
    assert [box.state for box in life.boxes] == before
