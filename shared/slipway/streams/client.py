"""Connections to Redis: the only place where redis.asyncio is built and its errors are named.

Owns the pool, deadlines, the translation of errors, and the rule that keeps replies with their requests: a
connection goes back to the pool only after every reply was read; after a cancel, a timeout or any error it is
closed. Must not know what the commands mean.

Promises:

- No command is ever sent twice by itself (a lost reply leaves the outcome unknown: `DeadlineError` or
  `UnavailableError`). What is safe to repeat is known above.
- Construction does no IO and never fails for an absent server. While it is away a call fails at once
  (`UnavailableError`), except for one attempt per backoff step.
- A blocking read never waits for, nor holds up, a command: it has connections of its own.

Not promised: fairness between callers; order between calls.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

import msgspec
from redis import exceptions as library
from redis.asyncio.connection import AbstractConnection

from slipway.errors import (
    ControlPlaneError,
    DeadlineError,
    DeniedError,
    PermanentError,
    ThrottledError,
    UnavailableError,
)
from slipway.runtime.clock import Clock, Random
from slipway.streams.routes import Address, Login, Reply, SentinelMaster, make_connection, parse

Argument = str | bytes | int

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 2.0
_FAILURES_BEFORE_OPEN: Final = 3
_TRANSIENT_WORDS: Final = ("BUSY", "MISCONF", "NOREPLICAS", "UNBLOCKED", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN")


class GroupMissingError(PermanentError):
    """NOGROUP: the consumer group, or its stream, is not there (any more)."""


class ScriptMissingError(PermanentError):
    """NOSCRIPT: the server does not hold the script."""


class MovedError(UnavailableError):
    """The command did not run here: another node serves the slot."""


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach Redis; times in seconds. `url` may hold a password and is never shown."""

    url: str
    cluster: bool = False
    command_timeout_s: float = 2.0
    connect_timeout_s: float = 1.0
    connections_max: int = 32
    blocking_max: int = 512
    name: str = "slipway"

    def __repr__(self) -> str:
        return f"RedisSettings(cluster={self.cluster}, name={self.name!r})"


class Command(msgspec.Struct, frozen=True):
    """One command; `key` routes it (and is also among the arguments)."""

    key: str
    args: tuple[Argument, ...]


def command(name: str, key: str, *args: Argument) -> Command:
    """The command `name key args...`."""
    return Command(key, (name, key, *args))


class Circuit:
    """Fails fast while the server is away: after a failure nothing is tried until a jittered backoff has passed."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock, self._random = clock, random
        self._failures = 0
        self._closed_at_s = 0.0

    def check(self) -> None:
        """Raise `UnavailableError` while it is open."""
        remaining_s = self._closed_at_s - self._clock.monotonic()
        if remaining_s > 0:
            raise UnavailableError("redis is away", retry_after_s=remaining_s)

    def succeeded(self) -> None:
        """The server answered."""
        self._failures, self._closed_at_s = 0, 0.0

    def failed(self, *, at_once: bool) -> None:
        """It did not; a refused connection opens the circuit at once, a single reset or timeout does not."""
        self._failures += 1
        steps = self._failures if at_once else self._failures - _FAILURES_BEFORE_OPEN + 1
        if steps > 0:
            limit_s = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(steps - 1, 16))
            self._closed_at_s = self._clock.monotonic() + limit_s * (0.5 + 0.5 * self._random.random())


class Pool:
    """Connections to one address."""

    def __init__(self, open_connection: Callable[[], Awaitable[AbstractConnection]], size: int) -> None:
        self._open = open_connection
        self._idle: list[AbstractConnection] = []
        self._slots = asyncio.Semaphore(size)

    @asynccontextmanager
    async def lease(self) -> AsyncGenerator[AbstractConnection]:
        """A connection for one exchange; it comes back only when the block ends without any exception."""
        async with self._slots:
            connection = await self._take()
            clean = False
            try:
                yield connection
                clean = True
            finally:
                if clean:
                    self._idle.append(connection)
                else:
                    await connection.disconnect(nowait=True)

    async def close_idle(self) -> None:
        """Close what nobody uses now."""
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    async def _take(self) -> AbstractConnection:
        while self._idle:
            connection = self._idle.pop()
            # Bytes that nobody asked for, or an end of file: this connection must not serve anybody.
            if connection.is_connected and not await connection.can_read():
                return connection
            await connection.disconnect(nowait=True)
        return await self._open()


class RedisClient:
    """Runs commands on whatever the URL names."""

    def __init__(self, settings: RedisSettings, clock: Clock, random: Random) -> None:
        self._settings = settings
        self._clock = clock
        self._circuit = Circuit(clock, random)
        self._pools: dict[tuple[Address, bool], Pool] = {}
        self._route, self._login = parse(settings.url, cluster=settings.cluster, ask=self._ask)

    @property
    def is_cluster(self) -> bool:
        """Whether commands on several keys must be sent one by one."""
        return self._settings.cluster

    @property
    def clock(self) -> Clock:
        """The clock that the client runs on."""
        return self._clock

    async def run(self, each: Command) -> Reply:
        """The reply to one command. Raises what `translate` makes of an error reply."""
        reply = (await self.pipeline([each]))[0]
        if isinstance(reply, ControlPlaneError):
            raise reply
        return reply

    async def pipeline(self, commands: Sequence[Command]) -> list[Reply | ControlPlaneError]:
        """The replies to commands sent in one go, in order; an error reply is a value here.

        Not atomic. Raises `UnavailableError` or `DeadlineError` when not all replies came back: any of the
        commands may have run. In a cluster the commands of one node go together, the nodes one after the other.
        """
        replies = await self._send(commands)
        # What another node serves has not run, so it may be sent again, once, to the right one.
        moved = [place for place, reply in enumerate(replies) if isinstance(reply, MovedError)]
        if moved:
            again = await self._send([commands[place] for place in moved])
            for place, reply in zip(moved, again, strict=True):
                replies[place] = reply
        return replies

    async def ping(self) -> float:
        """Seconds of one round trip."""
        start_s = self._clock.monotonic()
        await self.run(Command("slipway", ("PING",)))
        return self._clock.monotonic() - start_s

    async def block(self, each: Command, *, block_s: float) -> Reply:
        """The reply to a command that may block for `block_s` seconds, on a connection that only blocks."""
        self._circuit.check()
        async with self._deadline(block_s + self._settings.command_timeout_s):
            reply = (await self._exchange(await self._route.find(each.key), [each], blocking=True))[0]
        self._circuit.succeeded()
        if isinstance(reply, UnavailableError):
            await self._look_again()
        if isinstance(reply, ControlPlaneError):
            raise reply
        return reply

    @asynccontextmanager
    async def _deadline(self, timeout_s: float) -> AsyncGenerator[None]:
        """Bound an exchange and translate its errors."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError as exc:
            self._circuit.failed(at_once=False)
            raise DeadlineError(f"redis did not answer within {timeout_s:g} s") from exc
        except library.AuthenticationError as exc:
            raise DeniedError("redis refuses our account") from exc
        except library.ResponseError as exc:
            raise translate(exc) from exc
        except (library.RedisError, OSError) as exc:
            self._circuit.failed(at_once=isinstance(exc, library.BusyLoadingError))
            self._route.forget()
            raise UnavailableError(f"the exchange with redis broke: {type(exc).__name__}") from exc

    async def aclose(self) -> None:
        """Close the idle connections; those in use close when their call ends."""
        for pool in self._pools.values():
            await pool.close_idle()
        self._pools = {}

    @property
    def command_timeout_s(self) -> float:
        """How long a command may take."""
        return self._settings.command_timeout_s

    async def _look_again(self) -> None:
        """An answer showed that the topology changed: look again, on new connections."""
        self._route.forget()
        for pool in self._pools.values():
            await pool.close_idle()

    async def _send(self, commands: Sequence[Command]) -> list[Reply | ControlPlaneError]:
        if not commands:
            return []
        self._circuit.check()
        replies: list[Reply | ControlPlaneError] = [None] * len(commands)
        async with self._deadline(self._settings.command_timeout_s):
            for address, places in (await self._by_address(commands)).items():
                answers = await self._exchange(address, [commands[place] for place in places])
                for place, answer in zip(places, answers, strict=True):
                    replies[place] = answer
        self._circuit.succeeded()
        if any(isinstance(reply, UnavailableError) for reply in replies):
            await self._look_again()
        return replies

    async def _by_address(self, commands: Sequence[Command]) -> dict[Address, list[int]]:
        by_address: dict[Address, list[int]] = {}
        for place, each in enumerate(commands):
            by_address.setdefault(await self._route.find(each.key), []).append(place)
        return by_address

    async def _exchange(
        self, address: Address, commands: Sequence[Command], *, blocking: bool = False
    ) -> list[Reply | ControlPlaneError]:
        pool = self._pools.get((address, blocking))
        if pool is None:
            size = self._settings.blocking_max if blocking else self._settings.connections_max
            pool = self._pools[address, blocking] = Pool(lambda: self._open(address), size)
        async with pool.lease() as connection:
            await connection.send_packed_command(pack(commands), check_health=False)
            return [await read_reply(connection) for _ in commands]

    async def _ask(self, address: Address, args: tuple[str, ...]) -> Reply:
        """One question to one server, outside the pool: how routes learn the topology."""
        connection = await self._open(address, plain=True)
        try:
            await connection.send_command(*args)
            return await read_reply(connection)
        except library.RedisError as exc:
            raise UnavailableError(f"a server does not answer: {type(exc).__name__}") from exc
        finally:
            await connection.disconnect(nowait=True)

    def _account(self, *, plain: bool) -> Login:
        """The login; the account of a Sentinel's master is not one of the Sentinels."""
        if not plain:
            return self._login
        return Login(tls=self._login.tls) if isinstance(self._route, SentinelMaster) else self._login.without_db()

    async def _open(self, address: Address, *, plain: bool = False) -> AbstractConnection:
        settings = self._settings
        connection = make_connection(
            address, self._account(plain=plain), timeout_s=settings.connect_timeout_s, name=settings.name
        )
        connected = False
        try:
            await connection.connect()
            connected = True
        except library.AuthenticationError as exc:
            raise DeniedError("redis refuses our account") from exc
        except (library.ConnectionError, library.TimeoutError, OSError) as exc:
            if isinstance(exc.__cause__, library.AuthenticationError):  # on a socket file it comes wrapped
                raise DeniedError("redis refuses our account") from exc
            self._circuit.failed(at_once=True)
            self._route.forget()
            raise UnavailableError(f"redis is away: {type(exc).__name__}") from exc
        finally:
            if not connected:
                await connection.disconnect(nowait=True)
        return connection


def pack(commands: Sequence[Command]) -> bytes:
    """Commands as the protocol has them; the library's generic packing dominated the cost of an append."""
    parts: list[bytes] = []
    for each in commands:
        parts.append(b"*%d\r\n" % len(each.args))
        for argument in each.args:
            raw = argument if isinstance(argument, bytes) else str(argument).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


async def read_reply(connection: AbstractConnection) -> Reply | ControlPlaneError:
    """The next reply; an error reply is a value, so that the replies behind it are still read."""
    try:
        return cast("Reply", await connection.read_response())  # pyright: ignore[reportUnknownMemberType]
    except library.ResponseError as exc:
        return translate(exc)


def translate(error: library.ResponseError) -> ControlPlaneError:
    """What an error reply means in our tree."""
    text = str(error)
    match error:
        case library.NoScriptError():
            found: ControlPlaneError = ScriptMissingError("the script is not loaded")
        case library.OutOfMemoryError():
            found = ThrottledError("redis is out of memory")
        case library.ReadOnlyError():
            found = UnavailableError("redis is a read-only replica")
        case library.MovedError() | library.AskError():
            found = MovedError("another node of the cluster serves the key")
        case library.NoPermissionError() | library.AuthenticationWrongNumberOfArgsError():
            found = DeniedError("redis refuses our account the command or key")
        case library.ClusterDownError() | library.TryAgainError():
            found = UnavailableError("the redis cluster is not ready")
        case _ if text.startswith("NOGROUP"):
            found = GroupMissingError("the consumer group is not there")
        case _ if text.startswith(_TRANSIENT_WORDS) and not text.startswith("BUSYGROUP"):
            found = UnavailableError(f"redis can not now: {text.partition(' ')[0]}")
        case _:
            found = PermanentError(f"redis answered: {text[:200]}")
    found.__cause__ = error
    return found
