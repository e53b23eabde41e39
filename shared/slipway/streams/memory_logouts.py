"""The `Logouts` in memory. Must not import redis."""

from collections.abc import Mapping
from functools import partial

from slipway.streams import codec, keys, pages
from slipway.streams.logouts import LogoutPage
from slipway.streams.memory_server import MemoryServer, pipeline


class MemoryLogouts:
    """The `Logouts` on the server model."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def append(self, ended: Mapping[str, float]) -> None:
        await self._server.enter("logouts.append")
        key, cap = keys.LOGOUTS.prefix, keys.LOGOUTS.length_max
        pipeline(
            partial(self._server.add, key, codec.encode_logout(login, ends_at), length_max=cap)
            for login, ends_at in ended.items()
        )

    async def read(self, after: str | None, *, limit: int) -> LogoutPage:
        start, key = pages.start_of(after), keys.LOGOUTS.prefix
        await self._server.enter("logouts.read")
        if self._server.end(key) < start:
            return LogoutPage(ended={}, cursor=None, is_lost=True)
        return pages.logouts(self._server.after(key, start, limit), after, limit)

    async def keep(self, login: str, text: str, ttl_s: int) -> None:
        await self._server.enter("logouts.keep")
        key = keys.sign_in(login)
        with self._server.script():
            self._server.hash_set(key, {"text": text.encode()})
            self._server.expire(key, ttl_s)

    async def kept(self, login: str) -> str:
        await self._server.enter("logouts.kept")
        return self._server.hash_get(keys.sign_in(login)).get("text", b"").decode()

    async def take(self, code: str, ttl_s: int) -> bool:
        await self._server.enter("logouts.take")
        key = keys.used_code(code)
        if self._server.hash_get(key):
            return False
        with self._server.script():
            self._server.hash_set(key, {"used": b"1"})
            self._server.expire(key, ttl_s)
        return True
