"""Removes everything after an uninstall, when no service is left to remove its finalizers.

This module owns the order. First, allocations are deleted; services that still run see this and act on it. Then pods,
ConfigMaps and Services of allocations are deleted, by label. A pod's finalizer is removed once the pod is being
deleted. An allocation's finalizer is removed once all its pods are being deleted. Each finalizer is removed from one
object by its uid, and no other finalizer is changed. Objects of others are not changed. Pools, queues, jobs and
templates have no finalizers.

Run `python -m slipway.ops.setup.remove` with a kubeconfig that has these permissions, in the image or anywhere else. It
may run again, and while services run: then their own teardown has `PATIENCE_S` to finish.
"""

import asyncio
import contextlib
import sys
from typing import Any, Protocol, TypeVar

from slipway.crd.meta import (
    LABEL_ALLOCATION_UID,
    LABEL_LAUNCH_KEY,
    TEARDOWN_FINALIZER,
    TRACKING_FINALIZER,
    ObjectMeta,
    RawObject,
)
from slipway.errors import InvalidError, NotFoundError, StaleError, TransientError, UnavailableError
from slipway.kube import client
from slipway.kube.ports import Deletes, Lists, Patches, PatchType
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS, SERVICES, Resource
from slipway.ops.setup.settings import Settings
from slipway.runtime import log, service
from slipway.runtime.clock import Clock
from slipway.runtime.service import ServiceContext

NAME = "remove"
PATIENCE_S = 15.0
"""Seconds that services which may still run have for an orderly teardown."""
WITHIN_S = 120.0
ROUND_S = 0.5
T = TypeVar("T")

_log = log.get_logger(__name__)


class Kube(Lists, Patches, Deletes, Protocol):
    """The calls to Kubernetes."""


class ClusterRemover:
    """Removes all objects of one cluster's allocations."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def remove(self) -> None:
        """Return when nothing is left. Raises UnavailableError when that takes too long."""
        until = self._clock.monotonic() + PATIENCE_S
        try:
            async with asyncio.timeout(WITHIN_S):
                while await self._is_left(lets_go=self._clock.monotonic() >= until):
                    await self._clock.sleep(ROUND_S)
        except TimeoutError as error:
            raise UnavailableError(
                f"some objects still exist after {WITHIN_S:.0f} s; check them for finalizers that are not of Slipway"
            ) from error

    async def _is_left(self, *, lets_go: bool) -> bool:
        """Do one round; return whether something may be left. After a temporary failure the next round continues."""
        try:
            return bool(await self._round(lets_go=lets_go))
        except TransientError as error:
            _log.warning("round interrupted", error=str(error), retry_s=ROUND_S)
            return True

    async def _round(self, *, lets_go: bool) -> int:
        """Do one round of deletes; return how many objects it found."""
        allocations = (await self._kube.list(ALLOCATIONS)).items
        pods = await self._ours(PODS)
        others = [(kind, meta) for kind in (CONFIG_MAPS, SERVICES) for meta in await self._ours(kind)]
        others += [(CONFIG_MAPS, meta) for meta in await self._ours(CONFIG_MAPS, LABEL_LAUNCH_KEY)]
        for allocation in allocations:
            await self._delete(ALLOCATIONS, allocation.metadata)
        if not lets_go:
            return len(allocations) + len(pods) + len(others)
        for meta in pods:
            if not meta.deletion_timestamp:
                await self._delete(PODS, meta)
            await self._let_go(PODS, meta, TRACKING_FINALIZER)
        for kind, meta in others:
            await self._delete(kind, meta)
        held = {meta.labels.get(LABEL_ALLOCATION_UID) for meta in pods if not meta.deletion_timestamp}
        for allocation in allocations:
            if allocation.metadata.uid not in held:
                await self._let_go(ALLOCATIONS, allocation.metadata, TEARDOWN_FINALIZER)
        return len(allocations) + len(pods) + len(others)

    async def _ours(self, resource: Resource[Any], label: str = LABEL_ALLOCATION_UID) -> list[ObjectMeta]:
        listed = await self._kube.list(resource, label_selector=label)
        return [item.metadata for item in listed.items]

    async def _delete(self, resource: Resource[Any], meta: ObjectMeta) -> None:
        if meta.deletion_timestamp:
            return
        with contextlib.suppress(NotFoundError, StaleError):
            await self._kube.delete(resource, meta.name, namespace=meta.namespace or None, uid=meta.uid)
            _log.info("deleted", kind=resource.kind, namespace=meta.namespace, name=meta.name)

    async def _let_go(self, resource: Resource[Any], meta: ObjectMeta, finalizer: str) -> None:
        if finalizer not in meta.finalizers:
            return
        index = meta.finalizers.index(finalizer)
        patch: list[RawObject] = [
            {"op": "test", "path": "/metadata/uid", "value": meta.uid},
            {"op": "test", "path": f"/metadata/finalizers/{index}", "value": finalizer},
            {"op": "remove", "path": f"/metadata/finalizers/{index}"},
        ]
        # Another client may have changed the object first; the next round reads it again.
        with contextlib.suppress(NotFoundError, StaleError, InvalidError):
            await self._kube.patch(resource, meta.name, patch, namespace=meta.namespace or None, type_=PatchType.JSON)


def main() -> int:
    """Return exit code 0 when nothing is left, 1 when something is left."""
    return service.run(NAME, Settings, build, argv=["--once", *sys.argv[1:]])


async def build(context: ServiceContext[Settings]) -> None:
    """Remove all objects."""
    kube = await context.resources.enter_async_context(
        client.connect(
            context.settings.kubeconfig or None, clock=context.clock, random=context.random, user_agent="slipway-remove"
        )
    )
    await ClusterRemover(kube, context.clock).remove()


if __name__ == "__main__":
    raise SystemExit(main())
