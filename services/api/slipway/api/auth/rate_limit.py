"""Limits on requests, and on credentials that are refused: token buckets, refilled at a constant rate.

Requests: each user, or each address, has a bucket. The number of buckets is bounded: the least recently used bucket is
dropped first. A dropped bucket starts full again, so a user whose bucket was full loses nothing. The limit is per
process: N replicas allow N times the rate.

Refused credentials: each client address has a bucket of refusals, and a cache has the credentials that were refused
lately. This module does not know how a credential is checked. When an address has used up its refusals, its new
credentials are not checked, because a check can be a remote request (a TokenReview, the keys of an issuer). A
credential that was just refused is refused again from the cache.

Promises: a credential that was valid within `KNOWN_S` passes, whatever other callers with its address do, because many
callers have one address behind a proxy or a NAT. A check in progress is counted as a refusal until it has succeeded, so
a burst causes no more checks than a sequence. At most one check per credential runs at a time, and a credential is
counted once in `REFUSED_S`. The cache is bounded, and stores hashes only. Not promised: that replicas share their
counts.

IPv6 addresses with the same first 64 bits are one address, because one machine gets a whole /64.
"""

import asyncio
import contextlib
import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from weakref import WeakValueDictionary

from starlette.requests import HTTPConnection

from slipway.api.auth.bearer import claims_of
from slipway.api.auth.principal import Authenticator, Principal
from slipway.api.auth.session import credential
from slipway.api.http.errors import ForbiddenError, UnauthorizedError
from slipway.api.http.networks import Network, is_within
from slipway.api.http.ttl_cache import Throttle, TtlCache
from slipway.errors import ThrottledError
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.runtime.connections import network_of

USERS_MAX = 10_000


class RateLimiter:
    """The buckets of all users; `rate_per_s` 0 means no limit."""

    def __init__(self, clock: Clock, *, rate_per_s: float, burst: int, users_max: int = USERS_MAX) -> None:
        self._clock = clock
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._users_max = users_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """{user: (calls that remain, monotonic time of that count)}, the user who called last at the end"""

    def take(self, user: str) -> None:
        """Count one call. Raises ThrottledError, with the time after which a retry is accepted."""
        wait_s = self.try_take(user)
        if wait_s:
            raise ThrottledError(
                f"{user[:128]} calls more often than {self._rate_per_s:g} times a second, and has used up a burst of "
                f"{self._burst} (SLIPWAY_RATE_PER_S, SLIPWAY_RATE_BURST)",
                retry_after_s=wait_s,
            )

    def try_take(self, user: str) -> float:
        """Count one call if the bucket allows it. Return 0 if so, else the seconds until the bucket allows it."""
        if not self._rate_per_s:
            return 0.0
        now = self._clock.monotonic()
        left, at = self._buckets.pop(user, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate_per_s)
        taken = left >= 1.0
        self._buckets[user] = (left - 1.0 if taken else left, now)
        while len(self._buckets) > self._users_max:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._rate_per_s

    def give_back(self, user: str) -> None:
        """Refund one call."""
        if user in self._buckets:
            left, at = self._buckets[user]
            self._buckets[user] = (min(float(self._burst), left + 1.0), at)


REFUSED_S = 5.0
"""How long a refusal is repeated from the cache: a token that has just become valid may be refused that long."""
KNOWN_S = 60.0
CREDENTIALS_MAX = 16_384
TOLD_S = 60.0
FORWARDED = "x-forwarded-for"
_HOPS_MAX = 32
_Refusal = UnauthorizedError | ForbiddenError

_log = log.get_logger(__name__)


class RefusalLimiter:
    """Counts and remembers refusals.

    One address may cause `per_s` refusals a second, and `burst` at once; `per_s` 0 means no limit. `trusted` are the
    networks of proxies whose X-Forwarded-For is trusted.
    """

    def __init__(self, clock: Clock, *, per_s: float, burst: int, trusted: Sequence[Network] = ()) -> None:
        self._addresses = RateLimiter(clock, rate_per_s=per_s, burst=burst)
        self._per_s, self._burst = per_s, burst
        self._trusted = trusted
        self._refused = TtlCache[str, _Refusal](clock, ttl_s=REFUSED_S, keys_max=CREDENTIALS_MAX)
        self._known = TtlCache[str, bool](clock, ttl_s=KNOWN_S, keys_max=CREDENTIALS_MAX)
        self._told = Throttle(clock, every_s=TOLD_S)
        self._checking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def address_of(self, connection: HTTPConnection) -> str:
        """Return the address that a request is counted for: the nearest address that is not a trusted proxy."""
        found = connection.client.host if connection.client else ""
        hops = [hop.strip() for value in connection.headers.getlist(FORWARDED) for hop in value.split(",")]
        for hop in reversed(hops[-_HOPS_MAX:]):
            if not self._is_trusted(found) or not _is_address(hop):
                break
            found = hop
        return network_of(found)

    @contextlib.asynccontextmanager
    async def tried(
        self, connection: HTTPConnection, secret: str, *, is_remembered: bool = True
    ) -> AsyncGenerator[None]:
        """Surround the check of a credential; an UnauthorizedError or ForbiddenError of the check is a refusal.

        Without `is_remembered`, a refusal is not repeated from the cache. This is for a check that costs nothing, or
        for a credential that is never sent twice.

        Raises:
            UnauthorizedError, ForbiddenError: the credential was refused a moment ago.
            ThrottledError: too many credentials of this address were refused.
        """
        key = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
        address = self.address_of(connection)
        if self._known.get(key):
            async with self._noted(key, address):
                yield
            return
        lock = self._checking.setdefault(key, asyncio.Lock())
        async with lock:
            refused = self._refused.get(key)
            if refused is not None and is_remembered:
                raise type(refused)(str(refused))
            is_new = refused is None and not self._known.get(key)
            if is_new:
                self._begin(address)
            async with self._noted(key, address, has_begun=is_new):
                yield

    @contextlib.asynccontextmanager
    async def _noted(self, key: str, address: str, *, has_begun: bool = False) -> AsyncGenerator[None]:
        """Remember the result of the check inside; refund the count of its address unless the result is a refusal."""
        try:
            yield
        except (UnauthorizedError, ForbiddenError) as error:
            if self._known.get(key):
                self._known.forget(key)
                self._addresses.try_take(address)
            self._refused.put(key, error)
            raise
        except BaseException:
            if has_begun:
                self._addresses.give_back(address)
            raise
        self._known.put(key, True)
        if has_begun:
            self._addresses.give_back(address)

    def _begin(self, address: str) -> None:
        wait_s = self._addresses.try_take(address)
        if not wait_s:
            return
        if self._told.may(address):
            _log.warning("credentials of one address are not checked any more", address=address, burst=self._burst)
        raise ThrottledError(
            f"the credential was not checked: {self._burst} from address {address} were refused, and further ones are "
            f"checked at {self._per_s:g} a second (SLIPWAY_REFUSALS_PER_S, SLIPWAY_REFUSALS_BURST). Send a valid "
            "token. If many users come through one proxy, an administrator names it in SLIPWAY_TRUSTED_PROXIES",
            retry_after_s=wait_s,
        )

    def _is_trusted(self, host: str) -> bool:
        return _is_address(host) and is_within(ipaddress.ip_address(host), self._trusted)


class LimitedAuth:
    """An `Authenticator` that calls `inner` within the limits.

    `asks_of_all` means that `inner` checks each token with a remote request.
    """

    def __init__(self, inner: Authenticator, refusals: RefusalLimiter, *, asks_of_all: bool) -> None:
        self._inner = inner
        self._refusals = refusals
        self._asks_of_all = asks_of_all

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """Return the caller of a request."""
        token = credential(connection)
        if not token:
            return await self._inner.authenticate(connection)
        # A refusal by a lookup in memory is not cached, so that a token that was just made is valid at once.
        is_remembered = self._asks_of_all or claims_of(token) is not None
        async with self._refusals.tried(connection, token, is_remembered=is_remembered):
            return await self._inner.authenticate(connection)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
