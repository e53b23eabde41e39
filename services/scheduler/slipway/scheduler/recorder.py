"""Writes the decision log: the input and the decisions of each tick, without slowing the tick.

Owns the rate, the chains of records and the count of lost ticks. `record_of` collects the changes since the last
recorded tick. `offer` queues them once the decisions are in the ledger. Encoding and writing happen in `run`, a few
facts at a time. A tick never waits for the log and never fails because of it: a tick that does not fit or cannot be
written is dropped and counted, and the next record is a new base. No decision is made from the log.

The stores of the decision log, a stream or a file, do not know what an entry means.
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway.errors import InvalidError, PermanentError, TransientError, UnavailableError
from slipway.facts.core_objects import FEED_KINDS, Fact, encode_fact
from slipway.facts.custom_resources import is_settled
from slipway.model.decay import DecayedUsage
from slipway.model.facts import VOLUMES, AllocationFact, VolumeFact
from slipway.model.ledger import Ledger
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.scheduler.cluster import ChangedKeys, Cluster, FactTable
from slipway.scheduler.decisions import record
from slipway.scheduler.decisions.record import (
    DecisionRecord,
    EncodedFacts,
    RecordedDecisions,
    ShadowComparison,
    decisions_of,
    line_of,
)
from slipway.scheduler.plan.placement.policy import PlacementPolicy
from slipway.scheduler.plan.placement.tick_state import PlanTrace
from slipway.scheduler.plan.state.extender_results import Answers, ExtenderAnswer
from slipway.scheduler.plan.state.past_use import QueueUsage
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.ports import RecordSink
from slipway.streams.decisions import CHAIN_MAX, DecisionEntry, DecisionLog, DecisionLogLimits
from slipway.streams.keys import DECISIONS

WAITING_MAX: Final = 32
"""The most ticks that wait to be written."""
BASE_WORTH: Final = 4
"""A chain begins again when its changes are larger than so many times its base."""
SLICE: Final = 128
"""The number of facts that are encoded at a time."""
WRITE_DEADLINE_S: Final = 5.0
FINISH_S: Final = 1.0
AWAY_S: Final = 5.0
"""The pause after a failed write, in which ticks are dropped without encoding them."""

FactKey = tuple[str, str]
"""(kind, key)"""

_answers = msgspec.json.Encoder(order="deterministic")
_log = log.get_logger(__name__)


Kept = Fact | ExtenderAnswer | QueueUsage | DecayedUsage | VolumeFact | None


class PlanInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a plan, besides the snapshot."""

    ledger: Ledger
    at: float
    seed: int
    policy: PlacementPolicy
    answers: Answers | None = None


class RecordedTick(msgspec.Struct, kw_only=True):
    """A tick that may be recorded."""

    facts: dict[FactKey, Kept]
    """the changes since the last recorded tick"""
    inputs: PlanInputs
    decided: RecordedDecisions
    version: str
    epoch: int = 0
    tick: int = 0
    shadow: ShadowComparison | None = None


class Recorder:
    """The decision log of one leadership."""

    def __init__(self, pool: str, cluster: Cluster, writers: Sequence["DecisionLogWriter"], *, version: str) -> None:
        self._pool = pool
        self.writers = writers
        """each one has its own task (`run`)"""
        self._version = version
        self._readers: list[tuple[str, FactTable[Any], ChangedKeys]] = []
        for kind in FEED_KINDS if writers else ():
            table = cluster.table(kind)
            if table is not None:
                self._readers.append((kind, table, table.changes()))
        if writers:
            self._readers.append((VOLUMES, cluster.volumes, cluster.volumes.changes()))
        self._open: dict[FactKey, Kept] = {}
        """changes that no recorded tick contains yet"""
        self._answers: Answers = {}
        self._cluster = cluster
        self._accounts = cluster.accounts
        self._decayed = DecayedUsage()

    def new_trace(self) -> PlanTrace | None:
        """Return the trace that a recorded plan fills in; None when nothing is recorded."""
        return PlanTrace() if self.writers else None

    def observe(self) -> None:
        """Note the changes in a snapshot that was just made. It must be called before the next await."""
        for kind, table, changes in self._readers:
            for key in changes.take():
                self._open[kind, key] = self._relevant(table.get(key))
        if self._cluster.accounts is not self._accounts:
            self._accounts = self._open[record.ACCOUNTS, ""] = self._cluster.accounts
        if self._cluster.decayed is not self._decayed and self._cluster.decayed != self._decayed:
            self._decayed = self._open[record.PAST, ""] = self._cluster.decayed

    def record_of(self, plan: Plan, trace: PlanTrace | None, inputs: PlanInputs) -> RecordedTick | None:
        """Return the tick for `offer`; None when there is nothing to record."""
        if trace is None or plan.is_empty:
            return None
        self._note_answers(inputs.answers or {})
        decided = decisions_of(plan, trace)
        return RecordedTick(facts=dict(self._open), inputs=inputs, decided=decided, version=self._version)

    def offer(
        self, recorded: RecordedTick | None, *, epoch: int, tick: int, shadow: ShadowComparison | None = None
    ) -> None:
        """Queue a tick for writing, after its decisions were committed to the ledger."""
        if recorded is None:
            return
        recorded.epoch, recorded.tick, recorded.shadow = epoch, tick, shadow
        self._open.clear()
        for writer in self.writers:
            writer.offer(recorded)

    async def flush(self) -> None:
        """Write the queued ticks."""
        for writer in self.writers:
            await writer.flush()

    async def finish(self) -> None:
        """Write the queued ticks at the end of the leadership, for at most `FINISH_S`."""
        try:
            async with asyncio.timeout(FINISH_S):
                await self.flush()
        except TimeoutError:
            _log.warning("last ticks not recorded", pool=self._pool)

    def _note_answers(self, answers: Answers) -> None:
        """Note changed answers of extenders, which are recorded like facts."""
        before, self._answers = self._answers, answers
        for key in before.keys() | answers.keys():
            if before.get(key) != answers.get(key):
                self._open[record.ANSWERS, record.answer_name(key)] = answers.get(key)

    def _relevant(self, fact: Fact | None) -> Fact | None:
        """Return the fact if planning reads it; None for allocations of other pools, and ended ones."""
        if isinstance(fact, AllocationFact) and (fact.pool != self._pool or is_settled(fact)):
            return None
        return fact


class DecisionLogWriter:
    """Writes the log to one sink."""

    def __init__(self, pool: str, sink: RecordSink, clock: Clock) -> None:
        self._pool = pool
        self._sink = sink
        self._clock = clock
        self._waiting: deque[tuple[RecordedTick, dict[FactKey, Kept]]] = deque()
        self._something = asyncio.Event()
        self._turn = asyncio.Lock()
        self._lost: dict[FactKey, Kept] = {}
        """the changes of dropped ticks, which are added to the next tick"""
        self._facts = EncodedFacts()
        self._chain = ""
        """the id of the chain; empty: the next record must be a base"""
        self._base: str | None = None
        self._number = 0
        self._grown = 0
        """the bytes of changes since the base"""
        self._tick = 0
        self._away_until = 0.0

    def offer(self, recorded: RecordedTick) -> None:
        """Queue a tick, or drop it when too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            self._lost |= recorded.facts
            self._drop("dropped")
            return
        self._waiting.append((recorded, self._lost | recorded.facts if self._lost else recorded.facts))
        self._lost = {}
        self._something.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            with liveness.rest(lambda: self._waiting):
                await self._something.wait()
            self._something.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write the queued ticks."""
        async with self._turn:
            while self._waiting:
                await self._write(*self._waiting.popleft())

    async def _write(self, recorded: RecordedTick, facts: dict[FactKey, Kept]) -> None:
        changes: record.Facts = {}
        try:
            changes = await self._encode(facts)
        except (msgspec.MsgspecError, TypeError, ValueError) as exc:
            # Without this fact every later record would be incomplete.
            _log.warning(
                "fact not encoded: recording stopped until the next leadership", pool=self._pool, error=str(exc)
            )
            self._away_until = math.inf
        if self._clock.monotonic() < self._away_until:
            self._drop("dropped")
            return
        if recorded.tick != self._tick + 1 or self._number >= CHAIN_MAX or self._grown > BASE_WORTH * self._facts.size:
            self._chain = ""
        self._tick = recorded.tick
        try:
            async with asyncio.timeout(WRITE_DEADLINE_S):
                is_written = bool(self._chain) and await self._append(recorded, changes)
                if not is_written:
                    await self._begin(recorded)
        except (TransientError, TimeoutError) as exc:
            _log.warning("tick not recorded", pool=self._pool, tick=recorded.tick, error=str(exc))
            self._away_until = self._clock.monotonic() + AWAY_S
            self._drop("dropped")
        except (InvalidError, PermanentError) as exc:
            _log.warning("tick not recorded", pool=self._pool, tick=recorded.tick, error=str(exc))
            self._away_until = self._clock.monotonic() + AWAY_S
            self._drop("too_large" if isinstance(exc, InvalidError) else "dropped")

    async def _encode(self, facts: dict[FactKey, Kept]) -> record.Facts:
        """Encode the changes, a few at a time, and store them in the encoded facts."""
        changes: record.Facts = {}
        for number, ((kind, key), fact) in enumerate(facts.items(), 1):
            data = None if fact is None else _encoded(fact)
            if self._facts.put(kind, key, data):
                changes.setdefault(kind, {})[key] = record.GONE if data is None else msgspec.Raw(data)
            if number % SLICE == 0:
                await self._clock.sleep(0)
        return changes

    async def _begin(self, recorded: RecordedTick) -> None:
        """Begin a new chain with this tick as its base."""
        self._chain, self._number, self._grown = f"{recorded.epoch}-{recorded.tick}", 0, 0
        whole: record.Facts = {
            kind: {key: msgspec.Raw(data) for key, data in facts.items()} for kind, facts in self._facts.kinds.items()
        }
        self._base = None
        await self._append(recorded, whole)

    async def _append(self, recorded: RecordedTick, facts: record.Facts) -> bool:
        """Append one record; return False when the log has lost the base."""
        made = self._record(recorded, facts)
        text = record.text_of(made)
        data = await record_data(text, self._clock)
        entry = DecisionEntry(chain=made.chain, number=made.number, tick=made.tick, data=data)
        cursor = await self._sink.append(self._pool, entry, base=self._base)
        if cursor is None:
            return False
        if made.number == 0:
            self._base = cursor
        else:
            self._grown += len(text)
        self._number += 1
        telemetry.DECISION_LOG.labels(pool=self._pool, outcome="written").inc()
        telemetry.DECISION_LOG_BYTES.labels(pool=self._pool).inc(len(data))
        return True

    def _record(self, recorded: RecordedTick, facts: record.Facts) -> DecisionRecord:
        inputs = recorded.inputs
        return DecisionRecord(
            format=record.FORMAT,
            pool=self._pool,
            epoch=recorded.epoch,
            tick=recorded.tick,
            chain=self._chain,
            number=self._number,
            at=inputs.at,
            seed=inputs.seed,
            facts=facts,
            ledger=inputs.ledger,
            input_hash=record.input_hash(self._facts.digest, inputs.ledger, inputs.at, inputs.seed),
            policy_hash=record.policy_hash(inputs.policy),
            consulted=inputs.answers is not None,
            decided=recorded.decided,
            planner=recorded.version,
            shadow=recorded.shadow,
            grows=True,
        )

    def _drop(self, outcome: str) -> None:
        """Count a lost tick; the chain has a hole, so the next record must be a base."""
        self._chain = ""
        telemetry.DECISION_LOG.labels(pool=self._pool, outcome=outcome).inc()


def _encoded(fact: Fact | ExtenderAnswer | QueueUsage | DecayedUsage | VolumeFact) -> bytes:
    """Return the fact as in the feed; sets of node names are sorted."""
    if isinstance(fact, ExtenderAnswer):
        return _answers.encode(fact)
    return msgspec.json.encode(fact) if isinstance(fact, QueueUsage | DecayedUsage | VolumeFact) else encode_fact(fact)


async def record_data(text: bytes, clock: Clock) -> bytes:
    """Compress a record's text in parts, so that other tasks may run in between."""
    packing = record.packing()
    parts: list[bytes] = []
    for start in range(0, len(text), record.PACKED_AT_ONCE):
        parts.append(packing.compress(text[start : start + record.PACKED_AT_ONCE]))
        await clock.sleep(0)
    return record.sealed(b"".join([*parts, packing.flush()]))


OLD_SUFFIX = ".1"
FILE_BYTES_MAX = 256 * 1024 * 1024


class StreamSink:
    """A stream in Redis, which the api reads."""

    def __init__(self, decisions: DecisionLog, *, size_max: int) -> None:
        self._decisions = decisions
        self._caps = DecisionLogLimits(entries=DECISIONS.length_max, size=size_max)

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None) -> str | None:
        return await self._decisions.append(pool, entry, base=base, caps=self._caps)


class FileSink:
    """A file of JSON lines, for a system without Redis.
    Beyond its maximum size it begins again, and one old file is kept."""

    def __init__(self, path: Path, *, size_max: int) -> None:
        self._path = path
        self._size_max = size_max

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None) -> str | None:
        line = line_of(pool, entry)
        try:
            size = self._path.stat().st_size if self._path.exists() else 0
            if base is not None and size == 0:
                return None
            if size and size + len(line) > self._size_max:
                self._path.replace(self._path.with_name(self._path.name + OLD_SUFFIX))
                if base is not None:
                    return None
            with self._path.open("ab") as file:
                file.write(line)
        except OSError as exc:
            raise UnavailableError(f"{self._path}: {exc.strerror or exc}") from exc
        return f"{entry.tick}-{entry.number}"
