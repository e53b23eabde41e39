"""What the api needs of the outside, in its own words."""

from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeVar

from slipway.crd.meta import RawObject
from slipway.kube.ports import Listed, PatchType
from slipway.kube.resources import Resource

T = TypeVar("T")
Patch = RawObject | list[RawObject]


class Kube(Protocol):
    """Reads of everything that is shown, and writes of specs; never of a status."""

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

    async def replace(self, resource: Resource[T], body: Any) -> T: ...

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
    ) -> None: ...

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes: ...

    def follow_log(
        self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
    ) -> AsyncIterator[bytes]: ...


class Stop(Protocol):
    """Set once, when the process is to end."""

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...
