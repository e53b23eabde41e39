"""What the pod worker needs of the outside, in its own words."""

from typing import Any, Protocol, TypeVar

from slipway.crd.meta import RawObject
from slipway.kube.ports import Listed, PatchType
from slipway.kube.resources import Resource

T = TypeVar("T")
Patch = RawObject | list[RawObject]


class Kube(Protocol):
    """Reads of allocations, pools and our own objects; the writes of a launch and of a teardown."""

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T: ...

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> Listed[T]: ...

    async def create(
        self, resource: Resource[T], body: Any, *, namespace: str | None = None, dry_run: bool = False
    ) -> T: ...

    async def replace_status(self, resource: Resource[T], body: Any) -> T: ...

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        type_: PatchType = PatchType.MERGE,
    ) -> T: ...

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: str = "Background",
    ) -> None: ...

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None: ...


class Pinger(Protocol):
    """Whether Redis answers."""

    async def ping(self) -> float: ...
