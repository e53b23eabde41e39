"""The port to Kubernetes: what every service may ask of the API server.

`kube/client.py` is the real one; the simulation has another over the local cluster's core. Both pass one
contract suite. There is one small Protocol per kind of call: a service's own port names those that it makes, and
therewith what its account must be allowed.

Promises: every method has a deadline; errors are of `slipway.errors` (409 conflict -> StaleError, 409 exists ->
AlreadyExistsError, 404 -> NotFoundError, 410 -> ExpiredError, 422/400 -> InvalidError, 403 by its cause, 413 ->
TooLargeError, 429 -> ThrottledError, other 5xx and connection faults -> UnavailableError, no answer in time ->
DeadlineError). No method retries by itself: the outcome of a write that raised DeadlineError or
UnavailableError is unknown.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from slipway.crd.meta import RawObject
from slipway.kube.resources import Resource

T = TypeVar("T")


class PatchType(StrEnum):
    """Content types of PATCH."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"


class Listed(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One consistent LIST; `resource_version` is where a watch goes on from."""

    items: list[T]
    resource_version: str
    continue_: str = ""
    remaining_item_count: int | None = None


class WatchType(StrEnum):
    """Types of watch events that reach a caller (ERROR events are raised)."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change; a BOOKMARK's object carries only the resourceVersion and is None."""

    type: WatchType
    object: T | None
    resource_version: str


class Gets(Protocol):
    """Single objects."""

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        """The object now (a quorum read)."""
        ...


class Lists(Protocol):
    """Consistent lists."""

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> Listed[T]:
        """A consistent LIST (resourceVersion unset). With `limit` 0 all pages are read and joined."""
        ...


class Watches(Protocol):
    """Changes as they come."""

    def watch(
        self, resource: Resource[T], *, resource_version: str, namespace: str | None = None, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after `resource_version`, bookmarks included, until the server ends the watch.

        Raises ExpiredError on 410 (also inside a 200), UnavailableError when nothing came for the silence limit.
        """
        ...


class ReadsLogs(Protocol):
    """Logs of pods, with a timestamp at the start of each line."""

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes:
        """A pod's log so far, with timestamps, one line each."""
        ...

    def follow_log(
        self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
    ) -> AsyncIterator[bytes]:
        """A pod's log with timestamps, in chunks as they come; ends with the container."""
        ...


class ContainerChannels(Protocol):
    """A command that runs in a container: messages as `model/exec_channels.py` has them, in both directions.

    Promises: messages are passed on once and in order; a side that reads slowly makes the other one wait.
    """

    async def send(self, message: bytes) -> None:
        """One message to the container; returns once it may be followed by another. What a command leaves unread when
        it ends is dropped.

        Raises:
            UnavailableError: the connection is lost.
        """
        ...

    async def receive(self) -> bytes:
        """The next message of the container; empty when the connection has ended."""
        ...


class Execs(Protocol):
    """Commands in containers of pods."""

    def exec(
        self, namespace: str, pod: str, *, container: str, command: Sequence[str], stdin: bool, tty: bool
    ) -> AbstractAsyncContextManager[ContainerChannels]:
        """Runs a command while inside; leaving closes the connection, which ends its input.

        Raises (on entry) as every call does: DeniedError when our account lacks `create` or `get` of `pods/exec`,
        InvalidError for a container that is not there. What only the node finds out is the last message.
        """
        ...


class Creates(Protocol):
    """Creates. `body` is a wire struct or plain JSON; apiVersion and kind are filled in from `resource`."""

    async def create(
        self, resource: Resource[T], body: Any, *, namespace: str | None = None, dry_run: bool = False
    ) -> T: ...


class Replaces(Protocol):
    """Writes of an object but for its status."""

    async def replace(self, resource: Resource[T], body: Any) -> T:
        """PUT, fenced by `metadata.resourceVersion` (refused locally when it is missing)."""
        ...


class ReplacesStatus(Protocol):
    """Writes of a status."""

    async def replace_status(self, resource: Resource[T], body: Any) -> T:
        """PUT of `/status`, fenced by `metadata.resourceVersion` (refused locally when it is missing)."""
        ...


class Patches(Protocol):
    """Changes of a part, whatever else has changed meanwhile; never of a status."""

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: RawObject | list[RawObject],
        *,
        namespace: str | None = None,
        type_: PatchType = PatchType.MERGE,
    ) -> T: ...


class Deletes(Protocol):
    """Deletes."""

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
    ) -> None:
        """DELETE with preconditions. NotFoundError when it is gone already, StaleError when `uid` is another's."""
        ...


class Binds(Protocol):
    """Bindings of pods to nodes."""

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        """POST of the `binding` subresource with the pod's uid.

        Raises:
            BoundError: the pod is bound already (GET it: same uid and node is success).
            StaleError: another uid, gated, or deleting: the attempt is broken.
        """
        ...


class Asks(Protocol):
    """What the caller may do."""

    async def may(
        self, verb: str, resource: Resource[Any], *, namespace: str | None = None, subresource: str = ""
    ) -> bool:
        """Whether our own account holds that permission (SelfSubjectAccessReview)."""
        ...


class Discovers(Protocol):
    """What the API server has."""

    async def serves(self, resource: Resource[Any]) -> bool:
        """Whether the API server serves the resource, in that version: what its discovery document says."""
        ...


class KubeReader(Gets, Lists, Watches, ReadsLogs, Protocol):
    """Reads."""


class KubeWriter(Creates, Replaces, ReplacesStatus, Patches, Deletes, Binds, Asks, Protocol):
    """Writes."""


class KubeApi(KubeReader, KubeWriter, Execs, Discovers, Protocol):
    """All of it."""


RawLabels = Mapping[str, str]
