"""How many connections a listener holds, from where, and how long one may take to say what it wants.

Owns the count of connections, in all and for each address, and of half-open ones: those whose TLS handshake or request
head is not whole yet. It knows no protocol: the server tells it what happens, and is told what to close.

Promises: a connection above a limit is not admitted; a half-open one above its limit takes the place of the oldest
half-open one, because an honest head is whole within a moment; what is closed is forgotten at once.

An IPv6 address counts by its first 64 bits: that is what one machine is given.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable

import msgspec

from slipway.runtime import telemetry

HEAD_BYTES_MAX = 16 * 1024
HEAD_FIELDS_MAX = 100
HEAD_S = 10.0
CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX = 4096, 2048
HEADS_MAX, HEADS_PER_ADDRESS_MAX = 512, 128
PIPELINED_MAX = 16
_NETWORK_BITS = 64


class ListenerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one listener takes; each connection has the limits of a head for every request."""

    connections: int = CONNECTIONS_MAX
    connections_per_address: int = CONNECTIONS_PER_ADDRESS_MAX
    heads: int = HEADS_MAX
    """connections that are half open"""
    heads_per_address: int = HEADS_PER_ADDRESS_MAX
    head_bytes: int = HEAD_BYTES_MAX
    """of request line and fields, and of the trailers of a body"""
    head_fields: int = HEAD_FIELDS_MAX
    head_s: float = HEAD_S
    """from the connection, or the first byte of a later request, to the end of the head; TLS handshake included"""
    pipelined: int = PIPELINED_MAX
    """requests of one connection that wait for the one before"""


class ListenerConnection:
    """One connection. `drop`, set by the server, closes it at once."""

    def __init__(self, book: "ListenerConnections", address: str) -> None:
        self.address = address
        self.drop: Callable[[], None] | None = None
        self._book = book
        self._is_over = False

    def head_begun(self) -> None:
        """It is half open from now on."""
        if not self._is_over:
            self._book.half_open(self)

    def head_done(self) -> None:
        """Its head is whole."""
        self._book.whole(self)

    def closed(self) -> None:
        """It is gone; once more changes nothing."""
        if not self._is_over:
            self._is_over = True
            self._book.left(self)


class ListenerConnections:
    """The connections of one listener."""

    def __init__(self, limits: ListenerLimits) -> None:
        self.limits = limits
        self._open: Counter[str] = Counter()
        self._total = 0
        self._heads: dict[str, dict[ListenerConnection, None]] = {}
        self._all_heads: dict[ListenerConnection, None] = {}

    def admit(self, host: str) -> ListenerConnection | None:
        """A connection of `host`, half open; None when there are too many."""
        address = network_of(host)
        if self._total >= self.limits.connections:
            return refused("connections")
        if self._open[address] >= self.limits.connections_per_address:
            return refused("address")
        self._total += 1
        self._open[address] += 1
        visit = ListenerConnection(self, address)
        self.half_open(visit)
        return visit

    def half_open(self, visit: ListenerConnection) -> None:
        """Of `ListenerConnection`: note it; when there are too many, drop the oldest of its address, or of all."""
        if visit in self._all_heads:
            return
        own = self._heads.setdefault(visit.address, {})
        own[visit] = self._all_heads[visit] = None
        if len(own) > self.limits.heads_per_address:
            self._drop(next(iter(own)))
        elif len(self._all_heads) > self.limits.heads:
            self._drop(next(iter(self._all_heads)))

    def whole(self, visit: ListenerConnection) -> None:
        """Of `ListenerConnection`: it is not half open."""
        if visit not in self._all_heads:
            return
        del self._all_heads[visit]
        own = self._heads[visit.address]
        del own[visit]
        if not own:
            del self._heads[visit.address]

    def left(self, visit: ListenerConnection) -> None:
        """Of `ListenerConnection`: forget it."""
        self.whole(visit)
        self._total -= 1
        self._open[visit.address] -= 1
        if not self._open[visit.address]:
            del self._open[visit.address]

    def _drop(self, visit: ListenerConnection) -> None:
        refused("heads")
        self.whole(visit)
        if visit.drop is not None:
            visit.drop()


def refused(why: str) -> None:
    """Count a connection that is closed, or a request that is refused, because of a limit."""
    telemetry.HTTP_REFUSED.labels(reason=why).inc()


def network_of(host: str) -> str:
    """What an address counts by: itself, or the first 64 bits of an IPv6 one; a text that is no address as it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(int(address) >> (128 - _NETWORK_BITS))
