"""Limits on the connections of a listener: how many in all, how many per address, and how long a request head may take.

This module counts the connections, in all and per address. It also counts the half-open ones: those whose TLS handshake
or request head is not complete. It knows no protocol. The server reports each event to it, and it calls `drop` on the
connections to close.

Promises: a connection above a limit is not admitted. When a half-open connection exceeds a limit, the oldest half-open
one is closed, because an honest client sends a complete head within a moment. A closed connection is removed from the
counts at once.

An IPv6 address is counted by its first 64 bits, because one machine usually has a whole /64 network.
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
    """The limits of one listener. The limits of a head apply to every request of a connection."""

    connections: int = CONNECTIONS_MAX
    connections_per_address: int = CONNECTIONS_PER_ADDRESS_MAX
    heads: int = HEADS_MAX
    """Half-open connections."""
    heads_per_address: int = HEADS_PER_ADDRESS_MAX
    head_bytes: int = HEAD_BYTES_MAX
    """Bytes of the request line and the fields; also the limit for the trailers of a body."""
    head_fields: int = HEAD_FIELDS_MAX
    head_s: float = HEAD_S
    """Seconds from the connection, or from the first byte of a later request, to the end of the head. Includes the TLS
    handshake.
    """
    pipelined: int = PIPELINED_MAX
    """Requests of one connection that wait for an earlier one."""


class ListenerConnection:
    """One connection. The server sets `drop`, which closes the connection at once."""

    def __init__(self, book: "ListenerConnections", address: str) -> None:
        self.address = address
        self.drop: Callable[[], None] | None = None
        self._book = book
        self._is_over = False

    def head_begun(self) -> None:
        """Mark the connection as half open."""
        if not self._is_over:
            self._book.half_open(self)

    def head_done(self) -> None:
        """Mark the head as complete."""
        self._book.whole(self)

    def closed(self) -> None:
        """Remove the connection from the counts. A second call changes nothing."""
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
        """Count a new connection from `host` as half open and return it; None when there are too many."""
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
        """Called by `ListenerConnection`: count it as half open. Above a limit, drop the oldest of its address, or of
        all.
        """
        if visit in self._all_heads:
            return
        own = self._heads.setdefault(visit.address, {})
        own[visit] = self._all_heads[visit] = None
        if len(own) > self.limits.heads_per_address:
            self._drop(next(iter(own)))
        elif len(self._all_heads) > self.limits.heads:
            self._drop(next(iter(self._all_heads)))

    def whole(self, visit: ListenerConnection) -> None:
        """Called by `ListenerConnection`: count it as half open no longer."""
        if visit not in self._all_heads:
            return
        del self._all_heads[visit]
        own = self._heads[visit.address]
        del own[visit]
        if not own:
            del self._heads[visit.address]

    def left(self, visit: ListenerConnection) -> None:
        """Called by `ListenerConnection`: remove it from all counts."""
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
    """Return the key by which a host is counted.

    The key is the address, or the first 64 bits of an IPv6 address. A text that is no address is its own key.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(int(address) >> (128 - _NETWORK_BITS))
