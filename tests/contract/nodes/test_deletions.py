"""Deletions of pods: the grace, the last status, what a finalizer keeps."""

from typing import Any

import pytest

from slipway.local.apiserver.objects import parse_time
from tests.contract.nodes.conftest import FINALIZER, Pods, init_of, main_of, terminated

HEARS = "trap 'echo heard; exit 0' TERM; echo ready; while true; do sleep 0.1; done"
DEAF = "trap '' TERM; echo ready; while true; do sleep 0.1; done"


async def start(pods: Pods, script: str, **spec: Any) -> str:
    """Start a pod with a finalizer that runs, and wait until it has set its traps."""
    name = await pods.start(["sh", "-c", script], meta={"finalizers": [FINALIZER]}, **spec)
    await pods.logged(name, "ready\n")
    return name


@pytest.mark.parametrize(
    ("script", "code", "phase", "reason"),
    [(HEARS, 0, "Succeeded", "Completed"), (DEAF, 137, "Failed", "Error")],
    ids=["heard", "killed"],
)
async def test_the_last_status_of_a_pod_that_is_deleted(
    pods: Pods, script: str, code: int, phase: str, reason: str
) -> None:
    """The finalizer keeps the status: how the container ended, the matching phase, and no grace left."""
    name = await start(pods, script)
    asked = (await pods.delete(name, gracePeriodSeconds=2))["metadata"]
    assert asked["deletionGracePeriodSeconds"] == 2
    status = await pods.ended(name)
    assert (status["phase"], terminated(status)["exitCode"], terminated(status)["reason"]) == (phase, code, reason)
    last = await pods.confirmed(name)
    assert last["status"]["phase"] == phase
    assert main_of(last["status"])["state"]["terminated"]["exitCode"] == code
    shortened, began = (parse_time(meta["deletionTimestamp"]) or 0 for meta in (last["metadata"], asked))
    assert shortened >= began - 2, "not before the deletion was asked for"
    await pods.release(name)
    await pods.gone(name)


async def test_a_pod_that_never_started_is_deleted(pods: Pods) -> None:
    """The container is shown as waiting, and the pod has failed."""
    name = await pods.start(
        initContainers=[pods.container("first", ["sleep", "60"])],
        meta={"finalizers": [FINALIZER]},
        terminationGracePeriodSeconds=1,
    )
    await pods.until(name, lambda status: "running" in init_of(status).get("state", {}), "its init runs")
    await pods.delete(name)
    status = (await pods.confirmed(name))["status"]
    assert status["phase"] == "Failed"
    assert list(main_of(status)["state"]) == ["waiting"]
    assert init_of(status)["state"]["terminated"]["exitCode"] in (137, 143)
    await pods.release(name)
    await pods.gone(name)


async def test_a_pod_that_waits_for_its_configuration_is_deleted(pods: Pods) -> None:
    """A pod that waits for its configuration is deleted at once, because nothing runs."""
    wants = {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "missing", "key": "word"}}}
    name = await pods.start(container={"env": [wants]}, meta={"finalizers": [FINALIZER]})
    await pods.waits(name, "CreateContainerConfigError")
    await pods.delete(name)
    status = (await pods.confirmed(name))["status"]
    assert status["phase"] == "Failed"
    await pods.release(name)
    await pods.gone(name)


async def test_an_ended_pod_with_a_finalizer_keeps_its_status(pods: Pods) -> None:
    """The deletion of an ended pod has no grace, because there is nothing to end."""
    name = await pods.run(["sh", "-c", "exit 3"], meta={"finalizers": [FINALIZER]})
    await pods.delete(name)
    pod = await pods.confirmed(name)
    assert (pod["status"]["phase"], terminated(pod["status"])["exitCode"]) == ("Failed", 3)
    await pods.release(name)
    await pods.gone(name)


async def test_the_log_of_an_ended_pod_outlives_the_confirmation(pods: Pods) -> None:
    """A finalizer keeps the object, and the node keeps the log, which can still be read."""
    name = await pods.run(["sh", "-c", "echo said"], meta={"finalizers": [FINALIZER]})
    await pods.delete(name)
    await pods.confirmed(name)
    assert await pods.log(name) == (200, "said\n")
    assert await pods.follow(name) == "said\n"
    await pods.release(name)
    await pods.gone(name)
