"""Creates the objects that must exist before anything can be launched, when missing: pools, queues, workspaces.

This module owns the rule that existing objects are not changed, except for the one label that makes a namespace a
workspace. So a second run changes nothing, and later edits stay. It waits for a definition that is not served yet. It
does not create a missing namespace.
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
    """The calls to Kubernetes."""


class InitialObjects:
    """Creates the initial objects of one cluster."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def create_missing(
        self, *, pools: Mapping[str, RawObject], queues: Mapping[str, RawObject], workspaces: tuple[str, ...]
    ) -> None:
        """Create all missing objects, or raise an error that states what is missing.

        Raises:
            UnavailableError: the definitions are not served in time, or a namespace does not exist.
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
                        # A definition is served only some moments after it was created.
                        await self._clock.sleep(POLL_S)
        except AlreadyExistsError:
            _log.info("already exists", kind=resource.kind, name=name)
        except TimeoutError as error:
            raise UnavailableError(f"the API server does not know {resource.plural}.{resource.group}") from error
        else:
            _log.info("created", kind=resource.kind, name=name)

    async def _label(self, name: str) -> None:
        try:
            await self._kube.patch(NAMESPACES, name, {"metadata": {"labels": {LABEL_WORKSPACE: "true"}}})
        except NotFoundError as error:
            raise UnavailableError(
                f"namespace {name} does not exist, so it cannot become a workspace: create it"
            ) from error
        _log.info("labelled as a workspace", kind=NAMESPACES.kind, name=name)
