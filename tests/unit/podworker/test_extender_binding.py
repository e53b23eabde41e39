"""Pools with an extender that binds: it is called for each pod, and the pods themselves show whether it has bound
them."""

import json
from typing import Any

import pytest

from slipway.errors import InvalidError, UnavailableError
from slipway.kube.extender_wire import ExtenderFault
from slipway.kube.resources import RESOURCE_POOLS
from slipway.model.facts import ExtenderFact
from slipway.podworker.main import make_worker
from slipway.runtime.clock import SeededRandom
from tests.support.podworker_harness import SETTINGS, PodWorkerHarness, run_with_harness
from tests.support.small_cluster import a_client, look

GANG = ("n0", "n1")


class Binder:
    """An extender that binds to the given node, or to `elsewhere`, or only answers that it has."""

    def __init__(self, harness: PodWorkerHarness) -> None:
        self.kube = a_client(harness.core, seed=9)
        self.bodies: list[dict[str, Any]] = []
        self.fault = ""
        self.binds = True
        self.elsewhere = ""

    async def post(self, extender: ExtenderFact, verb: str, body: bytes) -> bytes:
        asked = json.loads(body)
        self.bodies.append(asked)
        if self.binds:
            node = self.elsewhere or asked["Node"]
            await self.kube.bind(asked["PodNamespace"], asked["PodName"], asked["PodUID"], node)
        if self.fault:
            raise ExtenderFault(self.fault)
        return b'{"Error": ""}'


async def bound_by(harness: PodWorkerHarness, binder: Binder, **spec: Any) -> None:
    """Create an admitted gang in a pool whose extender binds, and handle it once."""
    extender = {"urlPrefix": "http://binder", "bindVerb": "bind", **spec}
    await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"extenders": [extender]}})
    await harness.assign(*GANG)
    worker = make_worker(a_client(harness.core, seed=2), SETTINGS, harness.clock, SeededRandom(7), extenders=binder)
    await harness.handle(worker=worker)


async def places(harness: PodWorkerHarness) -> list[str]:
    return [pod.spec.node_name for pod in await harness.pods()]


async def stuck(harness: PodWorkerHarness) -> list[str]:
    conditions = (await look(harness.kube)).status.conditions
    return [item.message for item in conditions if item.type == "Stuck" and item.status == "True"]


def test_the_extender_binds_every_pod_to_the_node_that_was_decided() -> None:
    """The extender gets PodName, PodNamespace, PodUID and Node of each released pod; the pod worker binds none."""

    async def story(harness: PodWorkerHarness) -> None:
        binder = Binder(harness)
        await bound_by(harness, binder)
        assert await places(harness) == list(GANG)
        release = (await look(harness.kube)).status.release
        assert release is not None
        assert sorted((body["PodUID"], body["Node"]) for body in binder.bodies) == sorted(
            zip(release.pod_uids, GANG, strict=True)
        )
        assert {body["PodNamespace"] for body in binder.bodies} == {"default"}

    run_with_harness(story)


def test_an_answer_that_got_lost_is_no_harm() -> None:
    """A lost answer does no harm: the pod itself shows that the extender has bound it."""

    async def story(harness: PodWorkerHarness) -> None:
        binder = Binder(harness)
        binder.fault = "no answer within 5 s"
        await bound_by(harness, binder)
        assert await places(harness) == list(GANG)
        assert not await stuck(harness)

    run_with_harness(story)


def test_one_that_only_says_that_it_has_bound_is_asked_again() -> None:
    """An extender that answers without binding is called again. The pod worker does not bind its pods, and the error
    names the extender."""

    async def story(harness: PodWorkerHarness) -> None:
        binder = Binder(harness)
        binder.binds = False
        with pytest.raises(UnavailableError, match="extender binder has not bound pod"):
            await bound_by(harness, binder)
        assert await places(harness) == ["", ""]
        assert len(binder.bodies) > 2

    run_with_harness(story)


def test_an_ignorable_one_that_fails_is_passed_over() -> None:
    """When an ignorable extender fails, the pod worker binds."""

    async def story(harness: PodWorkerHarness) -> None:
        binder = Binder(harness)
        binder.binds, binder.fault = False, "it answers 500"
        await bound_by(harness, binder, ignorable=True)
        assert await places(harness) == list(GANG)

    run_with_harness(story)


def test_one_that_binds_elsewhere_has_broken_the_attempt() -> None:
    """An extender that binds to another node has broken the attempt, because this is not the admitted placement."""

    async def story(harness: PodWorkerHarness) -> None:
        binder = Binder(harness)
        binder.elsewhere = "n1"
        await bound_by(harness, binder)
        [message] = await stuck(harness)
        assert "is bound to n1, not to n0" in message

    run_with_harness(story)


def test_it_binds_only_what_it_manages() -> None:
    """The extender binds only pods with its managed resources; the pod worker binds the others."""

    async def story(harness: PodWorkerHarness) -> None:
        binder = Binder(harness)
        await bound_by(harness, binder, managedResources=[{"name": "example.com/fpga"}])
        assert not binder.bodies
        assert await places(harness) == list(GANG)

    run_with_harness(story)


def test_a_pool_has_one_binder_at_most() -> None:
    """The API server refuses a pool with two extenders that bind."""

    async def story(harness: PodWorkerHarness) -> None:
        two = [{"urlPrefix": f"http://binder-{index}", "bindVerb": "bind"} for index in range(2)]
        with pytest.raises(InvalidError, match="at most one extender may bind"):
            await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"extenders": two}})

    run_with_harness(story)
