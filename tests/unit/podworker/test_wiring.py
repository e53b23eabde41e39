"""The parts together: hints from the stream reach the cluster, and are acknowledged, returned or dead letters in the
end."""

import asyncio
from pathlib import Path

import pytest

from slipway.errors import QuotaExceededError
from slipway.kube.errors import Verb
from slipway.model.ids import AllocationId
from slipway.podworker.main import NAME, build, make_consumer
from slipway.podworker.settings import Settings
from slipway.runtime import service
from slipway.runtime.settings import load
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import WorkHint
from tests.support.podworker_harness import SETTINGS, PodWorkerHarness, hint_for, run_with_harness
from tests.support.small_cluster import look


async def work_off(harness: PodWorkerHarness, streams: MemoryStreams, *hints: WorkHint) -> int:
    """Send the hints and handle them; return how many were acknowledged."""
    await streams.hints.send(hints)
    return await make_consumer(streams, harness.worker, SETTINGS, harness.clock).drain_once()


def test_a_hint_becomes_a_launch_and_is_acknowledged() -> None:
    """A hint becomes a launch and is acknowledged, and nothing stays pending (I16)."""

    async def story(harness: PodWorkerHarness) -> None:
        streams = MemoryStreams(MemoryServer(harness.clock))
        allocation = await harness.assign("n0", "n1")
        assert await work_off(harness, streams, hint_for(allocation), hint_for(allocation)) >= 1
        assert (await look(harness.kube)).status.release is not None
        assert await streams.work_queue("other").backlog() == 0

    run_with_harness(story)


def test_a_hint_that_no_id_can_be_is_a_dead_letter() -> None:
    """I17: a hint with an invalid id is a dead letter, and is not delivered again."""

    async def story(harness: PodWorkerHarness) -> None:
        streams = MemoryStreams(MemoryServer(harness.clock))
        await work_off(harness, streams, WorkHint(namespace="default", allocation=AllocationId("../../secrets")))
        [letter] = await streams.dead.page()
        assert "AllocationID" in letter.cause

    run_with_harness(story)


def test_a_launch_that_waits_keeps_its_hint_and_delays_nobody() -> None:
    """A launch that waits returns its hint, which does not count as a delivery, and another allocation is launched
    first."""

    async def story(harness: PodWorkerHarness) -> None:
        streams = MemoryStreams(MemoryServer(harness.clock))
        blocked = await harness.assign("n0", "n1", name="blocked")
        free = await harness.assign(name="free")
        # Only the gang of two has a Service.
        harness.calls.fail(QuotaExceededError("exceeded quota"), (Verb.CREATE, "services"))
        await streams.hints.send([hint_for(blocked), hint_for(free)])
        running = asyncio.ensure_future(make_consumer(streams, harness.worker, SETTINGS, harness.clock).drain_once())
        await harness.clock.sleep(1)
        assert (await look(harness.kube, "free")).status.release is not None
        assert (await look(harness.kube, "blocked")).status.release is None
        running.cancel()

    run_with_harness(story)


def test_settings_come_from_the_environment() -> None:
    """Settings come from the environment: the ranks get the URL of the API."""
    settings = load(Settings, {"SLIPWAY_WORKER_CALLS": "8", "SLIPWAY_NAMESPACE": "sys"})
    assert settings.worker_calls == 8
    assert settings.task_api_url == "http://slipway-api.sys.svc:8080"
    assert load(Settings, {"SLIPWAY_API_URL": "http://127.0.0.1:1"}).task_api_url == "http://127.0.0.1:1"


def test_one_pass_without_an_api_server_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pass with `--once` without an API server exits with 1."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"x",'
        '"user":"x"}}],"clusters":[{"name":"x","cluster":{"server":"http://127.0.0.1:1"}}],'
        '"users":[{"name":"x","user":{}}]}'
    )
    env = {"KUBECONFIG": str(kubeconfig)}
    assert service.run(NAME, Settings, build, argv=["--once"], env=env) == service.EXIT_FAILED
    capsys.readouterr()
