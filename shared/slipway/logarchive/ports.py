"""What the archive of logs needs of an object store, in its own words.

Promises of an implementation: `create` is atomic, and of several that create the same object one succeeds; `get` gives
an object whole; `paths` gives each object that was there the whole time, in the order of paths. Each call ends within
its deadline.
Not promised: that `paths` shows an object which is created or deleted meanwhile.
"""

from typing import Protocol


class ArchiveObjects(Protocol):
    """An object store, or a folder. Every method raises `TransientError` when it does not answer, and
    `PermanentError` when it refuses."""

    async def create(self, path: str, data: bytes) -> bool:
        """Store an object if there is none at that path; False when there is one, which stays as it is."""
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Store an object, in place of what is there."""
        ...

    async def get(self, path: str) -> bytes | None:
        """The object; None when there is none."""
        ...

    async def paths(self, folder: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Up to `limit` paths below the folder (which ends in `/`) that sort after `after`, sorted."""
        ...

    async def sizes(self, folder: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, int]]:
        """As `paths`, each with the bytes of its object."""
        ...

    async def delete(self, paths: list[str]) -> None:
        """Delete objects; one that is not there is no error."""
        ...
