"""Makes what is missing before anything can be launched: pools, queues, workspaces.

Owns the rule that nothing which exists is changed, but for the one label that makes a namespace a workspace: doing it
twice changes nothing, and what somebody has edited since stays. A definition that is not served yet is waited for, a
namespace that is not there is not created.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from slipway.crd.meta import LABEL_WORKSPACE, RawObject
from slipway.errors import AlreadyExistsError, NotFoundError, UnavailableError
from slipway.kube.ports import Creates, Patches
from slipway.kube.resources import NAMESPACES, QUEUES, RESOURCE_POOLS, Resource
from slipway.runtime import log
from slipway.runtime.clock import Clock

SERVED_WITHIN_S = 60.0
POLL_S = 0.5

_log = log.get_logger(__name__)


class Kube(Creates, Patches, Protocol):
    """The calls that this makes."""


class Furnisher:
    """Furnishes one cluster."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def furnish(
        self, *, pools: Mapping[str, RawObject], queues: Mapping[str, RawObject], workspaces: tuple[str, ...]
    ) -> None:
        """All of it, or an error with what is missing.

        Raises:
            UnavailableError: the definitions are not served in time, or a namespace is not there.
            InvalidError: the server refuses a spec.
        """
        for name, spec in pools.items():
            await self._create(RESOURCE_POOLS, name, spec)
        for name, spec in queues.items():
            await self._create(QUEUES, name, spec)
        for name in workspaces:
            await self._label(name)

    async def _create(self, resource: Resource[Any], name: str, spec: RawObject) -> None:
        try:
            async with asyncio.timeout(SERVED_WITHIN_S):
                while True:
                    try:
                        await self._kube.create(resource, {"metadata": {"name": name}, "spec": spec})
                        break
                    except NotFoundError:
                        # A definition is served a moment after it was made.
                        await self._clock.sleep(POLL_S)
        except AlreadyExistsError:
            _log.info("there already", kind=resource.kind, name=name)
        except TimeoutError as error:
            raise UnavailableError(f"the API server does not know {resource.plural}.{resource.group}") from error
        else:
            _log.info("created", kind=resource.kind, name=name)

    async def _label(self, name: str) -> None:
        try:
            await self._kube.patch(NAMESPACES, name, {"metadata": {"labels": {LABEL_WORKSPACE: "true"}}})
        except NotFoundError as error:
            raise UnavailableError(f"there is no namespace {name} to make a workspace of: create it") from error
        _log.info("is a workspace", kind=NAMESPACES.kind, name=name)
