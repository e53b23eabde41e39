"""The port to Kubernetes: the calls that services make to the API server.

`kube/client.py` is the real implementation; the simulation has another one on the core of the local cluster. Both pass
one contract suite. There is one small Protocol per kind of call. The port of a service lists the calls that it makes,
and thereby the permissions that its account needs.

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
    """One consistent LIST; a watch continues from `resource_version`."""

    items: list[T]
    resource_version: str
    continue_: str = ""
    remaining_item_count: int | None = None


class WatchType(StrEnum):
    """Types of watch events that a caller receives; an ERROR event is raised as an error."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change; `object` is None for a BOOKMARK, which has only a resource version."""

    type: WatchType
    object: T | None
    resource_version: str


class Gets(Protocol):
    """Reads of single objects."""

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        """Return the current object (a quorum read)."""
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
        """Return a consistent LIST (resourceVersion unset). With `limit` 0 all pages are read and joined."""
        ...


class Watches(Protocol):
    """Watches of changes."""

    def watch(
        self, resource: Resource[T], *, resource_version: str, namespace: str | None = None, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        """Yield the changes after `resource_version`, including bookmarks, until the server ends the watch.

        Raises ExpiredError on 410 (also inside a 200), UnavailableError when nothing arrives for the silence limit.
        """
        ...


class ReadsLogs(Protocol):
    """Logs of pods, with a timestamp at the start of each line."""

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes:
        """Return a pod's log so far; each line starts with a timestamp."""
        ...

    def follow_log(
        self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
    ) -> AsyncIterator[bytes]:
        """Yield a pod's log with timestamps, in chunks as they arrive; ends when the container ends."""
        ...


class ContainerChannels(Protocol):
    """The connection to a command in a container, with messages of `model/exec_channels.py` in both directions.

    Promises: messages are delivered once and in order. When one side reads slowly, the other must wait.
    """

    async def send(self, message: bytes) -> None:
        """Send one message to the container; return when the next one may be sent.

        Input that the command has not read when it ends is dropped.

        Raises:
            UnavailableError: the connection is lost.
        """
        ...

    async def receive(self) -> bytes:
        """Return the next message of the container; empty when the connection has ended."""
        ...


class Execs(Protocol):
    """Commands in containers of pods."""

    def exec(
        self, namespace: str, pod: str, *, container: str, command: Sequence[str], stdin: bool, tty: bool
    ) -> AbstractAsyncContextManager[ContainerChannels]:
        """Run a command while inside the context; leaving closes the connection, which ends the command's input.

        Raises (on entry) the errors of every call: DeniedError when our account lacks `create` or `get` of `pods/exec`,
        InvalidError for a container that does not exist. Errors that only the node detects are in the last message.
        """
        ...


class Creates(Protocol):
    """Creates. `body` is a wire struct or plain JSON; apiVersion and kind are set from `resource`."""

    async def create(
        self, resource: Resource[T], body: Any, *, namespace: str | None = None, dry_run: bool = False
    ) -> T: ...


class Replaces(Protocol):
    """Writes of an object without its status."""

    async def replace(self, resource: Resource[T], body: Any) -> T:
        """PUT, fenced by `metadata.resourceVersion` (refused locally when it is missing)."""
        ...


class ReplacesStatus(Protocol):
    """Writes of a status."""

    async def replace_status(self, resource: Resource[T], body: Any) -> T:
        """PUT of `/status`, fenced by `metadata.resourceVersion` (refused locally when it is missing)."""
        ...


class Patches(Protocol):
    """Changes of a part of an object, not fenced by its version; never of a status."""

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
        """DELETE with preconditions. NotFoundError when it is deleted already, StaleError when it has another uid."""
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


class ChecksAccess(Protocol):
    """Checks of our permissions."""

    async def may(
        self, verb: str, resource: Resource[Any], *, namespace: str | None = None, subresource: str = ""
    ) -> bool:
        """Whether our own account has that permission (SelfSubjectAccessReview)."""
        ...


class Discovers(Protocol):
    """Discovery of the API."""

    async def serves(self, resource: Resource[Any]) -> bool:
        """Whether the API server serves the resource in that version, according to its discovery document."""
        ...


class KubeReader(Gets, Lists, Watches, ReadsLogs, Protocol):
    """Reads."""


class KubeWriter(Creates, Replaces, ReplacesStatus, Patches, Deletes, Binds, ChecksAccess, Protocol):
    """Writes."""


class KubeApi(KubeReader, KubeWriter, Execs, Discovers, Protocol):
    """All calls."""


RawLabels = Mapping[str, str]
