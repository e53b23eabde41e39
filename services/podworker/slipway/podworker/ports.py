"""The ports of the pod worker: what it needs of Kubernetes and Redis."""

from typing import Protocol

from slipway.kube.ports import Binds, Creates, Deletes, Discovers, Gets, Lists, Patches, ReplacesStatus


class Kube(Gets, Lists, Creates, ReplacesStatus, Patches, Deletes, Binds, Discovers, Protocol):
    """Reads of allocations, pools and our own objects; the writes of a launch and of a teardown."""


class Pinger(Protocol):
    """Checks whether Redis answers."""

    async def ping(self) -> float: ...
