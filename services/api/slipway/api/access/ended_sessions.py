"""Which logins were ended by their users, on all replicas, and which one-time codes were used.

Owns what this process remembers of it, and the look at what others have ended, every `LOOK_S`. Redis carries it from
one replica to the others and is not the truth: what this process knows it keeps, and writes again when Redis has lost
it or was away.

Promises: a login that was ended here opens nothing here from then on, and nothing on any other replica after two looks,
which is less than ten seconds. Not promised while Redis is away: then other replicas know of it when Redis is back, or
when the login's time is over; a token that is revoked ends its logins without Redis. A one-time code is good once on
all replicas; while Redis is away, once on each.
"""

import contextlib
from collections import OrderedDict

from slipway.errors import TransientError
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.streams.logouts import Logouts

LOOK_S = 2.0
BACKOFF_S = 5.0
ENDED_MAX = 50_000
"""Beyond it, those that end by themselves first are forgotten."""
CODES_MAX = 10_000
PAGE = 1_000

_log = log.get_logger(__name__)


class EndedSessions:
    """What has ended, by id."""

    def __init__(self, logouts: Logouts, clock: Clock) -> None:
        self._logouts = logouts
        self._clock = clock
        self._ended: dict[str, float] = {}
        """{id of a session: when it would have ended by itself}"""
        self._unsent: dict[str, float] = {}
        self._codes: OrderedDict[str, float] = OrderedDict()
        """{id of a code: when it is over}"""
        self._cursor: str | None = None
        self._is_away = False

    def has(self, session: str) -> bool:
        """Whether it was logged out."""
        return session in self._ended

    async def end(self, session: str, ends_at: float) -> bool:
        """End a login. Answers whether the other replicas were told; if not, the next look tells them."""
        self._ended[session] = ends_at
        self._unsent[session] = ends_at
        try:
            await self._send()
        except TransientError as error:
            _log.warning("logout not told to other replicas yet", why=str(error))
            return False
        return True

    async def take(self, code: str, life_s: float) -> bool:
        """Whether this is the first use of a code."""
        now = self._clock.now()
        while self._codes and (next(iter(self._codes.values())) <= now or len(self._codes) >= CODES_MAX):
            self._codes.popitem(last=False)
        # Codes have lives of different lengths: the oldest need not be the first that is over.
        if self._codes.get(code, 0.0) > now:
            return False
        self._codes.pop(code, None)
        self._codes[code] = now + life_s
        try:
            return await self._logouts.take(code, int(life_s))
        except TransientError:
            return True

    async def share(self, session: str, text: str, life_s: float) -> None:
        """Tell the other replicas what has become of a session. While Redis is away, only this replica knows it."""
        with contextlib.suppress(TransientError):
            await self._logouts.keep(session, text, max(1, int(life_s)))

    async def shared(self, session: str) -> str:
        """What a replica let others know last; empty when it did not, or Redis does not know it."""
        try:
            return await self._logouts.kept(session)
        except TransientError:
            return ""

    async def look(self) -> None:
        """Learn what others have ended, and tell them what they may not know."""
        self._forget()
        try:
            await self._send()
            await self._learn()
        except TransientError as error:
            if not self._is_away:
                _log.warning("logouts of other replicas not known for now", why=str(error))
            self._is_away = True
            return
        if self._is_away:
            _log.info("logouts of other replicas known again")
        self._is_away = False

    async def _send(self) -> None:
        sent = dict(self._unsent)
        if not sent:
            return
        await self._logouts.append(sent)
        for session in sent:
            self._unsent.pop(session, None)

    async def _learn(self) -> None:
        while True:
            page = await self._logouts.read(self._cursor, limit=PAGE)
            if page.is_lost:
                self._cursor = None
                self._unsent.update(self._ended)
                await self._send()
                continue
            self._ended.update(page.ended)
            self._cursor = page.cursor
            if not page.has_more:
                return

    def _forget(self) -> None:
        now = self._clock.now()
        kept = {session: ends_at for session, ends_at in self._ended.items() if ends_at > now}
        if len(kept) > ENDED_MAX:
            kept = dict(sorted(kept.items(), key=lambda each: each[1])[-ENDED_MAX:])
        self._ended = kept
        self._unsent = {session: ends_at for session, ends_at in self._unsent.items() if session in kept}
