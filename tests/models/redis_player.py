"""One side of a differential run: the ports of a server, and the values of their answers that later steps use.

Owns the names of ids: the two servers make different ones, so the n-th id of a stream is called n on both. Must not
know the operations, which are in `redis_operations.py` and `redis_server_operations.py`.
"""

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from slipway.errors import ControlPlaneError, UnavailableError
from slipway.streams import keys
from slipway.streams.ports import Claimed, StoredEvent, Streams, WorkStream
from slipway.streams.webhooks import Delivery, Routable, Webhooks
from tests.models.redis_servers import ComparedServer
from tests.support.redis import an_id

T = TypeVar("T")
NAMES = ("a", "b", "c", "d")
CONSUMERS = ("one", "three", "two")
HOOKS = ("audit", "chat")
ZERO = "0-0"


class Step(msgspec.Struct, frozen=True):
    """One operation: its name in the table, and the seed of its choices."""

    name: str
    salt: int

    def chance(self) -> random.Random:
        """The generator of its choices: the same on both sides, and in a shortened sequence."""
        return random.Random(self.salt)


class Raised(msgspec.Struct, frozen=True):
    """One of our own errors."""

    name: str


def is_error(answer: object) -> bool:
    """Whether the answer to a step is an error."""
    return isinstance(answer, Raised)


class Player:
    """Plays steps on one side."""

    def __init__(self, compared_server: ComparedServer) -> None:
        self.compared_server = compared_server
        self.streams: Streams = compared_server.connect()
        self.queues: dict[str, WorkStream] = {name: self.streams.work_queue(name) for name in CONSUMERS}
        self.hooks: dict[str, Webhooks] = {name: self.streams.webhooks(name) for name in CONSUMERS}
        self.claims: dict[str, list[Claimed]] = defaultdict(list)
        self.taken: dict[str, list[Routable]] = defaultdict(list)
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)
        self.cursors: dict[str, list[str]] = defaultdict(list)
        """{scope: returned ids, oldest first}"""
        self.ends: dict[int, str | None] = {}
        """{epoch of the feed: its publisher's last cursor}"""
        self._labels: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = defaultdict(int)

    async def play(self, step: Step, operation: "Operation") -> Any:
        """Play the step and return its answer; an error of ours by its class."""
        try:
            return await operation(self, step.chance())
        except ControlPlaneError as error:
            # A read-only server makes the client look up the master again; for the caller the server is unavailable.
            return Raised("UnavailableError" if isinstance(error, UnavailableError) else type(error).__name__)

    def label(self, scope: str, entry_id: str) -> Any:
        """The name of an id in the comparison; later steps can resume from the id."""
        if entry_id == ZERO or scope.startswith(keys.ALLOCATION.prefix):
            return entry_id  # the same on both sides
        number = self._labels.get((scope, entry_id))
        if number is None:
            number = self._labels[scope, entry_id] = self._counts[scope]
            self._counts[scope] += 1
            self.cursors[scope].append(entry_id)
        return number

    def cursor(self, scope: str, chance: random.Random) -> str | None:
        """Some id that was returned before, rather a late one."""
        known = self.cursors[scope]
        place = chance.random() ** 0.3
        return known[int(place * len(known))] if known and chance.random() < 0.8 else None


Operation = Callable[[Player, random.Random], Awaitable[Any]]


def claimed(player: Player, consumer: str, found: list[Claimed]) -> list[Any]:
    """Store what a consumer has claimed; return the claims in the compared form."""
    player.claims[consumer] += found
    return [
        (each.shard, player.label(keys.work(each.shard), each.entry_id), each.deliveries, each.hint, each.problem)
        for each in found
    ]


def some(chance: random.Random, held: list[T], most: int) -> list[T]:
    """Remove and return up to `most` of the stored values."""
    return [held.pop(chance.randrange(len(held))) for _ in range(min(len(held), chance.randrange(1, most + 1)))]


def stored(found: list[StoredEvent]) -> list[Any]:
    """Events in the compared form."""
    return [(each.cursor, each.event) for each in found]


def alloc(chance: random.Random) -> Any:
    """One of a few allocations."""
    return an_id(chance.choice(NAMES))
