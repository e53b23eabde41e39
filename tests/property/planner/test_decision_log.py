"""fold(decision log) equals the planner's input, and a replay gives the same decisions, after any events."""

import asyncio
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import PoolFact
from slipway.scheduler.decisions.record import unpack
from slipway.scheduler.decisions.replay import SnapshotRebuilder
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.property.planner.instances import Instance, instances
from tests.support.recording_leader import POOL, RecordingLeader, replayed

STEPS = st.lists(st.sampled_from(["tick", "tick", "end", "gone", "node", "node back", "hold", "refused"]), max_size=14)


def furnished(instance: Instance) -> RecordingLeader:
    """A leader that knows the instance except its allocations."""
    leadership = RecordingLeader().furnish(*instance.nodes, pool=msgspec.structs.replace(instance.pool, name=POOL))
    for queue in instance.queues:
        leadership.put("queues", queue.name, queue)
    for job in instance.jobs:
        leadership.put("jobs", f"{job.namespace}/{job.name}", job)
    for pod in instance.pods:
        leadership.put("pods", f"{pod.namespace}/{pod.name}", pod)
    return leadership


def happen(leadership: RecordingLeader, instance: Instance, steps: list[str], draw: Any) -> None:
    """Add the allocations one by one, with the steps between them."""
    coming = list(instance.allocations)
    for step in [*steps, *("tick" for _ in coming)]:
        known = sorted(fact.name for fact in leadership.cluster.allocations.values())
        if coming:
            leadership.submit(coming.pop())
        match step:
            case "end" | "gone" | "hold" if known:
                name = draw(st.sampled_from(known))
                fact = leadership.cluster.allocations.get(f"default/{name}")
                if step == "end":
                    leadership.end(name)
                elif step == "gone":
                    leadership.put("allocations", f"default/{name}", None)
                elif fact is not None:
                    leadership.submit(msgspec.structs.replace(fact, hold=not fact.hold))
            case "node":
                leadership.put("nodes", instance.nodes[0].name, None)
            case "node back":
                leadership.put("nodes", instance.nodes[0].name, msgspec.structs.replace(instance.nodes[0], ready=True))
            case _:
                leadership.tick(commits=step != "refused")


def image(snapshot: PoolSnapshot) -> list[Any]:
    """Everything that a plan reads, regardless of the order in which it became known."""
    table, usage = snapshot.table, snapshot.usage
    return [
        snapshot.pool,
        table.facts,
        usage.used.tolist(),
        usage.scored.tolist(),
        {port: counts.tolist() for port, counts in sorted(usage.ports.items()) if np.any(counts)},
        [(group.key, [fact for _, fact in group.members]) for group in snapshot.groups],
        {uid: (each.allocation, each.charges, each.admitted) for uid, each in sorted(snapshot.holdings.items())},
        [each.allocation.uid for each in snapshot.broken],
        sorted(snapshot.queues, key=lambda queue: queue.name),
        sorted(snapshot.jobs.items()),
        sorted(snapshot.workspaces),
        _used(snapshot),
        sorted((job, count) for job, count in snapshot.slots.items() if count),
        snapshot.now,
    ]  # fmt: skip


def _used(snapshot: PoolSnapshot) -> dict[str, Any]:
    """The use of queues, without unused ones."""
    return {
        name: use for name, use in sorted(snapshot.use.items()) if any((*use.preemptible.values(), *use.fixed.values()))
    }


@given(instances(), STEPS, st.data())
@settings(deadline=None, max_examples=60)
def test_the_log_folds_to_what_was_seen(instance: Instance, steps: list[str], data: st.DataObject) -> None:
    """Each recorded tick gives the same snapshot and the same decisions."""
    leadership = furnished(instance)
    happen(leadership, instance, steps, data.draw)
    asyncio.run(leadership.recorder.flush())
    if not leadership.log:
        return
    fold: SnapshotRebuilder | None = None
    for packed, tick in leadership.log:
        record = unpack(packed)
        fold = SnapshotRebuilder(record) if fold is None or record.number == 0 else fold
        assert image(fold.apply(record)) == image(leadership.snapshots[tick])
    report = replayed(leadership.log)
    assert (report.differences, report.skipped, report.ticks) == ([], [], len(leadership.log))


@given(instances(), STEPS, st.data())
@settings(deadline=None, max_examples=15)
def test_a_policy_of_its_own_is_no_other_policy(instance: Instance, steps: list[str], data: st.DataObject) -> None:
    """Under the recorded policy no decision would have been different."""
    leadership = furnished(instance)
    happen(leadership, instance, steps, data.draw)
    asyncio.run(leadership.recorder.flush())
    if leadership.log:
        same: PoolFact = msgspec.structs.replace(instance.pool, name=POOL)
        assert replayed(leadership.log, other=lambda _: same).would == []
