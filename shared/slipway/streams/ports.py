"""What the services need of the streams: small Protocols and the values that cross them.

Owns the words (entry, hint, delta, line, span) and the promises. Must not know Redis. Two implementations keep
every promise here and are held to one contract suite: `redis_streams.py` (a server) and `memory.py` (a deterministic
model for the simulation).

Promises of every port:

- Nothing here is the truth: any call may raise `UnavailableError` or `DeadlineError` (outcome unknown), and any
  content may vanish at any time. Whoever calls must be able to go on without.
- Every call ends: writes and reads within the command deadline, `wait`/`claim` within the time they are given.
- `follow` answers a generator that holds a place among the readers: close it (`contextlib.aclosing`).
- Cursors are opaque strings of the form `<number>-<number>`; `None` is before the first entry. A cursor that is
  not one raises `InvalidError`.

Not promised: that a cursor's entry still exists; that nothing is delivered twice (except in an allocation's own
stream, which holds each seq at most once, in order).
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.streams.allgather import Gatherings
from slipway.streams.decisions import DecisionLog
from slipway.streams.logouts import Logouts
from slipway.streams.logpacks import LogAppended, LogKey, LogPack, LogPosition, StoredLine
from slipway.streams.server_health import Conditions
from slipway.streams.webhooks import Webhooks

if TYPE_CHECKING:
    from slipway.streams.event_groups import EventGroup


class StreamEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One event to append.

    `oldest_seq` is the lowest seq that the caller could still publish (the oldest of its ring): an empty stream
    then begins there or answers GAP; None: any seq may begin one. `expire_s` is the remaining life of the stream
    in seconds; None takes the table's TTL when the event is the last one, and no expiry before.
    """

    event: AllocationEvent
    oldest_seq: int | None = None
    expire_s: int | None = None


class EntryOutcome(StrEnum):
    """What became of one entry."""

    APPENDED = "appended"
    DUPLICATE = "duplicate"
    GAP = "gap"


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one entry; `last_seq` is what the stream ends with now, None when it is empty."""

    outcome: EntryOutcome
    last_seq: int | None


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event as read; resume after `cursor`."""

    cursor: str
    event: AllocationEvent


class EventLog(Protocol):
    """The streams of single allocations, and (written first, at least once) the firehose.

    An allocation's stream is strictly ordered and contiguous. An entry is accepted when it is the one after the
    last; when the stream is empty (see `StreamEntry.oldest_seq`); or when it is marked `truncated: "<from>-<to>"` with
    from = last + 1 and to = seq - 1. Otherwise it is a DUPLICATE or leaves a GAP, and nothing changes.
    """

    async def append(self, entries: Sequence[StreamEntry]) -> list[Appended]:
        """Append in the given order; one answer per entry. Publishes to the firehose what is not a duplicate."""
        ...

    async def last_seqs(self, allocations: Sequence[AllocationId]) -> list[int | None]:
        """The last seq of each allocation's stream; None when it is empty or absent."""
        ...

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 100) -> list[StoredEvent]:
        """Up to `limit` events after the cursor, oldest first."""
        ...

    def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[StoredEvent]:
        """Every event after the cursor, for ever, each once, in order, also across a loss and rebuild of the stream."""
        ...


class FirehoseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the sharded firehose; `cursor` is the position in all shards after it."""

    cursor: str
    shard: int
    event: AllocationEvent


class Firehose(Protocol):
    """All events of all allocations, at least once, ordered by seq per subject; dedupe by the event's id.

    A firehose cursor is the list of its shards' cursors joined by commas.
    """

    async def tail(self) -> str:
        """The cursor after the newest entries."""
        ...

    async def read(self, *, after: str | None = None, limit: int = 100, block_s: float = 0.0) -> list[FirehoseEvent]:
        """Up to `limit` events per shard after the cursor; waits up to `block_s` seconds for the first."""
        ...


class WorkHint(msgspec.Struct, frozen=True, kw_only=True):
    """Look at this allocation: a key and nothing else that could be stale (the handler reads the object again)."""

    namespace: str
    allocation: AllocationId
    traceparent: str = ""

    @property
    def key(self) -> tuple[str, AllocationId]:
        """What two hints for the same object share."""
        return self.namespace, self.allocation


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """One delivered hint; `hint` is None when the entry could not be decoded (`problem` says why)."""

    shard: int
    entry_id: str
    deliveries: int
    hint: WorkHint | None
    problem: str = ""


class WorkHints(Protocol):
    """The sending side of the work queue."""

    async def send(self, hints: Sequence[WorkHint]) -> None:
        """Queue hints. Lossy by design: who owns the truth sends them again."""
        ...


class StreamBacklog(NamedTuple):
    """Entries that no worker has got yet, and those that one has and did not acknowledge."""

    waiting: int
    in_work: int


class WorkStream(Protocol):
    """The receiving side: at least once; an entry stays pending until it is acknowledged."""

    async def claim(self, *, limit: int, block_s: float) -> list[Claimed]:
        """New entries; waits up to `block_s` seconds for the first. Creates lost groups again, from the start."""
        ...

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[Claimed]:
        """Entries that were delivered, and not acknowledged or heartbeaten for `min_idle_s` seconds."""
        ...

    async def ack(self, claimed: Sequence[Claimed]) -> None:
        """The effect is durable: forget these."""
        ...

    async def heartbeat(self, claimed: Sequence[Claimed]) -> None:
        """Still at work on these: nobody else may claim them for another idle period."""
        ...

    async def release(self, claimed: Sequence[Claimed]) -> None:
        """Failed for no fault of the entry: it stays pending and this delivery does not count."""
        ...

    async def dead_letter(self, claimed: Claimed, *, cause: str) -> None:
        """Move an entry to the dead letters; written there before it is acknowledged here."""
        ...

    async def trim(self) -> int:
        """Remove what every group has acknowledged, and nothing else; answers how many entries went."""
        ...

    async def forget_consumers(self, *, idle_s: float = 3_600.0) -> int:
        """Remove consumers that own nothing pending and were idle for so long; answers how many."""
        ...

    async def backlog(self) -> int:
        """Entries not yet acknowledged by the workers (waiting and in work)."""
        ...

    async def standing(self) -> StreamBacklog:
        """The same in two numbers, for whoever looks often: of each shard at most `keys.STANDING_MAX` are counted."""
        ...


class WakeUp(msgspec.Struct, frozen=True, kw_only=True):
    """What a wait ended with; no reasons means that time ran out."""

    cursor: str | None
    reasons: tuple[str, ...]


class Wake(Protocol):
    """Wake-ups for the scheduler: a bell, not a message."""

    async def ring(self, reason: str) -> None:
        """Wake whoever waits."""
        ...

    async def wait(self, after: str | None, *, timeout_s: float) -> WakeUp:
        """Until somebody rang after the cursor, at most `timeout_s` seconds. `after=None` waits for the next ring."""
        ...


class FeedOp(StrEnum):
    """What a feed entry says of its object."""

    PUT = "put"
    DELETE = "del"
    BEAT = "beat"


class FeedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the cluster feed. `number` is contiguous within `epoch`.

    A BEAT has no object: its data is a JSON object {kind: resourceVersion published so far}.
    """

    epoch: int
    number: int
    kind: str
    op: FeedOp
    key: str = ""
    rv: str = ""
    data: bytes = b""


class FeedPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a feed ends, or where a reader stands; epoch 0 is the empty feed."""

    cursor: str | None
    epoch: int
    number: int


class Feed(Protocol):
    """The raw cluster feed; `feed.py` has the publisher and the reader that give it meaning."""

    async def append(self, entries: Sequence[FeedEntry], *, after: str | None) -> str:
        """Append all or nothing, and answer the new end.

        `after` is the end that this publisher wrote last, None before its first write. Raises `StaleError` when
        the feed holds this epoch's or a higher one's entries from somebody else, and `ExpiredError` when
        the publisher's own end is gone (the server lost it).
        """
        ...

    async def read(self, after: str | None, *, limit: int, block_s: float) -> list[tuple[str, FeedEntry]]:
        """Up to `limit` (cursor, entry) after the cursor; waits up to `block_s` seconds for the first.

        Entries that were appended together may share a cursor, and come together.
        """
        ...

    async def position(self) -> FeedPosition:
        """Where the feed ends now."""
        ...

    async def keep(self, slot: int, parts: Mapping[str, bytes], *, anew: bool) -> None:
        """Put parts of a snapshot into one of the `SNAPSHOT_SLOTS`; `anew` forgets first what was there."""
        ...

    async def kept(self, slot: int, parts: Sequence[str]) -> list[bytes | None]:
        """Those parts of the snapshot in a slot, None for each that is not there."""
        ...


class LogLines(Protocol):
    """The lines that containers print: first and last ones of each log, with the gaps between them (`logpacks.py`)."""

    async def append(self, packs: Sequence[LogPack]) -> list[LogAppended]:
        """Append each pack behind the line that it names, or say where its log stands instead. Idempotent."""
        ...

    async def positions(self, allocation: AllocationId) -> dict[LogKey, LogPosition]:
        """How far each log of the allocation is stored."""
        ...

    async def position(self, allocation: AllocationId, source: LogKey) -> LogPosition:
        """How far one log is stored; the beginning when nothing is."""
        ...

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 500) -> list[StoredLine]:
        """Up to `limit` lines of all logs after the cursor, oldest first."""
        ...

    async def page(self, allocation: AllocationId, *, after: str | None = None) -> list[StoredLine]:
        """The lines of the next packs after the cursor, `PAGE_PACKS` of them at most, oldest first; none at the end.

        For who copies a log whole: a page is bounded in bytes, also where lines are long.
        """
        ...

    async def tail(self, allocation: AllocationId, *, limit: int) -> list[StoredLine]:
        """The newest `limit` lines of all logs, oldest first."""
        ...

    def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[list[StoredLine]]:
        """Every line after the cursor, for ever, as many at once as there are."""
        ...


class SpanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One finished span, small enough to keep beside the events; times in nanoseconds since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str
    service: str
    start_ns: int
    end_ns: int
    ok: bool = True
    attributes: dict[str, str] = {}
    kind: str = "internal"
    links: tuple[str, ...] = ()
    """traceparents of what it follows from"""


class TraceLog(Protocol):
    """Spans per allocation, capped, for the waterfall."""

    async def append(self, spans: Mapping[AllocationId, Sequence[SpanRecord]]) -> None:
        """Append the finished spans of each allocation; of many allocations in one exchange."""
        ...

    async def read(self, allocation: AllocationId, *, limit: int = 500) -> list[SpanRecord]:
        """The newest `limit` spans, oldest first."""
        ...


class Activity(Protocol):
    """When an allocation was last used, by source (proxy, reported...)."""

    async def touch(self, times: Mapping[AllocationId, Mapping[str, float]]) -> None:
        """Note when (seconds since the epoch) each source last saw each allocation active; never goes back."""
        ...

    async def read(self, allocations: Sequence[AllocationId]) -> list[Mapping[str, float]]:
        """{source: seconds since the epoch} of each; empty when nothing is known (which counts as active now)."""
        ...


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter: where it came from, why it died, and its raw fields."""

    id: str
    source: str
    entry_id: str
    cause: str
    deliveries: int
    fields: Mapping[str, str]


class DeadLetters(Protocol):
    """What could not be worked off, kept for an admin."""

    async def page(self, *, after: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Up to `limit` letters after the id, oldest first."""
        ...

    async def find(self, letter_id: str) -> DeadLetter | None:
        """One letter. Raises `InvalidError` when the id cannot be one."""
        ...

    async def replay(self, letter_id: str) -> bool:
        """Send the letter's fields to its source again, then drop it; False when there is none of that id."""
        ...

    async def drop(self, letter_id: str) -> bool:
        """Remove a letter; False when there is none of that id."""
        ...


class StreamsHealth(Protocol):
    """Whether the streams can be used: read and written."""

    async def ping(self) -> float:
        """Seconds of one round trip that writes. Raises `TransientError` when no server takes it."""
        ...


class Tally(Protocol):
    """Where lossy parts count what they drop, and consumers what they do; the telemetry adapter implements it."""

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name` (a name of `keys.COUNTERS`)."""
        ...

    def took(self, spent_s: float, traceparent: str) -> None:
        """A hint, which carried this traceparent, was handled in so many seconds."""
        ...


class NoTally:
    """Counts nothing."""

    def count(self, name: str, amount: int = 1) -> None:
        """Ignore it."""

    def took(self, spent_s: float, traceparent: str) -> None:
        """Ignore it."""


class Streams(Protocol):
    """Everything, for a composition root to hand out in parts; no consumer takes the whole."""

    @property
    def events(self) -> EventLog: ...
    @property
    def firehose(self) -> Firehose: ...
    @property
    def hints(self) -> WorkHints: ...
    @property
    def wake(self) -> Wake: ...
    @property
    def feed(self) -> Feed: ...
    @property
    def logs(self) -> LogLines: ...
    @property
    def traces(self) -> TraceLog: ...
    @property
    def activity(self) -> Activity: ...
    @property
    def dead(self) -> DeadLetters: ...
    @property
    def gatherings(self) -> Gatherings: ...
    @property
    def decisions(self) -> DecisionLog: ...
    @property
    def logouts(self) -> Logouts: ...
    @property
    def health(self) -> StreamsHealth: ...
    @property
    def conditions(self) -> Conditions: ...

    def work_queue(self, consumer: str) -> WorkStream:
        """The work queue as the consumer of that name (unique per process: the pod's uid)."""
        ...

    def webhooks(self, consumer: str) -> Webhooks:
        """Webhook deliveries as the consumer of that name (the same again after a restart)."""
        ...

    def event_group(self, group: str, consumer: str) -> "EventGroup":
        """A consumer group of an integration on the firehose, as the consumer of that name."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...
