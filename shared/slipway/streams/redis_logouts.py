"""The `Logouts` on Redis.

They are a capped stream of ended logins, and one key with an expiry for each used code and each renewed login.

Source: https://redis.io/docs/latest/commands/set/ (NX)
"""

from collections.abc import Mapping

from slipway.streams import codec, keys, pages, rows
from slipway.streams.client import RedisClient, command
from slipway.streams.logouts import LogoutPage


class RedisLogouts:
    """The `Logouts` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def append(self, ended: Mapping[str, float]) -> None:
        key, cap = keys.LOGOUTS.prefix, ("MAXLEN", "~", keys.LOGOUTS.length_max, "*")
        fields = [codec.encode_logout(login, ends_at) for login, ends_at in ended.items()]
        rows.checked(await self._client.pipeline([command("XADD", key, *cap, *rows.flat(each)) for each in fields]))

    async def read(self, after: str | None, *, limit: int) -> LogoutPage:
        start, key = pages.start_of(after), keys.LOGOUTS.prefix
        newest = rows.entries(await self._client.run(command("XREVRANGE", key, "+", "-", "COUNT", 1)))
        if (newest[0][0] if newest else pages.ZERO) < start:
            return LogoutPage(ended={}, cursor=None, is_lost=True)
        reply = await self._client.run(command("XRANGE", key, f"({pages.id_text(start)}", "+", "COUNT", limit))
        return pages.logouts(rows.entries(reply), after, limit)

    async def keep(self, login: str, text: str, ttl_s: int) -> None:
        await self._client.run(command("SET", keys.sign_in(login), text, "EX", ttl_s))

    async def kept(self, login: str) -> str:
        found = await self._client.run(command("GET", keys.sign_in(login)))
        return found.decode("ascii", "replace") if isinstance(found, bytes) else ""

    async def take(self, code: str, ttl_s: int) -> bool:
        return await self._client.run(command("SET", keys.used_code(code), "1", "NX", "EX", ttl_s)) is not None
