"""The log archive on an object store: writes and reads records and pieces.

Owns which objects a call uses, and in which order: a record is written before its first piece and deleted after its
last. `pieces.py` owns the contents of the objects.

`ArchiveObjects` is the port to an object store. Promises of an implementation: `create` is atomic, and of several calls
that create the same object one succeeds. `get` returns a complete object. `paths` returns each object that exists
during the whole call, sorted by path. Each call ends within its deadline. Not promised: whether `paths` returns an
object that is created or deleted during the call.

Of an allocation, the record of its archived log has the fields for reading and authorisation: no command, no
environment, no image.
"""

from typing import Final, NamedTuple, Protocol

from slipway.crd.meta import ANNOTATION_MAIN_CONTAINER, ObjectMeta
from slipway.crd.roleresources import containers_of, main_container, object_of, objects_of
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, AllocationStatus, RoleSpec
from slipway.logarchive import pieces
from slipway.logarchive.pieces import ArchiveRecord, PieceSize
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Phase
from slipway.streams.logpacks import StoredLine


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


_PAGE: Final = 1000
_SIZES: Final = 10_000
"""Entries of a page of sizes. For a folder each page needs a complete listing, so pages are large and few."""
_DELETES_AT_ONCE: Final = 100


class LogArchive:
    """The log archive. Each method raises the errors of the object store, and `InvalidError` for an object that is not
    valid."""

    def __init__(self, objects: ArchiveObjects) -> None:
        self._objects = objects

    async def record(self, allocation: AllocationId) -> ArchiveRecord | None:
        """Return the record of the allocation; None when nothing of it is archived."""
        data = await self._objects.get(pieces.record_path(allocation))
        return None if data is None else pieces.decode_record(data)

    async def write_record(self, record: ArchiveRecord) -> None:
        """Store the record, replacing an earlier one."""
        await self._objects.put(pieces.record_path(record.allocation), pieces.encode_record(record))

    async def starts(self, workspace: str, allocation: AllocationId, *, since: str = "") -> list[str]:
        """Return the starts of its pieces, oldest first; with `since` only those after the piece with that start."""
        folder, found = pieces.folder_of(workspace, allocation), list[str]()
        after = pieces.piece_path(workspace, allocation, since) if since else ""
        while True:
            page = await self._objects.paths(folder, after=after, limit=_PAGE)
            found += page
            if len(page) < _PAGE:
                return pieces.starts_of(found)
            after = page[-1]

    async def piece(self, workspace: str, allocation: AllocationId, start: str) -> list[StoredLine]:
        """Return the lines of the piece with this start; empty when it does not exist, or was deleted."""
        data = await self._objects.get(pieces.piece_path(workspace, allocation, start))
        return [] if data is None else pieces.decode_piece(data)

    async def add(self, workspace: str, allocation: AllocationId, start: str, lines: list[StoredLine]) -> int:
        """Store the piece with this start. Return its size in bytes, or 0 when another writer was first."""
        data = pieces.encode_piece(lines)
        path = pieces.piece_path(workspace, allocation, start)
        return len(data) if await self._objects.create(path, data) else 0

    async def end_of(self, workspace: str, allocation: AllocationId) -> tuple[str, list[StoredLine]]:
        """Return the cursor of the last archived line, and the lines of the last piece."""
        starts = await self.starts(workspace, allocation)
        if not starts:
            return pieces.START, []
        lines = await self.piece(workspace, allocation, starts[-1])
        return (lines[-1].cursor if lines else starts[-1]), lines

    async def records(self, *, after: str = "", limit: int = 100) -> tuple[list[AllocationId], str]:
        """Return the AllocationIDs of a page of records, and the `after` of the next page (empty: this was the last
        one)."""
        paths = await self._objects.paths(pieces.RECORDS, after=after, limit=limit)
        ids = [AllocationId(path.rpartition("/")[2].removesuffix(".json")) for path in paths]
        return ids, paths[-1] if len(paths) == limit else ""

    async def sizes(self, *, after: str = "", limit: int = _SIZES) -> tuple[list[PieceSize], str]:
        """Return the sizes of a page of pieces of all allocations, and the `after` of the next page (empty: the last
        one)."""
        page = await self._objects.sizes(pieces.PIECES, after=after, limit=limit)
        found = [piece for each in page if (piece := pieces.piece_size(*each)) is not None]
        return found, page[-1].path if len(page) == limit else ""

    async def forget(self, record: ArchiveRecord, *, most: int) -> int:
        """Delete up to `most` pieces, and after the last piece the record. Return the number of deleted objects."""
        deleted, is_all = await self.delete_pieces(record.workspace, record.allocation, most=most)
        if not is_all:
            return deleted
        await self._objects.delete([pieces.record_path(record.allocation)])
        return deleted + 1

    async def delete_pieces(self, workspace: str, allocation: AllocationId, *, most: int) -> tuple[int, bool]:
        """Delete up to `most` pieces. Return the number of deleted pieces, and whether none remains."""
        folder, deleted = pieces.folder_of(workspace, allocation), 0
        while deleted < most:
            count = min(_DELETES_AT_ONCE, most - deleted)
            paths = await self._objects.paths(folder, limit=count)
            await self._objects.delete(paths)
            deleted += len(paths)
            if len(paths) < count:
                return deleted, True
        return deleted, False


def record_of(allocation: Allocation) -> ArchiveRecord:
    """Return the record of the allocation."""
    meta, template = allocation.metadata, allocation.spec.template
    containers = [str(each.get("name")) for each in containers_of(template)]
    inits = objects_of(object_of(template.get("spec")).get("initContainers"))
    return ArchiveRecord(
        allocation=id_of(allocation),
        workspace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        kind=allocation.spec.kind,
        ranks=sum(role.count for role in allocation.spec.ranks) or 1,
        attempt=allocation.status.attempt,
        main=containers[main_container(template)] if containers else "",
        containers=tuple(containers),
        init_containers=tuple(str(each.get("name")) for each in inits),
        created_at=meta.creation_timestamp or "",
    )


def allocation_of(record: ArchiveRecord) -> Allocation:
    """Return an ended allocation to which the log of this record belongs."""
    spec = {
        "containers": [{"name": name} for name in record.containers],
        "initContainers": [{"name": name} for name in record.init_containers],
    }
    return Allocation(
        metadata=ObjectMeta(
            name=record.name,
            namespace=record.workspace,
            uid=record.uid,
            creation_timestamp=record.created_at or None,
        ),
        spec=AllocationSpec(
            kind=record.kind,
            ranks=[RoleSpec(name="ranks", count=record.ranks)],
            template={"metadata": {"annotations": {ANNOTATION_MAIN_CONTAINER: record.main}}, "spec": spec},
        ),
        status=AllocationStatus(
            phase=Phase.TERMINATED, attempt=record.attempt, ended_at=record.ended_at or record.created_at
        ),
    )
