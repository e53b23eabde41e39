"""What the scheduler needs of the outside, in its own words."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from slipway.crd.meta import RawObject
from slipway.kube.ports import Listed
from slipway.kube.resources import Resource
from slipway.streams.ports import WorkHint

T = TypeVar("T")
Patch = RawObject | list[RawObject]


class Kube(Protocol):
    """Reads of everything that placement depends on, and the two objects that the scheduler writes."""

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

    async def replace_status(self, resource: Resource[T], body: Any) -> T: ...

    async def patch(self, resource: Resource[T], name: str, patch: Patch, *, namespace: str | None = None) -> T: ...


class Hints(Protocol):
    """Where work is announced; what is lost here is announced again by the watcher."""

    async def send(self, hints: Sequence[WorkHint]) -> None: ...
