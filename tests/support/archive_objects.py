"""An object store in memory: the fake behind the port of the archive of logs."""

from slipway.errors import UnavailableError


class MemoryObjects:
    """See `ArchiveObjects`. While `is_away`, each call raises UnavailableError."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_away = False

    async def create(self, path: str, data: bytes) -> bool:
        self._answer()
        return self.objects.setdefault(path, data) is data

    async def put(self, path: str, data: bytes) -> None:
        self._answer()
        self.objects[path] = data

    async def get(self, path: str) -> bytes | None:
        self._answer()
        return self.objects.get(path)

    async def paths(self, folder: str, *, after: str = "", limit: int = 1000) -> list[str]:
        self._answer()
        return sorted(path for path in self.objects if path.startswith(folder) and path > after)[:limit]

    async def sizes(self, folder: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, int]]:
        return [(path, len(self.objects[path])) for path in await self.paths(folder, after=after, limit=limit)]

    async def delete(self, paths: list[str]) -> None:
        self._answer()
        for path in paths:
            self.objects.pop(path, None)

    def _answer(self) -> None:
        if self.is_away:
            raise UnavailableError("no archive today")
