"""Commands to Redis and their replies: one server, a Sentinel's master, or the masters of a Cluster.

This module owns deadlines, redirections, the translation of errors and the count of calls. `routes.py` owns addresses,
and `replies.py` the meaning of error replies. It must not know the meaning of commands. It uses the connections, the
parser and the Sentinels of redis-py; ADR 81 explains why it does not use its clients.

Promises:

- The client never repeats a command by itself. After a lost reply the outcome is unknown: `DeadlineError` or
  `UnavailableError`. The caller knows which commands are safe to repeat. A MOVED or ASK states that the command did not
  run. Such a command is sent on, and commands for one key keep their order.
- Construction does no IO and never fails because a server is absent. While a server is away, a call fails at once
  (`UnavailableError`), except for one attempt per backoff step. In a Cluster, each node has its own backoff.
- A blocking read never waits for a command and never delays one: blocking reads have separate connections.
- When all our connections are in use, the server is not treated as away. A command that gets no connection in time
  fails with `BusyError` and was not sent. A blocking read then returns nothing. Other calls continue.

Not promised: fairness between callers; order between calls, or between keys within a pipeline on a Cluster.

Replies stay with their requests: a connection returns to its pool only after every reply was read. After a
cancellation, a timeout or any error it is closed. A circuit stops attempts to connect to an address that does not
answer.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar, cast

import msgspec
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType] - its return type is not declared

from slipway.errors import BusyError, ControlPlaneError, DeadlineError, DeniedError, UnavailableError
from slipway.runtime import telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.tasks import TaskGroup
from slipway.streams.redis_library import AbstractConnection
from slipway.streams.redis_library import exceptions as library
from slipway.streams.replies import MovedError, TopologyError, read_reply, send, translate
from slipway.streams.routes import (
    ClusterSlots,
    RedisAddress,
    Reply,
    SingleServer,
    UncoveredError,
    make_connection,
    parse,
)

T = TypeVar("T")

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 2.0
_FAILURES_BEFORE_OPEN: Final = 3


class Circuit:
    """A circuit breaker: after a failure, every call fails at once until a jittered backoff has passed."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock, self._random = clock, random
        self._failures = 0
        self._closed_at_s = 0.0

    def check(self) -> None:
        """Raise `UnavailableError` while the circuit is open."""
        remaining_s = self._closed_at_s - self._clock.monotonic()
        if remaining_s > 0:
            raise UnavailableError("redis is unavailable", retry_after_s=remaining_s)

    def succeeded(self) -> None:
        """Record that the server answered."""
        self._failures, self._closed_at_s = 0, 0.0

    def failed(self, *, at_once: bool) -> bool:
        """Record a failure, and return whether the circuit is open now. A refused connection opens the circuit at once;
        a single reset or timeout does not.
        """
        self._failures += 1
        steps = self._failures if at_once else self._failures - _FAILURES_BEFORE_OPEN + 1
        if steps > 0:
            limit_s = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(steps - 1, 16))
            self._closed_at_s = self._clock.monotonic() + limit_s * (0.5 + 0.5 * self._random.random())
        return steps > 0


class Pool:
    """Connections to one address, each for one exchange at a time. Waiting callers get one in the order of their
    calls.
    """

    def __init__(self, open_connection: Callable[[], Awaitable[AbstractConnection]], size: int) -> None:
        self._open = open_connection
        self._idle: list[AbstractConnection] = []
        self._size = size
        self._slots = asyncio.Semaphore(size)

    @contextlib.asynccontextmanager
    async def slot(self, wait_s: float) -> AsyncGenerator[None]:
        """Hold the right to one exchange. Raises BusyError when none was free within `wait_s` seconds."""
        try:
            async with asyncio.timeout(wait_s):
                await self._slots.acquire()
        except TimeoutError as error:
            raise BusyError(
                f"all {self._size} connections to redis have been in use for {wait_s:g} s", retry_after_s=1.0
            ) from error
        try:
            yield
        finally:
            self._slots.release()

    async def use(self, exchange: Callable[[AbstractConnection], Awaitable[T]]) -> T:
        """Return the result of the exchange. The caller must hold a slot.

        The connection returns to the pool only when the exchange ends without an exception.
        """
        connection = await self._take()
        clean = False
        try:
            answer = await exchange(connection)
            clean = True
        finally:
            if clean:
                self._idle.append(connection)
            else:
                await connection.disconnect(nowait=True)
        return answer

    async def close_idle(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    async def _take(self) -> AbstractConnection:
        while self._idle:
            connection = self._idle.pop()
            # Unexpected bytes or an end of file: this connection must not be used again.
            if connection.is_connected and not await connection.can_read():
                return connection
            await connection.disconnect(nowait=True)
        return await self._open()


Argument = str | bytes | int
Part = tuple[RedisAddress, bool]
"""The server of some commands of a pipeline, and whether to send ASKING."""

_REDIRECTS_MAX: Final = 4


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect to Redis; times in seconds. `url` may contain a password and is never shown."""

    url: str
    command_timeout_s: float = 2.0
    connect_timeout_s: float = 1.0
    connections_max: int = 32
    blocking_max: int = 512
    name: str = "slipway"

    def __repr__(self) -> str:
        return f"RedisSettings(name={self.name!r})"


class Command(msgspec.Struct, frozen=True):
    """One command. `key` routes it and is also among the arguments."""

    key: str
    args: tuple[Argument, ...]


def command(name: str, key: str, *args: Argument) -> Command:
    """Return the command `name key args...`."""
    return Command(key, (name, key, *args))


class RedisClient:
    """A client that runs commands on the server or servers that the URL names."""

    def __init__(self, settings: RedisSettings, clock: Clock, random: Random) -> None:
        self._settings = settings
        self._clock, self._random = clock, random
        self._pools: dict[tuple[RedisAddress, bool], Pool] = {}
        self._circuits: dict[RedisAddress, Circuit] = {}
        self._discovery = Circuit(clock, random)
        self._route, self._login = parse(settings.url, ask=self._ask)

    @property
    def is_cluster(self) -> bool:
        """Whether one command must not name keys of different slots."""
        return isinstance(self._route, ClusterSlots)

    @property
    def clock(self) -> Clock:
        """The clock that the client runs on."""
        return self._clock

    @property
    def command_timeout_s(self) -> float:
        """The time limit of a command, in seconds."""
        return self._settings.command_timeout_s

    async def run(self, each: Command) -> Reply:
        """Return the reply to one command. Raises the error that `translate` makes of an error reply."""
        reply = (await self.pipeline([each]))[0]
        if isinstance(reply, ControlPlaneError):
            raise reply
        return reply

    async def pipeline(self, commands: Sequence[Command]) -> list[Reply | ControlPlaneError]:
        """Send commands together and return their replies, in order. An error reply is returned as a value.

        Not atomic. Raises `UnavailableError` or `DeadlineError` when no reply arrived; any of the commands may have
        run. On a Cluster, the commands of one node are sent together, and the nodes are called concurrently. When one
        of several nodes does not answer, its commands have error values.
        """
        if not commands:
            return []
        replies: list[Reply | ControlPlaneError] = [None] * len(commands)
        await self._round(commands, await self._parts(commands, replies), replies)
        for _ in range(_REDIRECTS_MAX if self.is_cluster else 0):
            moved: dict[Part, list[int]] = {}
            for place, reply in enumerate(replies):
                if isinstance(reply, MovedError):
                    moved.setdefault((reply.target, reply.is_asked), []).append(place)
            if not moved:
                break
            await self._round(commands, moved, replies)
        return replies

    async def block(self, each: Command, *, block_s: float) -> Reply:
        """Return the reply to a command that may block for `block_s` seconds, on a connection for blocking reads only.

        When no such connection is free in that time, the reply is None, as for a command that received nothing.
        """
        part = (await self._find(each.key), False)
        try:
            [reply] = await self._exchange(part, [each], block_s=block_s)
        except BusyError:
            return None
        for _ in range(_REDIRECTS_MAX if self.is_cluster else 0):
            if not isinstance(reply, MovedError):
                break
            [reply] = await self._exchange((reply.target, reply.is_asked), [each], block_s=block_s)
        if isinstance(reply, ControlPlaneError):
            raise reply
        return reply

    async def ping(self) -> float:
        """Return the seconds of one round trip."""
        start_s = self._clock.monotonic()
        await self.run(Command("slipway", ("PING",)))
        return self._clock.monotonic() - start_s

    async def aclose(self) -> None:
        """Close the idle connections. Connections in use close when their call ends."""
        for pool in self._pools.values():
            await pool.close_idle()
        self._pools = {}

    async def _parts(
        self, commands: Sequence[Command], replies: list[Reply | ControlPlaneError]
    ) -> dict[Part, list[int]]:
        """Return {server: places in `commands`}. For a command that no node serves, the error is stored in
        `replies`.
        """
        if not self.is_cluster:
            return {(await self._find(commands[0].key), False): list(range(len(commands)))}
        parts: dict[Part, list[int]] = {}
        for place, each in enumerate(commands):
            try:
                parts.setdefault((await self._find(each.key), False), []).append(place)
            except UncoveredError as exc:
                replies[place] = exc
        return parts

    async def _find(self, key: str) -> RedisAddress:
        if isinstance(self._route, SingleServer):
            return self._route.address
        if self._route.is_known:
            return await self._route.find(key)
        self._discovery.check()
        try:
            async with asyncio.timeout(self._settings.command_timeout_s):
                address = await self._route.find(key)
        except TimeoutError as exc:
            self._discovery.failed(at_once=True)
            raise DeadlineError("no server answered in time with the address of the key's server") from exc
        except UnavailableError as exc:
            if not isinstance(exc, UncoveredError):
                self._discovery.failed(at_once=True)
            raise
        if self.is_cluster:
            self._discovery.succeeded()  # behind a Sentinel, the server's own reply does this
        return address

    async def _round(
        self, commands: Sequence[Command], parts: dict[Part, list[int]], replies: list[Reply | ControlPlaneError]
    ) -> None:
        """Send each part to its server and store the replies. Raises when no server answered."""
        if len(parts) == 1:
            [(part, places)] = parts.items()
            answers = [await self._exchange(part, [commands[place] for place in places])]
        else:
            async with TaskGroup() as group:
                tasks = [
                    group.create_task(self._answers(part, [commands[place] for place in places]))
                    for part, places in parts.items()
                ]
            ended = [task.result() for task in tasks]
            lost = [each for each in ended if isinstance(each, ControlPlaneError)]
            if lost and len(lost) == len(ended):
                raise lost[0]
            answers = [
                [each] * len(places) if isinstance(each, ControlPlaneError) else each
                for each, places in zip(ended, parts.values(), strict=True)
            ]
        for places, part_answers in zip(parts.values(), answers, strict=True):
            for place, answer in zip(places, part_answers, strict=True):
                replies[place] = answer

    async def _answers(
        self, part: Part, commands: Sequence[Command]
    ) -> list[Reply | ControlPlaneError] | ControlPlaneError:
        """Return the replies of one node, or the error. The replies of other nodes are still valid."""
        try:
            return await self._exchange(part, commands)
        except ControlPlaneError as exc:
            return exc

    async def _exchange(
        self, part: Part, commands: Sequence[Command], *, block_s: float | None = None
    ) -> list[Reply | ControlPlaneError]:
        """Return the replies of one server, within the deadline."""
        address, is_asked = part
        circuit = self._circuit(address)
        circuit.check()
        timeout_s = self._settings.command_timeout_s + (block_s or 0.0)
        pool = self._pool(address, is_blocking=block_s is not None)
        outcome = "lost"
        try:
            # The wait for one of our connections is no sign of a broken server, so it must not open the circuit.
            async with pool.slot(timeout_s):
                circuit.check()
                async with asyncio.timeout(timeout_s):
                    replies = await self._talk(pool, commands, is_asked=is_asked)
            outcome = "ok"
        except BusyError:
            outcome = "busy"
            raise
        except TimeoutError as exc:
            if circuit.failed(at_once=False):
                self._route.forget()  # the server may hang, and another one may have taken over
            raise DeadlineError(f"redis did not answer within {timeout_s:g} s") from exc
        except UnavailableError:
            circuit.failed(at_once=True)
            self._route.forget()
            raise
        except library.AuthenticationError as exc:
            raise DeniedError("redis refuses our account") from exc
        except library.ResponseError as exc:
            raise translate(exc) from exc
        except (library.RedisError, OSError) as exc:
            circuit.failed(at_once=isinstance(exc, library.BusyLoadingError))
            self._route.forget()
            raise UnavailableError(f"the connection to redis failed during a call: {type(exc).__name__}") from exc
        finally:
            _count(commands, outcome)
        circuit.succeeded()
        if any(isinstance(reply, ControlPlaneError) for reply in replies):
            await self._heed(address, replies)
        return replies

    def _pool(self, address: RedisAddress, *, is_blocking: bool) -> Pool:
        pool = self._pools.get((address, is_blocking))
        if pool is None:
            size = self._settings.blocking_max if is_blocking else self._settings.connections_max
            pool = self._pools[address, is_blocking] = Pool(lambda: self._open(address), size)
        return pool

    async def _talk(
        self, pool: Pool, commands: Sequence[Command], *, is_asked: bool
    ) -> list[Reply | ControlPlaneError]:
        """Send and read on one connection. ASKING precedes each command while the slot is being moved to the server."""
        sent = [asked for each in commands for asked in (_ASKING, each)] if is_asked else commands
        packed = pack(sent)

        async def exchange(connection: AbstractConnection) -> list[Reply | ControlPlaneError]:
            await send(connection, packed)
            return [await read_reply(connection) for _ in sent]

        replies = await pool.use(exchange)
        return replies[1::2] if is_asked else replies

    async def _heed(self, address: RedisAddress, replies: Sequence[Reply | ControlPlaneError]) -> None:
        """Update the topology from error replies."""
        for reply in replies:
            if isinstance(reply, MovedError):
                if not reply.target.host:
                    reply.target = RedisAddress(address.host, reply.target.port)
                if isinstance(self._route, ClusterSlots) and not reply.is_asked:
                    self._route.learn(reply.slot, reply.target)
        if any(isinstance(reply, TopologyError) for reply in replies):
            # Discover the topology again, on new connections.
            self._route.forget()
            for pool in self._pools.values():
                await pool.close_idle()

    def _circuit(self, address: RedisAddress) -> Circuit:
        """Return the circuit of an address. In a Cluster each node has its own; otherwise one circuit serves every
        address.
        """
        if not self.is_cluster:
            return self._discovery
        circuit = self._circuits.get(address)
        if circuit is None:
            circuit = self._circuits[address] = Circuit(self._clock, self._random)
        return circuit

    async def _ask(self, address: RedisAddress, args: tuple[str, ...]) -> Reply:
        """Send one command to one server, outside the pool, to learn the topology of a Cluster."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                return await self._ask_on(await self._open(address), args)
        except TimeoutError as exc:
            raise UnavailableError("a server does not answer in time") from exc

    async def _ask_on(self, connection: AbstractConnection, args: tuple[str, ...]) -> Reply:
        try:
            await connection.send_command(*args)
            return await read_reply(connection)
        except (library.RedisError, OSError, RuntimeError) as exc:
            raise UnavailableError(f"a server does not answer: {type(exc).__name__}") from exc
        finally:
            await connection.disconnect(nowait=True)

    async def _open(self, address: RedisAddress) -> AbstractConnection:
        settings = self._settings
        connection = make_connection(address, self._login, timeout_s=settings.connect_timeout_s, name=settings.name)
        connected = False
        try:
            await connection.connect()
            connected = True
        except library.AuthenticationError as exc:
            raise DeniedError("redis refuses our account") from exc
        except (library.ConnectionError, library.TimeoutError, OSError, RuntimeError) as exc:
            if isinstance(exc.__cause__, library.AuthenticationError):  # on a socket file, the error is wrapped
                raise DeniedError("redis refuses our account") from exc
            raise UnavailableError(f"redis is unavailable: {type(exc).__name__}") from exc
        finally:
            if not connected:
                await connection.disconnect(nowait=True)
        return connection


_ASKING: Final = Command("", ("ASKING",))


def pack(commands: Sequence[Command]) -> bytes:
    """Return the bytes of the commands. The library's generic packing dominated the cost of an append."""
    return b"".join([cast(bytes, pack_command(each.args)) for each in commands])  # pyright: ignore[reportArgumentType]


def _count(commands: Sequence[Command], outcome: str) -> None:
    calls: dict[str | bytes | int, int] = {}
    for each in commands:
        name = each.args[0]
        calls[name] = calls.get(name, 0) + 1
    for name, count in calls.items():
        counter = _counters.get((name, outcome))
        if counter is None:
            counter = telemetry.REDIS_CALLS.labels(command=str(name).lower(), outcome=outcome)
            _counters[name, outcome] = counter
        counter.inc(count)


class _Counter(Protocol):
    def inc(self, amount: float) -> None: ...


_counters: Final[dict[tuple[Argument, str], _Counter]] = {}
"""{(command, outcome): its counter}, because finding the labels costs more than counting."""
