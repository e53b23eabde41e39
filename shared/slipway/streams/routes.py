"""The server for a command: the addresses behind a Redis URL (one server, a Sentinel's master, a Cluster).

This module owns URLs and topology: which node of a Cluster serves a slot. The library asks the Sentinels for the
master. `client.py` owns connections and the data on them. No server is asked before the first command, so an absent
Redis costs nothing at construction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote, urlsplit

import msgspec

from slipway.errors import InvalidError, UnavailableError
from slipway.streams.redis_library import (
    REDIS_CLUSTER_HASH_SLOTS,
    AbstractConnection,
    Connection,
    NoBackoff,
    Retry,
    Sentinel,
    SSLConnection,
    UnixDomainSocketConnection,
    key_slot,
    parse_url,
)
from slipway.streams.redis_library import exceptions as library

Reply = Any
"""A server's reply: None, int, bytes or a list of these (RESP 2)."""
Ask = Callable[["RedisAddress", tuple[str, ...]], Awaitable[Reply]]

_MANY_SCHEMES: Final = frozenset({"redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"})
_SENTINEL_PORT: Final = 26_379
_REDIS_PORT: Final = 6_379
_SENTINEL_S: Final = 0.5
"""The timeout of one Sentinel, in seconds; then the next one is asked."""


class RedisAddress(msgspec.Struct, frozen=True):
    """One server: a host and port, or the path of a socket."""

    host: str = ""
    port: int = 0
    path: str = ""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a URL besides the address; never shown."""

    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False
    options: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return f"Login(db={self.db}, tls={self.tls})"


class Route(Protocol):
    """Finds the server for a key. `forget` drops the learned topology when an answer shows that it is out of date."""

    @property
    def is_known(self) -> bool: ...
    async def find(self, key: str) -> RedisAddress: ...
    def forget(self) -> None: ...


class SingleServer:
    """One server at a fixed address."""

    is_known = True

    def __init__(self, address: RedisAddress) -> None:
        self.address = address

    async def find(self, key: str) -> RedisAddress:
        return self.address

    def forget(self) -> None:
        """Does nothing, because the address is fixed."""


class SentinelMaster:
    """The master of a service, found through the Sentinels."""

    def __init__(self, sentinels: tuple[RedisAddress, ...], service: str, login: Login) -> None:
        self._sentinels, self._service, self._login = sentinels, service, login
        self._master: RedisAddress | None = None

    @property
    def is_known(self) -> bool:
        """Whether `find` returns without asking a server."""
        return self._master is not None

    async def find(self, key: str) -> RedisAddress:
        if self._master is None:
            self._master = await self._discover()
        return self._master

    def forget(self) -> None:
        self._master = None

    async def _discover(self) -> RedisAddress:
        addresses = [(each.host, each.port) for each in self._sentinels]
        # The login in the URL is for the master. The Sentinels receive no login, but the same certificates.
        certificates = {name: value for name, value in self._login.options.items() if name.startswith("ssl_")}
        options: dict[str, Any] = {
            **certificates,
            "ssl": self._login.tls,
            "socket_timeout": _SENTINEL_S,
            "socket_connect_timeout": _SENTINEL_S,
            "driver_info": None,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        try:
            async with Sentinel(addresses, sentinel_kwargs=options) as sentinels:
                found = cast("tuple[str, int]", await sentinels.discover_master(self._service))
        except (library.RedisError, OSError, RuntimeError) as exc:
            raise UnavailableError(f"no sentinel names a master: {type(exc).__name__}") from exc
        return RedisAddress(*found)


class UncoveredError(UnavailableError):
    """No node of the cluster serves the slot; other slots may be served."""


class ClusterSlots:
    """The masters of a Redis Cluster by slot: learned from any node, corrected by every MOVED."""

    def __init__(self, seeds: tuple[RedisAddress, ...], ask: Ask) -> None:
        self._seeds, self._ask = seeds, ask
        self._known: list[RedisAddress] = list(seeds)
        self._slots: list[RedisAddress | None] = []
        self._turn = asyncio.Lock()

    @property
    def is_known(self) -> bool:
        """Whether `find` returns without asking a server."""
        return bool(self._slots)

    async def find(self, key: str) -> RedisAddress:
        while not self._slots:
            async with self._turn:
                if not self._slots:
                    await self._discover()
        address = self._slots[key_slot(key.encode())]
        if address is None:
            self.forget()
            raise UncoveredError("no node of the redis cluster serves the slot")
        return address

    def forget(self) -> None:
        self._slots = []

    def learn(self, slot: int, address: RedisAddress) -> None:
        """Record a node's answer about the server of a slot."""
        if self._slots:
            self._slots[slot] = address

    async def _discover(self) -> None:
        for address in tuple(self._known):
            # If the time of the caller ends here, the next look begins with another node.
            self._known = [*(each for each in self._known if each != address), address]
            try:
                reply = await self._ask(address, ("CLUSTER", "SLOTS"))
            except UnavailableError:
                continue
            if not isinstance(reply, list):
                continue  # not a cluster, or still loading
            slots: list[RedisAddress | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
            nodes: dict[RedisAddress, None] = {}
            for row in cast("list[list[Any]]", reply):
                first, last, *members = row
                found = [_node(member, address) for member in members]
                slots[first : last + 1] = [found[0]] * (last + 1 - first)
                nodes |= dict.fromkeys(found)
            # The node that answered last is asked first. The seeds stay in the list, in case all other nodes are
            # replaced.
            self._known = list(dict.fromkeys((address, *nodes, *self._seeds)))
            self._slots = slots
            return
        raise UnavailableError("no node of the redis cluster answers")


def _node(member: list[Any], asked: RedisAddress) -> RedisAddress:
    """Return a node of a CLUSTER SLOTS reply. An unknown host means the node that was asked."""
    host = bytes(member[0] or b"").decode()
    return RedisAddress(host if host not in ("", "?") else asked.host, int(member[1]))


def parse(url: str, *, ask: Ask) -> tuple[Route, Login]:
    """Return the route and the login of a URL. Raises `InvalidError`, which never contains the URL and its password."""
    scheme = url.partition("://")[0]
    try:
        if scheme in _MANY_SCHEMES:
            return _parse_many(url, ask)
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError as exc:
        raise InvalidError(
            "not a Redis URL: redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://"
        ) from exc
    tls = options.pop("connection_class", None) is SSLConnection
    address = RedisAddress(
        host=options.pop("host", "localhost") if scheme != "unix" else "",
        port=options.pop("port", _REDIS_PORT) if scheme != "unix" else 0,
        path=options.pop("path", ""),
    )
    login = Login(
        username=options.pop("username", None),
        password=options.pop("password", None),
        db=options.pop("db", 0),
        tls=tls,
        options=options,
    )
    return SingleServer(address), login


def _parse_many(url: str, ask: Ask) -> tuple[Route, Login]:
    """`redis+cluster://[[user]:password@]host[:port],...` or `redis+sentinel://.../<service>[/<db>]`.

    The query sets options of the connections, as for one server (`?ssl_ca_certs=/path`).
    """
    # Parsed by hand, because several hosts are no valid URL. Newer Pythons also refuse the brackets of an IPv6 address
    # after another host.
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("#")[0].partition("?")
    netloc, _, path = rest.partition("/")
    is_cluster = scheme.lower().endswith("+cluster")
    base = scheme.lower().partition("+")[0]
    credentials, _, hosts = netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    nodes = tuple(_host_and_port(each, _REDIS_PORT if is_cluster else _SENTINEL_PORT) for each in hosts.split(","))
    service, _, db = path.strip("/").partition("/")
    if is_cluster:
        if service not in ("", "0") or db:
            raise ValueError("a Redis Cluster has no databases")
    elif not service:
        raise ValueError("a Sentinel URL names a service")
    options: dict[str, Any] = dict(parse_url(f"{base}://?{query}"))
    tls = options.pop("connection_class", None) is SSLConnection
    login = Login(
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=int(db or 0),
        tls=tls,
        options=options,
    )
    return (ClusterSlots(nodes, ask) if is_cluster else SentinelMaster(nodes, service, login)), login


def _host_and_port(text: str, port: int) -> RedisAddress:
    parts = urlsplit(f"//{text}")  # handles the brackets of IPv6
    if not parts.hostname:
        raise ValueError("a node without a host")
    return RedisAddress(parts.hostname, parts.port or port)


def make_connection(address: RedisAddress, login: Login, *, timeout_s: float, name: str) -> AbstractConnection:
    """Return an unconnected connection, without retries and without a read timeout (the caller limits each call)."""
    options: dict[str, Any] = {
        **login.options,
        "username": login.username,
        "password": login.password,
        "db": login.db,
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "client_name": name,
        "driver_info": None,
        "protocol": 2,
    }
    if address.path:
        return UnixDomainSocketConnection(path=address.path, **options)
    kind = SSLConnection if login.tls else Connection
    return kind(host=address.host, port=address.port, **options)
