"""A pod on a local node starts, ends and is reported as on a real node."""

from pathlib import Path
from typing import Any

import pytest

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import objects_of
from slipway.kube.resources import PODS
from slipway.local.node.registration import report
from slipway.runtime.clock import SystemClock
from tests.support.clock import wait_until
from tests.support.local_node import NAMESPACE, NodeWorld, is_alive, node_world


def condition(status: RawObject, type_: str) -> RawObject:
    return next(dict(item) for item in objects_of(status["conditions"]) if item["type"] == type_)


async def test_a_command_runs_and_its_success_is_reported(world: NodeWorld):
    """Exit code 0 is Succeeded with reason Completed, both times and the pod's address."""
    pod = await world.run("a", ["echo", "hello"])
    assert pod.phase == "Succeeded"
    ended = world.state("a")["terminated"]
    assert ended["exitCode"] == 0
    assert ended["reason"] == "Completed"
    assert ended["startedAt"] <= ended["finishedAt"]
    assert pod.status["podIP"].startswith("127.")
    assert pod.status["hostIP"] == "127.0.0.1"
    assert pod.status["qosClass"] == "BestEffort"
    assert condition(pod.status, "Ready")["reason"] == "PodCompleted"
    assert condition(pod.status, "PodScheduled")["status"] == "True"
    assert await world.log("a") == "hello\n"


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $PPID; exit 5", 137), ("kill -TERM 0", 143)])
async def test_a_failure_keeps_its_exit_code(world: NodeWorld, script: str, code: int):
    """The code is the program's own, or 128 + signal after a signal."""
    pod = await world.run("a", ["sh", "-c", script])
    assert pod.phase == "Failed"
    assert world.state("a")["terminated"]["exitCode"] == code, world.state("a")
    assert world.state("a")["terminated"]["reason"] == "Error"


async def test_a_running_pod_is_ready(world: NodeWorld):
    """A running pod is started and ready, and its process is known."""
    await world.start("a", ["sleep", "60"])
    pod = await world.running("a")
    status = objects_of(pod.status["containerStatuses"])[0]
    assert status["ready"]
    assert status["started"]
    assert "startedAt" in status["state"]["running"]
    assert condition(pod.status, "Ready")["status"] == "True"
    assert condition(pod.status, "Initialized")["status"] == "True"


async def test_an_image_alone_can_not_run(world: NodeWorld):
    """A local node has no images, so the pod waits, and its status shows why."""
    await world.start("a", None)
    await wait_until(lambda: "containerStatuses" in world.pod("a").status, "a status")
    waiting = world.state("a")["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    assert waiting["message"] == "a local node runs commands; this pod names only an image"
    assert world.pod("a").phase == "Pending"
    await world.delete("a")
    await world.gone("a")


async def test_a_missing_program_is_a_start_error(world: NodeWorld):
    """The status is that of a container runtime: exit 128, StartError, the name in the message."""
    pod = await world.run("a", ["no-such-program"])
    ended = world.state("a")["terminated"]
    assert pod.phase == "Failed"
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "no-such-program" in ended["message"]
    assert ended.get("startedAt") is None


@pytest.mark.parametrize("command", [["/etc"], ["/etc/hostname"], ["a\0b"], ["sh", "-c", "a\0b"]])
async def test_what_can_not_be_started_fails_alone(world: NodeWorld, command: list[str]):
    """A folder, a file without permission, and text that is no argument fail that pod, not the node."""
    assert (await world.run("bad", command)).phase == "Failed"
    assert (await world.run("good", ["true"])).phase == "Succeeded"


async def test_a_deletion_ends_the_processes_first(world: NodeWorld):
    """The process gets SIGTERM, its exit is in the status, then the object is deleted."""
    await world.start("a", ["sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"])
    await world.logged("a", "up")
    pod = await world.running("a")
    patch = {"metadata": {"finalizers": ["slipway.dev/tracking"]}}
    await world.kube.patch(PODS, "a", patch, namespace=NAMESPACE)
    await world.delete("a")
    pod = await world.ended("a")
    assert world.state("a")["terminated"]["exitCode"] == 7
    assert pod.phase == "Failed"
    await wait_until(lambda: world.pod("a").metadata.deletion_grace_period_seconds == 0, "the confirmation")
    assert "bye" in await world.log("a")
    await world.kube.patch(PODS, "a", {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
    await world.gone("a")


async def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(world: NodeWorld):
    """The grace of the delete is used, not the pod's own."""
    await world.start("a", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"])
    await world.logged("a", "up")
    patch = {"metadata": {"finalizers": ["slipway.dev/tracking"]}}
    await world.kube.patch(PODS, "a", patch, namespace=NAMESPACE)
    await world.delete("a", grace_s=1)
    await world.ended("a")
    assert world.state("a")["terminated"]["exitCode"] == 137
    await world.kube.patch(PODS, "a", {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
    await world.gone("a")


async def test_a_second_delete_shortens_the_grace(world: NodeWorld):
    """A later delete may shorten the grace."""
    await world.start("a", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"])
    await world.logged("a", "up")
    await world.delete("a", grace_s=600)
    await world.delete("a", grace_s=1)
    await world.gone("a")


async def test_a_pod_whose_object_vanished_is_killed(world: NodeWorld):
    """A forced delete removes the object at once; the node then kills the process."""
    await world.start("a", ["sh", "-c", "echo pid $$$$; exec sleep 60"])
    pid = int((await world.logged("a", "pid")).split()[1])
    await world.delete("a", grace_s=0)
    await world.gone("a")
    await wait_until(lambda: not is_alive(pid), "the end of the process")


async def test_nodes_of_an_earlier_run_are_retired(tmp_path: Path):
    """With fewer nodes than before the objects of the others are deleted; foreign nodes stay."""
    async with node_world(tmp_path) as before:
        core = before.core
        core.create("nodes", "", {"metadata": {"name": "foreign"}})
        async with node_world(tmp_path / "again", core=core, nodes=1):
            await wait_until(lambda: len(core.list("nodes").items) == 2, "node-1 retired")
            names = {str(node["metadata"]["name"]) for node in core.list("nodes").items}
    assert names == {"node-0", "foreign"}


async def test_the_folder_of_a_pod_goes_with_its_object(world: NodeWorld):
    """Nothing of the pod is left on disk."""
    pod = await world.run("a", ["true"])
    assert (world.folder / "pods" / pod.metadata.uid).exists()
    await world.delete("a")
    await wait_until(lambda: not (world.folder / "pods" / pod.metadata.uid).exists(), "an empty disk")


async def test_children_end_with_their_container(world: NodeWorld):
    """Background processes of a program end with it, as in a container, also those in another process group."""
    script = (
        "from subprocess import Popen as P; [print(P(['sleep', '60'], start_new_session=own).pid) for own in (0, 1)]"
    )
    await world.run("a", ["python", "-c", script])
    pids = [int(line) for line in (await world.log("a")).splitlines()]
    assert len(pids) == 2
    await wait_until(lambda: not any(map(is_alive, pids)), "the end of the children")


async def test_a_deadline_of_the_pod_is_kept(world: NodeWorld):
    """activeDeadlineSeconds ends the pod as a kubelet does."""
    pod = await world.run("a", ["sleep", "60"], spec={"activeDeadlineSeconds": 1})
    assert pod.phase == "Failed"
    assert pod.status["reason"] == "DeadlineExceeded"
    assert world.state("a")["terminated"]["exitCode"] == 143


async def test_a_pod_that_does_not_fit_is_rejected(world: NodeWorld):
    """A node never admits more than it has; nothing of the pod runs."""
    gpus: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    await world.start("first", ["sleep", "60"], **gpus)
    await world.running("first")
    pod = await world.run("second", ["true"], **gpus)
    assert pod.status["reason"] == "OutOfnvidia.com/gpu"
    assert "requested: 2, used: 2, capacity: 2" in pod.status["message"]
    assert "containerStatuses" not in pod.status
    await world.delete("first")
    assert (await world.run("third", ["true"], **gpus)).phase == "Succeeded"


async def test_a_pod_that_another_client_marks_failed_is_stopped(world: NodeWorld):
    """When a garbage collector marks a pod as failed, its processes end."""
    await world.start("a", ["sh", "-c", "echo pid $$$$; exec sleep 60"])
    pid = int((await world.logged("a", "pid")).split()[1])
    status = {**world.pod("a").status, "phase": "Failed", "reason": "Evicted"}
    obj = {**world.core.get("pods", NAMESPACE, "a"), "status": status}
    world.core.update_status("pods", NAMESPACE, "a", obj)
    await wait_until(lambda: not is_alive(pid), "the end of the process")


async def test_a_node_corrects_the_pod_status_that_others_wrote(world: NodeWorld):
    """A pod that was marked not ready while its node was silent is marked ready again as soon as the node reads
    that."""
    await world.start("a", ["sleep", "60"])
    await world.running("a")
    status = world.core.get("pods", NAMESPACE, "a")["status"]
    conditions = [{**item, "status": "False"} if item["type"] == "Ready" else item for item in status["conditions"]]
    world.core.patch("pods", NAMESPACE, "a", {"status": {"conditions": conditions}}, subresource="status")
    await wait_until(lambda: condition(world.pod("a").status, "Ready")["status"] == "True", "the pod is ready again")


async def test_a_node_that_was_silent_says_that_it_is_ready(world: NodeWorld):
    """The node's own report replaces what the cluster has written; a node that is ready writes nothing."""
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    world.core.patch("nodes", "", "node-0", {"status": {"conditions": [unknown]}}, subresource="status")
    await report(world.kube, "node-0", SystemClock())
    found = world.core.get("nodes", "", "node-0")
    assert condition(found["status"], "Ready")["reason"] == "KubeletReady"
    version = world.core.version
    await report(world.kube, "node-0", SystemClock())
    assert world.core.version == version
