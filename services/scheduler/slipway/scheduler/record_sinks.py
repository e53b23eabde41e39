"""The stores of the decision log: a stream, or a file. They do not know what an entry means."""

from pathlib import Path

from slipway.errors import UnavailableError
from slipway.scheduler.decisions.logfile import line_of
from slipway.streams.decisions import DecisionEntry, DecisionLog, DecisionLogLimits
from slipway.streams.keys import DECISIONS

OLD_SUFFIX = ".1"
FILE_BYTES_MAX = 256 * 1024 * 1024


class StreamSink:
    """A stream in Redis, which the api reads."""

    def __init__(self, decisions: DecisionLog, *, size_max: int) -> None:
        self._decisions = decisions
        self._caps = DecisionLogLimits(entries=DECISIONS.length_max, size=size_max)

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None) -> str | None:
        return await self._decisions.append(pool, entry, base=base, caps=self._caps)


class FileSink:
    """A file of JSON lines, for a system without Redis.
    Beyond its maximum size it begins again, and one old file is kept."""

    def __init__(self, path: Path, *, size_max: int) -> None:
        self._path = path
        self._size_max = size_max

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None) -> str | None:
        line = line_of(pool, entry)
        try:
            size = self._path.stat().st_size if self._path.exists() else 0
            if base is not None and size == 0:
                return None
            if size and size + len(line) > self._size_max:
                self._path.replace(self._path.with_name(self._path.name + OLD_SUFFIX))
                if base is not None:
                    return None
            with self._path.open("ab") as file:
                file.write(line)
        except OSError as exc:
            raise UnavailableError(f"{self._path}: {exc.strerror or exc}") from exc
        return f"{entry.tick}-{entry.number}"
