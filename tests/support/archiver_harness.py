"""One allocation whose log is in a stream, and its archive: the harness of the tests of the archive of logs."""

import asyncio
from collections.abc import Awaitable

import msgspec

from slipway.crd.meta import ObjectMeta
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, AllocationStatus, RoleSpec
from slipway.logarchive.archive import ArchiveObjects, LogArchive, record_of
from slipway.logarchive.pieces import ArchiveRecord
from slipway.model.lifecycle import Kind, Phase
from slipway.runtime.clock import SystemClock
from slipway.streams.logpacks import EVENT, LogLine, StoredLine
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.watcher.informers import Informers
from slipway.watcher.logarchiver import LogArchiver
from slipway.watcher.logfollower import LogPackWriter
from tests.support.archive_objects import MemoryObjects
from tests.support.logs import a_pack


class ShiftedClock(SystemClock):
    """The clock of this machine, set forward at will."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class ArchiverHarness:
    """One allocation of two ranks whose log is in a stream, and the archive: in memory, or over `objects`."""

    def __init__(self, objects: ArchiveObjects | None = None) -> None:
        self.clock = ShiftedClock()
        self.server = MemoryServer(self.clock)
        self.streams = MemoryStreams(self.server)
        self.objects = MemoryObjects(self.clock.now)
        self.archive = LogArchive(objects or self.objects)
        self.writer = LogPackWriter(self.streams.logs)
        self.world = Informers()
        self.woken: list[str] = []
        self.number = self.version = 0
        meta = ObjectMeta(name="train", namespace="team", uid="0a1b2c3d-0000-0000-0000-000000000000")
        spec = AllocationSpec(kind=Kind.COMMAND, ranks=[RoleSpec(count=2)])
        self.allocation = Allocation(metadata=meta, spec=spec, status=AllocationStatus(phase=Phase.RUNNING))
        self.id = id_of(self.allocation)
        self.show(self.allocation)

    def show(self, *allocations: Allocation) -> None:
        self.version += 1
        for _, store in self.world.stores():
            if store is not self.world.allocations:
                store.replace([], self.version)
        versioned = [
            msgspec.structs.replace(
                each, metadata=msgspec.structs.replace(each.metadata, resource_version=f"{self.version}")
            )
            for each in allocations
        ]
        self.world.allocations.replace(versioned, self.version)

    def archiver(self, *, days: int = 30, bytes_max: int = 0) -> LogArchiver:
        found = LogArchiver(
            self.archive,
            self.streams.logs,
            self.writer,
            self.world,
            self.clock,
            days=days,
            bytes_max=bytes_max,
            woken=lambda uid, _delay_s: self.woken.append(uid),
        )
        found.begin()
        return found

    async def print(self, count: int, archiver: LogArchiver | None = None, *, share: int = 1_000_000) -> None:
        lines = [
            LogLine(attempt=1, rank=0, time="2026-01-02T03:04:05Z", text=f"line {number}")
            for number in range(self.number + 1, self.number + count + 1)
        ]
        pack = a_pack(self.id, lines, after=self.number, share=share)
        [answer] = await self.streams.logs.append([pack])
        assert answer.is_appended
        self.number += count
        if archiver is not None:
            archiver.note_stored(pack)

    async def written(self, step: Awaitable[object]) -> None:
        """Take a step while the archiver's log records are captured."""
        writing = asyncio.ensure_future(self.writer.run())
        try:
            await step
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def record(self) -> ArchiveRecord:
        """The archive's record as the archiver writes it first."""
        return record_of(self.allocation)

    async def archived(self) -> list[StoredLine]:
        starts = await self.archive.starts("team", self.id)
        return [line for start in starts for line in await self.archive.piece("team", self.id, start)]

    async def numbers(self) -> list[int]:
        return [each.line.number for each in await self.archived() if each.line.stream != EVENT]

    def end(self) -> None:
        status = msgspec.structs.replace(self.allocation.status, phase=Phase.TERMINATED)
        self.show(msgspec.structs.replace(self.allocation, status=status))
