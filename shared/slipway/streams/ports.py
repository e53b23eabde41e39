"""The ports of the services to the streams: small Protocols and the values that they exchange.

This module owns the terms (entry, hint, delta, line, span) and the promises. It must not know Redis. Two
implementations keep every promise and pass one contract suite: `redis_streams.py` (a server) and `memory.py` (a
deterministic model for the simulation).

Promises of every port:

- Nothing here is the truth. Any call may raise `UnavailableError` or `DeadlineError` (outcome unknown), and any content
  may vanish at any time. Every caller must be able to work without it.
- Every call ends: writes and reads within the command deadline, `wait`/`claim` within the given time.
- `follow` returns a generator that occupies a place among the readers. Close it (`contextlib.aclosing`).
- Cursors are opaque strings of the form `<number>-<number>`; `None` is before the first entry. A malformed cursor
  raises `InvalidError`.

Not promised: that a cursor's entry still exists; that nothing is delivered twice (except in an allocation's own stream,
which contains each seq at most once, in order).

Replicas of the api share ended and renewed logins of browsers and used one-time codes (`Logouts`), as ids only.
Promises: every reader that reads before the cap of the table drops an entry receives the entry. `take` returns True
once for a code, within its time, as long as the server keeps its data. `kept` returns the text that was written last.
Not promised: that the server keeps the data; `is_lost` reports a loss.

The port to the condition of the Redis server reports facts only: its settings, the permissions of our account, and its
backlogs. Other modules judge them for an operator. A value that the account may not read is None, and its command is
listed. So "unknown" never looks like "fine".
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.streams.allgather import Gatherings
from slipway.streams.decisions import DecisionLog
from slipway.streams.logpacks import LogAppended, LogKey, LogPack, LogPosition, StoredLine
from slipway.streams.webhooks import Webhooks

if TYPE_CHECKING:
    from slipway.streams.event_groups import EventGroup


class LogoutPage(msgspec.Struct, frozen=True, kw_only=True):
    """Ended logins: {id of a login: when it would have expired, epoch seconds}. Read on after `cursor`."""

    ended: Mapping[str, float]
    cursor: str | None
    has_more: bool = False
    is_lost: bool = False
    """The server has lost the entries that the cursor refers to. Read from the beginning, and append the known
    logins.
    """


class Logouts(Protocol):
    """Ended logins and used codes."""

    async def append(self, ended: Mapping[str, float]) -> None:
        """Publish ended logins. Repeating a login does no harm."""
        ...

    async def read(self, after: str | None, *, limit: int) -> LogoutPage:
        """Return the logins that were published after a cursor, oldest first."""
        ...

    async def keep(self, login: str, text: str, ttl_s: int) -> None:
        """Store a text about a login for other replicas, in place of an earlier one."""
        ...

    async def kept(self, login: str) -> str:
        """Return the stored text about a login; empty when there is none or it has expired."""
        ...

    async def take(self, code: str, ttl_s: int) -> bool:
        """Return whether this code was not taken before. The code is remembered for `ttl_s` seconds."""
        ...


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The condition of the server at one moment. Sizes are in bytes, times in epoch seconds.

    On a Redis Cluster the settings and sizes are those of one master.
    """

    product: str
    """Redis or Valkey, with its own version."""
    version: str
    """The Redis version that it is compatible with."""
    time: float | None
    """The server's clock, in the middle of the query."""
    asked_at: float
    """Our clock at that moment."""
    role: str = ""
    policy: str | None = None
    """The setting maxmemory-policy."""
    memory_used: int | None = None
    memory_max: int | None = None
    """The memory limit; 0 means no limit."""
    evicted: int | None = None
    appendonly: bool | None = None
    saves: bool | None = None
    """Whether the server takes snapshots."""
    is_persisting: bool | None = None
    """Whether the last snapshot and the last write of the append-only file succeeded."""
    account: str = ""
    """The service whose needs the login was compared with; of several services, the one that it matches best."""
    refused: list[str] = []
    """Commands with their keys that this service needs and the login may not use."""
    unread: list[str] = []
    """Commands of this check that the account may not use."""
    dead: int | None = 0
    """Number of dead letters."""
    waiting: int | None = 0
    """Number of hints that were delivered and not acknowledged."""
    stale_consumers: int | None = 0
    """Number of consumers that have left a hint untouched for `STALE_S`, without another consumer claiming it."""


STALE_S = 600.0


class ServerHealthReader(Protocol):
    """Reads the condition of the server."""

    async def look(self) -> ServerHealth:
        """Return the current condition. Changes nothing. Raises `UnavailableError`, `DeadlineError`, `DeniedError`."""
        ...


class StreamEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One event to append.

    `oldest_seq` is the lowest seq that the caller could still publish (the oldest of its ring). An empty stream must
    begin there; otherwise the outcome is GAP. With None, any seq may begin a stream. `expire_s` is the remaining life
    of the stream in seconds. With None, it is the table's TTL when the event is the last one, and before that there is
    no expiry.
    """

    event: AllocationEvent
    oldest_seq: int | None = None
    expire_s: int | None = None


class EntryOutcome(StrEnum):
    """The result for one entry."""

    APPENDED = "appended"
    DUPLICATE = "duplicate"
    GAP = "gap"


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one entry. `last_seq` is the last seq of the stream now; None when it is empty."""

    outcome: EntryOutcome
    last_seq: int | None


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event as read. Resume after `cursor`."""

    cursor: str
    event: AllocationEvent


class EventLog(Protocol):
    """The streams of single allocations, and the firehose, which is written first and at least once.

    An allocation's stream is strictly ordered and contiguous. An entry is accepted in three cases: it follows the last
    entry; the stream is empty (see `StreamEntry.oldest_seq`); or it is marked `truncated: "<from>-<to>"` with from =
    last + 1 and to = seq - 1. Otherwise it is a DUPLICATE or leaves a GAP, and nothing changes.
    """

    async def append(self, entries: Sequence[StreamEntry]) -> list[Appended]:
        """Append in the given order, and return one result per entry. Accepted entries are also published to the
        firehose.
        """
        ...

    async def last_seqs(self, allocations: Sequence[AllocationId]) -> list[int | None]:
        """Return the last seq of each allocation's stream; None when it is empty or absent."""
        ...

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 100) -> list[StoredEvent]:
        """Return up to `limit` events after the cursor, oldest first."""
        ...

    def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[StoredEvent]:
        """Yield every event after the cursor, for ever, each once, in order, even when the stream is lost and
        rebuilt.
        """
        ...


class FirehoseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the sharded firehose. `cursor` is the position in all shards after it."""

    cursor: str
    shard: int
    event: AllocationEvent


class Firehose(Protocol):
    """All events of all allocations, at least once, ordered by seq per subject. Readers must drop duplicates by event
    id.

    A firehose cursor is the list of its shards' cursors joined by commas.
    """

    async def tail(self) -> str:
        """Return the cursor after the newest entries."""
        ...

    async def read(self, *, after: str | None = None, limit: int = 100, block_s: float = 0.0) -> list[FirehoseEvent]:
        """Return up to `limit` events per shard after the cursor. Waits up to `block_s` seconds for the first."""
        ...

    async def has_lost(self, after: str) -> bool:
        """Whether events after the cursor may have been removed because a shard was full.

        False is certain. True can mean that only the event at the cursor itself was removed.
        """
        ...


class WorkHint(msgspec.Struct, frozen=True, kw_only=True):
    """A request to process an allocation. It has only the key, so it cannot be stale: the handler reads the object
    again.
    """

    namespace: str
    allocation: AllocationId
    traceparent: str = ""

    @property
    def key(self) -> tuple[str, AllocationId]:
        """The key that two hints for the same object share."""
        return self.namespace, self.allocation


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """One delivered hint. `hint` is None when the entry could not be decoded (`problem` states why)."""

    shard: int
    entry_id: str
    deliveries: int
    hint: WorkHint | None
    problem: str = ""


class WorkHints(Protocol):
    """The sending side of the work queue."""

    async def send(self, hints: Sequence[WorkHint]) -> None:
        """Queue hints. Lossy by design: the owner of the truth sends them again."""
        ...


class StreamBacklog(NamedTuple):
    """The number of entries that no worker has received yet, and of those that are received but not acknowledged."""

    waiting: int
    in_work: int


class WorkStream(Protocol):
    """The receiving side of the work queue, at least once: an entry stays pending until it is acknowledged."""

    async def claim(self, *, limit: int, block_s: float) -> list[Claimed]:
        """Return new entries. Waits up to `block_s` seconds for the first. Creates lost groups again, from the
        start.
        """
        ...

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[Claimed]:
        """Return entries that were delivered, but not acknowledged or heartbeaten for `min_idle_s` seconds."""
        ...

    async def ack(self, claimed: Sequence[Claimed]) -> None:
        """Remove these entries from the pending ones, because their effect is durable."""
        ...

    async def heartbeat(self, claimed: Sequence[Claimed]) -> None:
        """Report that these entries are still in work. No other consumer may claim them for another idle period."""
        ...

    async def release(self, claimed: Sequence[Claimed]) -> None:
        """Report a failure that is not the entry's fault. The entry stays pending, and this delivery is not counted."""
        ...

    async def dead_letter(self, claimed: Claimed, *, cause: str) -> None:
        """Move an entry to the dead letters. It is written there before it is acknowledged here."""
        ...

    async def trim(self) -> int:
        """Remove entries that every group has acknowledged, and no others; return their number."""
        ...

    async def forget_consumers(self, *, idle_s: float = 3_600.0) -> int:
        """Remove consumers without pending entries that were idle for `idle_s`; return their number."""
        ...

    async def backlog(self) -> int:
        """Return the number of entries not yet acknowledged by the workers (waiting and in work)."""
        ...

    async def standing(self) -> StreamBacklog:
        """Return the backlog as two numbers, cheap enough for frequent calls. At most `keys.STANDING_MAX` entries of
        each shard are counted.
        """
        ...


class WakeUp(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a wait. Without reasons, the time ran out."""

    cursor: str | None
    reasons: tuple[str, ...]


class Wake(Protocol):
    """Wake-ups for the scheduler. A wake-up is a signal, not a message."""

    async def ring(self, reason: str) -> None:
        """Wake all waiting processes."""
        ...

    async def wait(self, after: str | None, *, timeout_s: float) -> WakeUp:
        """Wait until a ring after the cursor, at most `timeout_s` seconds. `after=None` waits for the next ring."""
        ...


class FeedOp(StrEnum):
    """The kind of a feed entry."""

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
    """The end of a feed, or the position of a reader. Epoch 0 is the empty feed."""

    cursor: str | None
    epoch: int
    number: int


class Feed(Protocol):
    """The raw cluster feed. The publisher and the reader in `feed.py` give it meaning."""

    async def append(self, entries: Sequence[FeedEntry], *, after: str | None) -> str:
        """Append all entries or none, and return the new end.

        `after` is the end that this publisher wrote last; None before its first write. Raises `StaleError` when the
        feed contains entries of this epoch or a higher one from another publisher. Raises `ExpiredError` when the
        publisher's own end is gone, because the server lost it.
        """
        ...

    async def read(self, after: str | None, *, limit: int, block_s: float) -> list[tuple[str, FeedEntry]]:
        """Return up to `limit` (cursor, entry) after the cursor. Waits up to `block_s` seconds for the first.

        Entries that were appended together may share a cursor, and are returned together.
        """
        ...

    async def position(self) -> FeedPosition:
        """Return the current end of the feed."""
        ...

    async def keep(self, slot: int, parts: Mapping[str, bytes], *, anew: bool) -> None:
        """Store parts of a snapshot in one of the `SNAPSHOT_SLOTS`. With `anew`, remove the old content first."""
        ...

    async def kept(self, slot: int, parts: Sequence[str]) -> list[bytes | None]:
        """Return these parts of the snapshot in a slot; None for each missing part."""
        ...


class LogLines(Protocol):
    """The lines that containers print: the first and last lines of each log, with the gaps between them
    (`logpacks.py`).
    """

    async def append(self, packs: Sequence[LogPack]) -> list[LogAppended]:
        """Append each pack after the position that it names; otherwise return the log's real position. Idempotent."""
        ...

    async def positions(self, allocation: AllocationId) -> dict[LogKey, LogPosition]:
        """Return how far each log of the allocation is stored."""
        ...

    async def position(self, allocation: AllocationId, source: LogKey) -> LogPosition:
        """Return how far one log is stored; the beginning when nothing is stored."""
        ...

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 500) -> list[StoredLine]:
        """Return up to `limit` lines of all logs after the cursor, oldest first."""
        ...

    async def page(self, allocation: AllocationId, *, after: str | None = None) -> list[StoredLine]:
        """Return the lines of the next packs after the cursor, at most `PAGE_PACKS` packs, oldest first; empty at the
        end.

        This is for copying whole logs: a page is limited in bytes, even when lines are long.
        """
        ...

    async def tail(self, allocation: AllocationId, *, limit: int) -> list[StoredLine]:
        """Return the newest `limit` lines of all logs, oldest first."""
        ...

    def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[list[StoredLine]]:
        """Yield every line after the cursor, for ever, in batches of all available lines."""
        ...


class SpanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One finished span, small enough to be stored beside the events. Times are in nanoseconds since the epoch."""

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
    """Traceparents of the spans that it follows from."""


class TraceLog(Protocol):
    """Spans per allocation, capped, for the waterfall."""

    async def append(self, spans: Mapping[AllocationId, Sequence[SpanRecord]]) -> None:
        """Append the finished spans of each allocation; one exchange may serve many allocations."""
        ...

    async def read(self, allocation: AllocationId, *, limit: int = 500) -> list[SpanRecord]:
        """Return the newest `limit` spans, oldest first."""
        ...


class Activity(Protocol):
    """When an allocation was last used, by source (proxy, reported...)."""

    async def touch(self, times: Mapping[AllocationId, Mapping[str, float]]) -> None:
        """Record when (seconds since the epoch) each source last saw each allocation active. Times never go back."""
        ...

    async def read(self, allocations: Sequence[AllocationId]) -> list[Mapping[str, float]]:
        """Return {source: seconds since the epoch} of each; empty when nothing is known, which is treated as active
        now.
        """
        ...


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter: its source, its cause, and its raw fields."""

    id: str
    source: str
    entry_id: str
    cause: str
    deliveries: int
    fields: Mapping[str, str]


class DeadLetters(Protocol):
    """Messages that could not be handled, stored for an administrator."""

    async def page(self, *, after: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Return up to `limit` letters after the id, oldest first."""
        ...

    async def find(self, letter_id: str) -> DeadLetter | None:
        """Return one letter. Raises `InvalidError` when the id is malformed."""
        ...

    async def replay(self, letter_id: str) -> bool:
        """Send the letter's fields to its source again, then drop the letter; False when no letter has that id."""
        ...

    async def drop(self, letter_id: str) -> bool:
        """Remove a letter; False when no letter has that id."""
        ...


class StreamsHealth(Protocol):
    """Whether the streams can be read and written."""

    async def ping(self) -> float:
        """Return the seconds of one round trip that writes. Raises `TransientError` when no server accepts the
        write.
        """
        ...


class Tally(Protocol):
    """A counter of the values that lossy parts drop and of the work of consumers. The telemetry adapter implements
    it.
    """

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name` (a name of `keys.COUNTERS`)."""
        ...

    def took(self, spent_s: float, traceparent: str) -> None:
        """Record that a hint with this traceparent was handled in `spent_s` seconds."""
        ...


class NoTally:
    """A tally that counts nothing."""

    def count(self, name: str, amount: int = 1) -> None:
        """Ignore the call."""

    def took(self, spent_s: float, traceparent: str) -> None:
        """Ignore the call."""


class Streams(Protocol):
    """All ports, from which a composition root passes single ones to their users."""

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
    def conditions(self) -> ServerHealthReader: ...

    def work_queue(self, consumer: str) -> WorkStream:
        """Return the work queue for the consumer of that name (unique per process: the pod's uid)."""
        ...

    def webhooks(self, consumer: str) -> Webhooks:
        """Return the webhook deliveries for the consumer of that name (the same name after a restart)."""
        ...

    def event_group(self, group: str, consumer: str) -> "EventGroup":
        """Return a consumer group of an integration on the firehose, for the consumer of that name."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...
