"""The tokens in a pod's volumes are renewed in place before they end, and stay unchanged when that fails."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.local.apiserver.accounts import ServiceAccountTokens
from slipway.local.apiserver.core import ClusterCore
from slipway.local.node.disk import PodDisk
from slipway.local.node.podview import PODS, NodePod
from slipway.local.node.tokens import AGAIN_S, keep_renewed
from slipway.runtime.clock import SeededRandom
from tests.support.clock import FakeClock
from tests.support.kube_core import CoreKube

TOKEN: dict[str, Any] = {"audience": "slipway", "expirationSeconds": 3600, "path": "token"}


class SteppedClock(FakeClock):
    """Records the length of each sleep, and lets the test end it."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.go_on = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.go_on.wait()
        self.go_on.clear()
        self.advance(seconds)


async def a_pod(kube: CoreKube, *volumes: dict[str, Any]) -> NodePod:
    body = {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "x"}], "volumes": list(volumes)},
    }
    return await kube.create(PODS, body)


def a_kube(clock: SteppedClock) -> CoreKube:
    core = ClusterCore(clock=clock.now, new_uid=lambda: str(uuid.uuid4()))
    core.bootstrap()
    core.settle()
    return CoreKube(core, random=SeededRandom(1), accounts=ServiceAccountTokens(core, b"key"))


async def after(clock: SteppedClock, count: int) -> None:
    """Wait until the clock has started `count` sleeps."""
    async with asyncio.timeout(5):
        while len(clock.slept) < count:  # noqa: ASYNC110 - the fake clock has no event for that
            await asyncio.sleep(0)


@pytest.mark.parametrize("are_fresh", [True, False])
async def test_tokens_are_renewed_in_place(tmp_path: Path, *, are_fresh: bool) -> None:
    """Tokens are renewed in place at four fifths of their life, at once when their age is unknown, and never while the
    API is away."""
    clock = SteppedClock()
    kube = a_kube(clock)
    pod = await a_pod(kube, {"name": "t", "projected": {"sources": [{"serviceAccountToken": TOKEN}]}})
    disk = PodDisk(tmp_path, pod.metadata.uid)
    file = disk.folder / "volumes" / "t" / "token"
    file.parent.mkdir(parents=True)
    file.write_text("old", encoding="utf-8")
    is_away = True

    async def away(_verb: Verb, _plural: str) -> None:
        if is_away:
            raise UnavailableError("away")

    kube.before = away
    running = asyncio.ensure_future(keep_renewed(kube, pod, disk, clock, are_fresh=are_fresh))
    try:
        if are_fresh:
            await after(clock, 1)
            assert clock.slept.pop() == 2880
            clock.go_on.set()
        await after(clock, 1)
        assert (clock.slept, file.read_text("utf-8")) == ([AGAIN_S], "old")
        is_away = False
        clock.go_on.set()
        await after(clock, 2)
        assert clock.slept[1] == 2880
        first = file.read_text("utf-8")
        assert first.count(".") == 2
        assert file.stat().st_mode & 0o777 == 0o600
        clock.go_on.set()
        await after(clock, 3)
        assert file.read_text("utf-8") != first
        assert [each.name for each in file.parent.iterdir()] == ["token"]
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_a_pod_without_tokens_costs_nothing(tmp_path: Path) -> None:
    """A pod without tokens causes no call and no wait."""
    clock = SteppedClock()
    kube = a_kube(clock)
    pod = await a_pod(kube)
    await keep_renewed(kube, pod, PodDisk(tmp_path, "u"), clock, are_fresh=False)
    assert clock.slept == []
