"""The decision log in memory: the twin of `lua/decisions.lua`, on the server model. Must not import redis."""

from slipway.streams import codec, keys, pages
from slipway.streams.decisions import DecisionEntry, DecisionLogLimits, StoredDecision
from slipway.streams.memory_server import MemoryServer
from slipway.streams.ports import Tally

_SUM = "s"


class MemoryDecisions:
    """The `DecisionLog` in memory."""

    def __init__(self, server: MemoryServer, tally: Tally) -> None:
        self._server, self._tally = server, tally

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None, caps: DecisionLogLimits) -> str | None:
        codec.check_decision(entry, caps)
        await self._server.enter("decisions.append")
        with self._server.script():
            return self._append(keys.decisions(pool), entry, base, caps)

    def _append(self, key: str, entry: DecisionEntry, base: str | None, caps: DecisionLogLimits) -> str | None:
        newest = self._server.newest(key, 1)
        total = (int(newest[0][1].get(_SUM, b"0")) if newest else 0) + len(entry.data)
        stream = self._server.stream(key)
        while stream is not None and stream.entries:
            oldest_id, oldest = next(iter(stream.entries.items()))
            before = int(oldest.get(_SUM, b"0")) - len(oldest.get("d", b""))
            if oldest.get("n") == b"0" and len(stream.entries) < caps.entries and total - before <= caps.size:
                break
            self._server.remove(key, oldest_id)
        if base is not None and (stream is None or codec.cursor_parts(base) not in stream.entries):
            return None
        return pages.id_text(self._server.add(key, {_SUM: b"%d" % total, **codec.encode_decision(entry)}))

    async def read(self, pool: str, *, after: str | None = None, limit: int = 100) -> list[StoredDecision]:
        start = pages.start_of(after)
        await self._server.enter("decisions.read")
        return pages.decisions(self._server.after(keys.decisions(pool), start, limit), self._tally)
