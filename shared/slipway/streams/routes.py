"""Where a command goes: the addresses behind a Redis URL (one server, a Sentinel's master, a Cluster).

Owns URLs and topology. `client.py` owns connections and what travels over them. Nothing here is asked before
the first command, so an absent Redis costs nothing at construction.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.crc import key_slot

from slipway.errors import InvalidError, UnavailableError

Reply = Any
"""What a server answers: None, int, bytes or a list of these (RESP 2)."""
Ask = Callable[["Address", tuple[str, ...]], Awaitable[Reply]]

_SENTINEL_SCHEMES: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_SENTINEL_PORT: Final = 26_379
_REDIS_PORT: Final = 6_379


class Address(msgspec.Struct, frozen=True):
    """One server: a host and port, or the path of a socket."""

    host: str = ""
    port: int = 0
    path: str = ""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says beyond the address; never shown."""

    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False
    options: Mapping[str, Any] = {}

    def without_db(self) -> "Login":
        """The same account, for servers without databases (Sentinels, cluster nodes)."""
        return msgspec.structs.replace(self, db=0)

    def __repr__(self) -> str:
        return f"Login(db={self.db}, tls={self.tls})"


class Route(Protocol):
    """Names the server for a key; `forget` drops what was learned when an answer shows that it is out of date."""

    async def find(self, key: str) -> Address: ...
    def forget(self) -> None: ...


class Single:
    """One server at a fixed address."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def find(self, key: str) -> Address:
        return self._address

    def forget(self) -> None:
        """Nothing was learned."""


class SentinelMaster:
    """The master of a service, asked of the Sentinels in turn."""

    def __init__(self, sentinels: tuple[Address, ...], service: str, ask: Ask) -> None:
        self._sentinels, self._service, self._ask = sentinels, service, ask
        self._master: Address | None = None

    async def find(self, key: str) -> Address:
        if self._master is None:
            self._master = await self._discover()
        return self._master

    def forget(self) -> None:
        self._master = None

    async def _discover(self) -> Address:
        for sentinel in self._sentinels:
            try:
                reply = await self._ask(sentinel, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service))
            except UnavailableError:
                continue
            if isinstance(reply, list) and len(reply) == 2:  # pyright: ignore[reportUnknownArgumentType]
                host, port = (bytes(part).decode() for part in reply)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                return Address(host, int(port))
        raise UnavailableError("no sentinel names a master")


class ClusterSlots:
    """The masters of a Redis Cluster by slot."""

    def __init__(self, seed: Address, ask: Ask) -> None:
        self._seed, self._ask = seed, ask
        self._ranges: list[tuple[int, int, Address]] = []
        self._known: set[Address] = {seed}

    async def find(self, key: str) -> Address:
        if not self._ranges:
            await self._discover()
        slot = key_slot(key.encode())
        for first, last, address in self._ranges:
            if first <= slot <= last:
                return address
        self.forget()
        raise UnavailableError("the cluster does not serve the slot")

    def forget(self) -> None:
        self._ranges = []

    async def _discover(self) -> None:
        for address in (self._seed, *sorted(self._known - {self._seed}, key=repr)):
            try:
                reply: list[Reply] = await self._ask(address, ("CLUSTER", "SLOTS"))
            except UnavailableError:
                continue
            self._ranges = [(row[0], row[1], self._node(row[2], address)) for row in reply]
            self._known |= {address for _, _, address in self._ranges}
            return
        raise UnavailableError("no node of the cluster answers")

    def _node(self, node: list[Reply], asked: Address) -> Address:
        host = bytes(node[0] or b"").decode()
        return Address(host if host not in ("", "?") else asked.host, int(node[1]))


def parse(url: str, *, cluster: bool, ask: Ask) -> tuple[Route, Login]:
    """The route and the login of a URL. Raises `InvalidError` (which never repeats the URL: it may hold a password)."""
    scheme = url.partition("://")[0]
    try:
        if scheme in _SENTINEL_SCHEMES:
            return _parse_sentinel(url, ask)
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError as exc:
        raise InvalidError("not a Redis URL: redis://, rediss://, unix:// or redis+sentinel://") from exc
    tls = options.pop("connection_class", None) is SSLConnection
    address = Address(
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
    return (ClusterSlots(address, ask) if cluster else Single(address)), login


def _parse_sentinel(url: str, ask: Ask) -> tuple[Route, Login]:
    """`redis+sentinel://[user[:password]@]host[:port],host[:port]/<service>[/<db>]`."""
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    sentinels: list[Address] = []
    for each in hosts.split(","):
        host, _, port = each.partition(":")
        sentinels.append(Address(host, int(port or _SENTINEL_PORT)))
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("a Sentinel URL names a service")
    login = Login(
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=int(db or 0),
        tls=parts.scheme.startswith("rediss"),
    )
    return SentinelMaster(tuple(sentinels), service, ask), login


def make_connection(address: Address, login: Login, *, timeout_s: float, name: str) -> AbstractConnection:
    """A connection, not yet connected: no retries, no timeout of its own on reads (the caller bounds each call)."""
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
