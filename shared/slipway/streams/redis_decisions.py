"""The decision log on Redis: one stream per pool."""

from slipway.streams import codec, keys, pages, rows, scripts
from slipway.streams.client import RedisClient, command
from slipway.streams.decisions import DecisionEntry, DecisionLogLimits, StoredDecision
from slipway.streams.ports import Tally


class RedisDecisions:
    """The `DecisionLog` on Redis."""

    def __init__(self, client: RedisClient, tally: Tally) -> None:
        self._client, self._tally = client, tally

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None, caps: DecisionLogLimits) -> str | None:
        codec.check_decision(entry, caps)
        fields = rows.flat(codec.encode_decision(entry))
        key, limits = keys.decisions(pool), (caps.entries, caps.size, len(entry.data))
        written: bytes = await scripts.run(self._client, scripts.DECISIONS, key, base or "", *limits, *fields)
        return written.decode() or None

    async def read(self, pool: str, *, after: str | None = None, limit: int = 100) -> list[StoredDecision]:
        start = pages.id_text(pages.start_of(after))
        each = command("XRANGE", keys.decisions(pool), f"({start}", "+", "COUNT", limit)
        return pages.decisions(rows.entries(await self._client.run(each)), self._tally)
