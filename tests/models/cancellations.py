"""Commands to Redis that are cancelled at random: every reply belongs to the request of its caller.

Owns the requests, each with its expected answer, and the moments of their cancellation: after some turns of the loop or
after some time. Few connections serve many callers at once, so a reply left in a socket would reach another caller.
(V15)
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams.client import Command, RedisClient, RedisSettings, command
from slipway.streams.ports import StreamEntry
from slipway.streams.redis_streams import RedisStreams
from tests.models.report import Report
from tests.support.redis import an_event, an_id, server_process

OWNERS: Final = 16
"""The number of callers, each with a key, a stream and a log."""
AT_ONCE: Final = 24
CONNECTIONS: Final = 4
TURNS_MAX: Final = 14
TIME_MAX_S: Final = 0.003
BYTES: Final = 40_000

Ask = Callable[["Client", int, int], Awaitable[bool]]


class WrongReplyError(Exception):
    """A caller got a reply of another request."""


class Client:
    """The one client that all callers share."""

    def __init__(self, url: str) -> None:
        settings = RedisSettings(url=url, connections_max=CONNECTIONS, blocking_max=CONNECTIONS, command_timeout_s=20.0)
        self.raw = RedisClient(settings, SystemClock(), SeededRandom(1))
        self.streams = RedisStreams(self.raw)

    async def prepare(self) -> None:
        """Create the key, the stream and the log of each caller."""
        for owner in range(OWNERS):
            name = f"own-{owner}"
            await self.raw.run(command("SET", name, name))
            await self.raw.run(command("XADD", f"log-{owner}", "*", "x", _large(owner)))
            events = [StreamEntry(event=an_event(seq, name=name)) for seq in range(1, owner + 2)]
            await self.streams.events.append(events)


def _large(owner: int) -> bytes:
    return b"%03d" % owner * (BYTES // 3)


async def _echo(client: Client, owner: int, number: int) -> bool:
    text = f"{owner}/{number}"
    replies = await client.raw.pipeline([Command("k", ("ECHO", text)), Command("k", ("ECHO", text + "!"))])
    return replies == [text.encode(), text.encode() + b"!"]


async def _get(client: Client, owner: int, number: int) -> bool:
    return await client.raw.run(command("GET", f"own-{owner}")) == f"own-{owner}".encode()


async def _block(client: Client, owner: int, number: int) -> bool:
    each = Command("k", ("XREAD", "COUNT", 1, "BLOCK", 1, "STREAMS", f"log-{owner}", "0" if number % 2 else "$"))
    reply = await client.raw.block(each, block_s=0.001)
    return reply is None if number % 2 == 0 else reply[0][0] == f"log-{owner}".encode()


async def _range(client: Client, owner: int, number: int) -> bool:
    reply = await client.raw.run(command("XRANGE", f"log-{owner}", "-", "+"))
    return [fields for _, fields in reply] == [[b"x", _large(owner)]]


async def _append(client: Client, owner: int, number: int) -> bool:
    [answer] = await client.streams.events.append([StreamEntry(event=an_event(1, name=f"own-{owner}"))])
    return answer.last_seq == owner + 1


async def _read(client: Client, owner: int, number: int) -> bool:
    found = await client.streams.events.read(an_id(f"own-{owner}"))
    return [each.event.allocation_id for each in found] == [an_id(f"own-{owner}")] * (owner + 1)


async def _error(client: Client, owner: int, number: int) -> bool:
    good, bad = await client.raw.pipeline([Command("k", ("ECHO", str(owner))), command("INCR", f"own-{owner}")])
    return good == str(owner).encode() and "not an integer" in str(bad)


ASKS: Sequence[Ask] = (_echo, _get, _block, _range, _append, _read, _error)


async def _strike(client: Client, chance: random.Random, number: int) -> str:
    """Make one request that may be cancelled; return `cancelled`, `own` or `wrong`."""
    ask, owner = chance.choice(ASKS), chance.randrange(OWNERS)
    asking = asyncio.ensure_future(ask(client, owner, number))
    match chance.randrange(4):
        case 0:
            for _ in range(chance.randrange(TURNS_MAX)):
                await asyncio.sleep(0)
            asking.cancel()
        case 1 | 2:
            asyncio.get_running_loop().call_later(chance.random() * TIME_MAX_S, asking.cancel)
        case _:
            pass
    try:
        [ended] = await asyncio.gather(asking, return_exceptions=True)
    finally:
        await asyncio.wait({asking})
    if isinstance(ended, asyncio.CancelledError):
        return "cancelled"
    return "own" if ended is True else f"wrong: {ask.__name__} of {owner}: {ended!r}"


def differ(operations: int, seed: int, case: str) -> Report:
    """Cancel that many requests; as many more as needed are answered."""
    return asyncio.run(_differ(operations, seed))


async def _differ(operations: int, seed: int) -> Report:
    ends: Counter[str] = Counter()
    async with server_process() as server:
        client = Client(server.url)
        numbers = iter(range(10 * operations))

        async def asks(worker: int) -> None:
            chance = random.Random(f"{seed}/{worker}")
            while ends["cancelled"] < operations:
                end = await _strike(client, chance, next(numbers))
                ends[end] += 1
                if end.startswith("wrong"):
                    raise WrongReplyError(end)

        try:
            await client.prepare()
            async with asyncio.TaskGroup() as group:
                for worker in range(AT_ONCE):
                    group.create_task(asks(worker))
        except* WrongReplyError:
            pass  # no caller waits for the misdirected replies any more
        try:
            wrong = _wrong(ends)
            connected = 0 if wrong else await _connected(client)
            if not wrong and not all([await ask(client, owner, 1) for ask in ASKS for owner in range(OWNERS)]):
                wrong.append("a request after all of them got an answer that was not its own")
        finally:
            await client.raw.aclose()
    if connected > 2 * CONNECTIONS + 1:
        wrong.append(f"{connected} connections are open")
    notes = [f"{ends['cancelled']} cancelled, {ends['own']} answered with their own reply, {connected} connections"]
    return Report(operations=ends["cancelled"], differences=wrong, notes=notes)


def _wrong(ends: Counter[str]) -> list[str]:
    return [name for name in ends if name.startswith("wrong")]


async def _connected(client: Client) -> int:
    info: Any = await client.raw.run(Command("k", ("INFO", "clients")))
    line = next(each for each in info.decode().splitlines() if each.startswith("connected_clients"))
    return int(line.partition(":")[2])
