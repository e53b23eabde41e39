"""The setup creates missing objects, changes no existing ones, and reports what it cannot create."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from slipway.crd.meta import LABEL_WORKSPACE, RawObject
from slipway.crd.schema import crd_manifests
from slipway.errors import InvalidError, UnavailableError
from slipway.kube.resources import CRDS, NAMESPACES, QUEUES, RESOURCE_POOLS
from slipway.ops.setup.initial_objects import SERVED_WITHIN_S, InitialObjects
from slipway.ops.setup.settings import Settings
from slipway.runtime.settings import load
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core
from tests.support.virtual_time import VirtualClock, run_virtual

POOLS: dict[str, RawObject] = {"default": {}}
QUEUE_SPECS: dict[str, RawObject] = {"default": {"pool": "default"}}


class FurnisherHarness:
    """A core, a client, and the furnisher under test, in virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.kube: CoreKube = a_client(a_core(self.clock.now))
        self._furnisher = InitialObjects(self.kube, self.clock)

    async def define(self) -> None:
        for manifest in crd_manifests():
            await self.kube.create(CRDS, manifest)

    async def furnish(self, *workspaces: str, pools: dict[str, RawObject] | None = None) -> None:
        pools = POOLS if pools is None else pools
        await self._furnisher.create_missing(pools=pools, queues=QUEUE_SPECS, workspaces=workspaces)


def _run(play: Callable[[FurnisherHarness], Awaitable[None]]) -> None:
    async def main() -> None:
        await play(FurnisherHarness())

    run_virtual(main)


def test_it_makes_what_is_missing() -> None:
    """The setup creates a pool and a queue, and makes a namespace a workspace, which keeps its other labels."""

    async def play(harness: FurnisherHarness) -> None:
        await harness.define()
        await harness.kube.create(NAMESPACES, {"metadata": {"name": "default", "labels": {"team": "a"}}})
        await harness.furnish("default")
        assert (await harness.kube.get(QUEUES, "default")).spec.pool == "default"
        assert (await harness.kube.get(RESOURCE_POOLS, "default")).metadata.name == "default"
        labels = (await harness.kube.get(NAMESPACES, "default")).metadata.labels
        assert (labels["team"], labels[LABEL_WORKSPACE]) == ("a", "true")

    _run(play)


def test_what_is_there_is_not_changed() -> None:
    """A second run of the setup, with other values, does not change existing objects."""

    async def play(harness: FurnisherHarness) -> None:
        await harness.define()
        await harness.furnish(pools={"default": {"binding": "delegate"}})
        before = await harness.kube.get(RESOURCE_POOLS, "default")
        await harness.furnish(pools={"default": {"binding": "direct"}})
        assert await harness.kube.get(RESOURCE_POOLS, "default") == before
        assert before.spec.binding == "delegate"

    _run(play)


def test_definitions_are_waited_for() -> None:
    """The setup waits for the definitions, which are installed at the same time and served a moment later."""

    async def play(harness: FurnisherHarness) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(harness.furnish())
            await harness.clock.sleep(5.0)
            await harness.define()
        assert (await harness.kube.list(QUEUES)).items

    _run(play)


def test_definitions_are_not_waited_for_for_ever() -> None:
    """The wait for the definitions ends after a while, and the setup exits with the reason, so that it is tried
    again."""

    async def play(harness: FurnisherHarness) -> None:
        began = harness.clock.monotonic()
        with pytest.raises(UnavailableError, match=r"resourcepools\.slipway\.dev"):
            await harness.furnish()
        assert harness.clock.monotonic() - began >= SERVED_WITHIN_S

    _run(play)


def test_a_namespace_is_not_created() -> None:
    """The setup does not create a namespace, which belongs to a team; until it exists the setup is tried again."""

    async def play(harness: FurnisherHarness) -> None:
        await harness.define()
        with pytest.raises(UnavailableError, match="team-a"):
            await harness.furnish("team-a")

    _run(play)


def test_a_bad_spec_is_said() -> None:
    """A bad spec is reported without retries."""

    async def play(harness: FurnisherHarness) -> None:
        await harness.define()
        with pytest.raises(InvalidError):
            await harness.furnish(pools={"default": {"binding": "sideways"}})

    _run(play)


def test_settings_are_json_objects() -> None:
    """Settings are JSON objects, as the chart writes them."""
    settings = load(
        Settings,
        {
            "SLIPWAY_SETUP_POOLS": '{"default": {}}',
            "SLIPWAY_SETUP_QUEUES": '{"default": {"pool": "default"}}',
            "SLIPWAY_SETUP_WORKSPACES": "default,team-a",
        },
    )
    assert (settings.setup_pools, settings.setup_queues) == (POOLS, QUEUE_SPECS)
    assert settings.setup_workspaces == ("default", "team-a")
