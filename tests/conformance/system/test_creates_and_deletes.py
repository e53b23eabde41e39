"""Creates and deletes on a real API server: many at once, refusals in the middle, exhausted retries."""

from tests.conformance.system.operator import Json
from tests.conformance.system.system import System, a_body, an_allocation
from tests.support.wait import wait_until

COUNT = 15
PODS = "/api/v1/namespaces/default/resourcequotas"


def uid_of(system: System, id_: str) -> str:
    return str(system.object(id_)["metadata"]["uid"])


def test_fifteen_creates_and_fifteen_immediate_deletes_leave_nothing(system: System) -> None:
    """All are Canceled; none of their objects is left, and no container runs on."""
    ids: list[str] = []
    for _ in range(COUNT):
        id_ = system.launch(a_body("training", 2))
        ids.append(id_)
        system.post(f"/allocations/{id_}/kill")
    for id_ in ids:
        system.ended(id_, "Canceled")
        system.nothing_left(uid_of(system, id_))
    assert all(run.ended_at for id_ in ids for run in system.runs(id_))


def test_fifteen_deletes_in_the_middle_of_their_creates_leave_nothing(system: System) -> None:
    """Allocations that are cancelled once their first pod exists leave nothing."""
    ids = [system.launch(a_body("training", 2)) for _ in range(COUNT)]
    for id_ in ids:
        wait_until(lambda id_=id_: system.pods(id_), f"a pod of {id_}")
        system.post(f"/allocations/{id_}/kill")
    for id_ in ids:
        system.wait_for(id_, "Terminated")
        system.nothing_left(uid_of(system, id_))
    assert all(run.ended_at for id_ in ids for run in system.runs(id_))


def test_a_configmap_created_and_a_pod_refused_leave_nothing(system: System) -> None:
    """A pod refused with 422 ends the allocation with the server's message, and the ConfigMap is deleted with it."""
    manifest = an_allocation("refused-pod")
    pod = manifest["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": name, "emptyDir": {}} for name in ("a", "b")]
    pod["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": "/same"} for name in ("a", "b")]
    system.operator.apply(manifest)
    id_ = system.applied_id("refused-pod")
    view = system.ended(id_, "Invalid")
    assert "must be unique" in view["message"]
    system.nothing_left(uid_of(system, id_))


def test_exhausted_retries_end_in_a_dead_letter_a_stuck_condition_and_an_admin_replay(system: System) -> None:
    """The quota refuses pods until the worker gives up; the replay of the dead letter finishes the launch once the
    quota allows it."""
    system.installation.halt("podworker")
    id_ = system.launch(a_body())
    system.wait_for(id_, "Assigned")  # before there is a quota that the scheduler would heed
    quota: Json = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    system.operator.create(PODS, quota)
    try:
        wait_until(lambda: system.operator.get(f"{PODS}/none").get("status", {}).get("hard"), "the quota counts")
        system.installation.resume(
            "podworker", more={"SLIPWAY_WORKER_PATIENCE_S": "1", "SLIPWAY_WORKER_STUCK_AFTER_S": "2"}
        )

        def letter() -> str:
            items: list[Json] = system.get("/dead")["items"]
            return next((str(each["id"]) for each in items if id_ in str(each["fields"])), "")

        found = wait_until(letter, "the dead letter", timeout_s=90) or ""
        stuck = [each for each in system.view(id_)["status"]["conditions"] if each["type"] == "Stuck"]
        assert [(each["status"], each["reason"]) for each in stuck] == [("True", "QuotaExceeded")]
        assert "slipway dead replay" in system.cli("explain", id_).out
        system.installation.halt("watcher")  # which would send hints of its own
        system.operator.delete(f"{PODS}/none")
        assert system.cli("dead", "replay", found).code == 0
        wait_until(lambda: system.object(id_)["status"].get("release"), "the release")
        system.installation.resume("watcher")
        system.wait_for(id_, "Running")
        assert letter() == ""
    finally:
        if system.operator.find(f"{PODS}/none"):
            system.operator.delete(f"{PODS}/none")
        if not system.installation.processes["watcher"].is_running:
            system.installation.resume("watcher")
        if system.installation.processes["podworker"].is_running:
            system.installation.halt("podworker")
        system.installation.resume("podworker")
