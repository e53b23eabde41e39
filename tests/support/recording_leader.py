"""A leader's tables, a recorder and a log that is a list: only what a recorded tick needs."""

from typing import Any

import msgspec

from slipway.model.facts import AllocationFact, NodeFact, PoolFact, QueueFact, WorkspaceFact
from slipway.model.ledger import Ledger
from slipway.model.lifecycle import Phase
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.decisions.replay import OtherPolicy, Replayer, ReplayReport, replay
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.extender_results import Answers
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.pool_view import PlannerView
from slipway.scheduler.ports import RecordSink
from slipway.scheduler.recorder import DecisionLogWriter, PlanInputs, Recorder
from slipway.streams.decisions import DecisionEntry
from tests.support.clock import FakeClock
from tests.support.planner import NAMESPACE

POOL = "default"


class ListSink:
    """A log in memory. `lose` empties it; `fault` is raised by the next write."""

    def __init__(self) -> None:
        self.entries: list[DecisionEntry] = []
        self.fault: Exception | None = None

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None) -> str | None:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        if base is not None and not any((each.chain, each.number) == (base, 0) for each in self.entries):
            return None
        self.entries.append(entry)
        return entry.chain

    def lose(self) -> None:
        """Remove all entries."""
        self.entries.clear()


class RecordingLeader:
    """One leadership: `put` adds facts, `tick` plans, records and carries out the plan."""

    def __init__(self, sink: RecordSink | None = None, *, epoch: int = 1, pool: str = POOL) -> None:
        self.sink = sink if sink is not None else ListSink()
        self.clock = FakeClock()
        self.cluster = Cluster()
        self.view = PlannerView(pool, self.cluster)
        self.writer = DecisionLogWriter(pool, self.sink, self.clock)
        self.recorder = Recorder(pool, self.cluster, (self.writer,), version="test")
        self.ledger = Ledger(epoch=epoch)
        self.snapshots: dict[int, PoolSnapshot] = {}
        """{tick: the snapshot that was planned on}"""
        self._version = 0

    def furnish(
        self, *nodes: NodeFact, pool: PoolFact | None = None, queues: tuple[str, ...] = ("default",)
    ) -> "RecordingLeader":
        """Add a pool with these nodes and queues."""
        self.put("resourcepools", POOL, pool or PoolFact(name=POOL))
        self.put("namespaces", NAMESPACE, WorkspaceFact(name=NAMESPACE, is_workspace=True))
        for name in queues:
            self.put("queues", name, QueueFact(name=name))
        for node in nodes:
            self.put("nodes", node.name, node)
        return self

    def put(self, kind: str, key: str, fact: Any) -> None:
        """Add or change one fact; None removes it."""
        self._version += 1
        table = self.cluster.table(kind)
        assert table is not None
        if fact is None:
            table.drop(key, self._version)
        else:
            table.put(key, fact, self._version)

    def submit(self, *facts: AllocationFact) -> None:
        """Add or change allocations."""
        for fact in facts:
            self.put("allocations", fact.key, fact)

    def tick(self, *, commits: bool = True, answers: Answers | None = None) -> Plan:
        """Plan as the leader does, and carry out the decisions at once."""
        self.clock.advance(1.0)
        now, seed = self.clock.now(), self.ledger.tick
        snapshot = self.view.snapshot(self.ledger, now)
        self.recorder.observe()
        policy, trail = policy_of(snapshot.pool), self.recorder.new_trace()
        made = plan(snapshot, policy, now, seed, answers=answers, watch=trail, grows=True)
        inputs = PlanInputs(ledger=self.ledger, at=now, seed=seed, policy=policy, answers=answers)
        taken = self.recorder.record_of(made, trail, inputs)
        if made.is_empty or not commits:
            return made
        self.ledger = msgspec.structs.replace(self.ledger, tick=seed + 1)
        self.snapshots[self.ledger.tick] = snapshot
        self.recorder.offer(taken, epoch=self.ledger.epoch, tick=self.ledger.tick)
        self._carry_out(made)
        return made

    def end(self, name: str) -> None:
        """End the allocation of that name."""
        key = f"{NAMESPACE}/{name}"
        fact = self.cluster.allocations.get(key)
        assert fact is not None
        self.put("allocations", key, msgspec.structs.replace(fact, phase=Phase.TERMINATED))

    @property
    def sink_list(self) -> ListSink:
        """The log, which must be a ListSink."""
        assert isinstance(self.sink, ListSink)
        return self.sink

    @property
    def log(self) -> list[tuple[bytes, int]]:
        """The log as a replay reads it."""
        return [(entry.data, entry.tick) for entry in self.sink_list.entries]

    def _carry_out(self, made: Plan) -> None:
        for evict in made.evictions:
            fact = self.cluster.allocations.get(evict.allocation)
            assert fact is not None
            again = msgspec.structs.replace(fact, phase=Phase.PENDING, placements={}, attempt=fact.attempt + 1)
            self.put("allocations", fact.key, again)
        for admit in made.admits:
            fact = self.cluster.allocations.get(admit.allocation)
            assert fact is not None
            devices: Any = {rank: tuple(held) for rank, held in admit.devices.items()}
            changes: dict[str, Any] = {"phase": Phase.RUNNING, "placements": admit.placements}
            if "devices" in AllocationFact.__struct_fields__:
                changes["devices"] = devices
            self.put("allocations", fact.key, msgspec.structs.replace(fact, **changes))


def replayed(log: list[tuple[bytes, int]], *, other: OtherPolicy | None = None, **limits: Any) -> ReplayReport:
    """The report of a replay."""
    return replay(log, Replayer(other=other, **limits))
