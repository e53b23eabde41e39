"""Remembers which logins were ended by their users, on all replicas, and which one-time codes were used.

Owns the memory of this process, and the loop that reads the logouts of other replicas every `LOOK_S`. Redis transports
logouts between replicas and is not the source of truth. This process remembers every logout that it knows, and writes
it again when Redis has lost it or was unavailable.

Promises: a login that was ended on this replica is refused here from then on. Every other replica refuses it after at
most two of its reads, which is less than ten seconds. While Redis is unavailable this is not promised: other replicas
learn of the logout when Redis is back, or refuse the login when it expires. A revoked token ends its logins without
Redis. A one-time code is accepted once on all replicas, and once on each replica while Redis is unavailable.
"""

import contextlib
from collections import OrderedDict

from slipway.errors import TransientError
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.streams.ports import Logouts

LOOK_S = 2.0
BACKOFF_S = 5.0
ENDED_MAX = 50_000
"""Limit of remembered logouts; beyond it, logouts of the logins that expire first are forgotten."""
CODES_MAX = 10_000
PAGE = 1_000

_log = log.get_logger(__name__)


class EndedSessions:
    """Ended logins and used codes, by id."""

    def __init__(self, logouts: Logouts, clock: Clock) -> None:
        self._logouts = logouts
        self._clock = clock
        self._ended: dict[str, float] = {}
        """{id of an ended session: when it would have expired, epoch seconds}"""
        self._unsent: dict[str, float] = {}
        """the part of `_ended` that is not yet written to Redis"""
        self._codes: OrderedDict[str, float] = OrderedDict()
        """{id of a used code: when the code expires, epoch seconds}"""
        self._cursor: str | None = None
        self._is_away = False

    def has(self, session: str) -> bool:
        """Whether the session was logged out."""
        return session in self._ended

    async def end(self, session: str, ends_at: float) -> bool:
        """End a login. Return whether the logout was sent to the other replicas; if not, the next look sends it."""
        self._ended[session] = ends_at
        self._unsent[session] = ends_at
        try:
            await self._send()
        except TransientError as error:
            _log.warning("logout not sent to the other replicas yet", why=str(error))
            return False
        return True

    async def take(self, code: str, life_s: float) -> bool:
        """Whether this is the first use of a code."""
        now = self._clock.now()
        while self._codes and (next(iter(self._codes.values())) <= now or len(self._codes) >= CODES_MAX):
            self._codes.popitem(last=False)
        # Codes have different lifetimes, so an expired code can be behind an older code that is still valid.
        if self._codes.get(code, 0.0) > now:
            return False
        self._codes.pop(code, None)
        self._codes[code] = now + life_s
        try:
            return await self._logouts.take(code, int(life_s))
        except TransientError:
            return True

    async def share(self, session: str, text: str, life_s: float) -> None:
        """Share the newest state of a session with the other replicas. It is not shared while Redis is unavailable."""
        with contextlib.suppress(TransientError):
            await self._logouts.keep(session, text, max(1, int(life_s)))

    async def shared(self, session: str) -> str:
        """Return the state that a replica shared last; empty when there is none, or Redis is unavailable."""
        try:
            return await self._logouts.kept(session)
        except TransientError:
            return ""

    async def look(self) -> None:
        """Read the logouts of other replicas, and send the logouts that were not sent yet."""
        self._forget()
        try:
            await self._send()
            await self._learn()
        except TransientError as error:
            if not self._is_away:
                _log.warning("logouts of other replicas not read", why=str(error))
            self._is_away = True
            return
        if self._is_away:
            _log.info("logouts of other replicas read again")
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
