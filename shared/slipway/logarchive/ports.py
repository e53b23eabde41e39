"""The port of the log archive to an object store.

Promises of an implementation: `create` is atomic, and of several calls that create the same object one succeeds. `get`
returns a complete object. `paths` returns each object that exists during the whole call, sorted by path. Each call ends
within its deadline. Not promised: whether `paths` returns an object that is created or deleted during the call.
"""

from typing import NamedTuple, Protocol


class ObjectSize(NamedTuple):
    """The size of an object in bytes, and when it was stored last (epoch milliseconds)."""

    path: str
    bytes: int
    stored_ms: int


class ArchiveObjects(Protocol):
    """An object store, or a folder.

    Every method raises `TransientError` when the store does not answer, and `PermanentError` when it refuses.
    """

    async def create(self, path: str, data: bytes) -> bool:
        """Store an object if the path is free. Return False when an object exists, which is not changed."""
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Store an object, replacing an existing one."""
        ...

    async def get(self, path: str) -> bytes | None:
        """Return the object; None when it does not exist."""
        ...

    async def paths(self, folder: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return up to `limit` paths below the folder (which ends in `/`) that sort after `after`, sorted."""
        ...

    async def sizes(self, folder: str, *, after: str = "", limit: int = 1000) -> list[ObjectSize]:
        """Like `paths`, with the size of each object and when it was stored."""
        ...

    async def delete(self, paths: list[str]) -> None:
        """Delete objects; a missing one is no error."""
        ...
