"""The log archive on an object store: writes and reads records and pieces.

Owns which objects a call uses, and in which order: a record is written before its first piece and deleted after its
last. `pieces.py` owns the contents of the objects.
"""

from typing import Final

from slipway.logarchive import pieces
from slipway.logarchive.pieces import ArchiveRecord, PieceSize
from slipway.logarchive.ports import ArchiveObjects
from slipway.model.ids import AllocationId
from slipway.streams.logpacks import StoredLine

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
