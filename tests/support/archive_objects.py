"""An object store in memory: the fake behind the port of the archive of logs."""

from collections.abc import Callable

from slipway.errors import UnavailableError
from slipway.logarchive.archive import ObjectSize
from slipway.runtime.clock import SystemClock


class MemoryObjects:
    """See `ArchiveObjects`. While `is_away`, each call raises UnavailableError. `now` returns epoch seconds."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._now = now or SystemClock().now
        self.objects: dict[str, bytes] = {}
        self._stored_ms: dict[str, int] = {}
        self.is_away = False

    async def create(self, path: str, data: bytes) -> bool:
        self._answer()
        if path in self.objects:
            return False
        await self.put(path, data)
        return True

    async def put(self, path: str, data: bytes) -> None:
        self._answer()
        self.objects[path], self._stored_ms[path] = data, int(self._now() * 1000)

    async def get(self, path: str) -> bytes | None:
        self._answer()
        return self.objects.get(path)

    async def paths(self, folder: str, *, after: str = "", limit: int = 1000) -> list[str]:
        self._answer()
        return sorted(path for path in self.objects if path.startswith(folder) and path > after)[:limit]

    async def sizes(self, folder: str, *, after: str = "", limit: int = 1000) -> list[ObjectSize]:
        found = await self.paths(folder, after=after, limit=limit)
        return [ObjectSize(path, len(self.objects[path]), self._stored_ms[path]) for path in found]

    async def delete(self, paths: list[str]) -> None:
        self._answer()
        for path in paths:
            self.objects.pop(path, None)

    def _answer(self) -> None:
        if self.is_away:
            raise UnavailableError("no archive today")
