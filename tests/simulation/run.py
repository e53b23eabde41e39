"""One run: a scenario, a seed and some faults in; violations and the effects that there were out.

Owns when a world is at rest, and what has to hold then (I18: within a minute of the last fault everything is as
desired, and then nobody writes anything but leases). Deterministic: equal arguments give equal answers.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slipway.audit.check import audit
from slipway.audit.evidence import Violation
from slipway.audit.rest import OURS, leftovers
from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.crd.transitions import id_of, ring_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from tests.simulation.scenarios import SCENARIOS, Ending, Scenario
from tests.support.faults import Effect, Fault
from tests.support.witness import Witness
from tests.support.world import World, run_world

SETTLE_S = 60.0
"""What I18 grants after the last fault."""
SILENT_S = 2.0
QUIET_S = 5.0
LONG_QUIET_S = 65.0
"""Longer than any resync, sweep or retention: for runs without faults."""
LOOK_S = 0.25
CHANGES_MAX = 3_000
"""More writes than any scenario needs, by far."""


class Outcome(msgspec.Struct, kw_only=True):
    """What one run showed."""

    scenario: str
    seed: int
    faults: tuple[str, ...] = ()
    replicas: int = 1
    violations: list[str] = []
    effects: list[Effect] = []
    struck: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0

    @property
    def replay(self) -> str:
        """The arguments that run it again."""
        faults = "".join(f" --crash {fault}" for fault in self.faults)
        replicas = f" --replicas {self.replicas}" if self.replicas > 1 else ""
        return f"--scenario {self.scenario} --seed {self.seed}{replicas}{faults}"


def run(name: str, seed: int, faults: Iterable[Fault] = (), *, replicas: int = 1) -> Outcome:
    """Plays one scenario."""
    scenario, planned = SCENARIOS[name], tuple(faults)
    setup = scenario.setup
    if replicas > 1:
        each = {"scheduler": replicas, "podworker": replicas, "watcher": replicas}
        setup = msgspec.structs.replace(setup, replicas=each)
    begun = time.perf_counter()
    outcome = Outcome(scenario=name, seed=seed, faults=tuple(map(str, planned)), replicas=replicas)

    async def play(world: World) -> None:
        await _play(world, scenario, outcome, quiet_s=QUIET_S if planned else LONG_QUIET_S)

    try:
        run_world(play, setup, seed=seed, faults=planned)
    except Exception as error:  # noqa: BLE001 - whatever breaks a run is a finding, with the line that replays it
        outcome.violations.append(f"RUN {type(error).__name__}: {error}")
    outcome.real_s = time.perf_counter() - begun
    return outcome


async def _play(world: World, scenario: Scenario, outcome: Outcome, *, quiet_s: float) -> None:
    witness = Witness(world)
    found: list[Violation] = []
    try:
        await scenario.story(world)
    except TimeoutError:
        found.append(Violation(invariant="I18", subject=scenario.name, message=f"no progress: {_states(world)}"))
    reason = await _settle(world, witness, scenario)
    outcome.effects = [effect for effect in world.trouble.effects if effect.number]
    if reason:
        found.append(Violation(invariant="I18", subject=scenario.name, message=f"not settled: {reason}"))
    else:
        found += await _quiet(world, quiet_s)
    evidence = witness.evidence(is_at_rest=True)
    found += audit(evidence)
    found += [Violation(invariant="CRASH", subject=scenario.name, message=why) for why in world.broken]
    outcome.violations = list(dict.fromkeys(map(str, found)))
    outcome.struck = len(world.trouble.struck)
    outcome.virtual_s = world.loop.time()


async def _settle(world: World, witness: Witness, scenario: Scenario) -> str:
    """Empty once everything is as desired; else why it is not, a minute after the last fault."""
    told_at = world.clock.now()
    while True:
        reason = _why_not(world, witness, scenario)
        silent_s = world.clock.now() - _last_write_at(world)
        if not reason and silent_s >= SILENT_S and world.clock.now() >= world.last_fault_at:
            return ""
        if len(world.changes) > CHANGES_MAX:
            return f"a storm of {len(world.changes)} writes"
        if world.clock.now() > max(told_at, world.last_fault_at) + SETTLE_S:
            return reason or "somebody keeps writing"
        await asyncio.sleep(LOOK_S)


def _why_not(world: World, witness: Witness, scenario: Scenario) -> str:
    allocations = {
        str(record.obj["metadata"]["name"]): msgspec.convert(record.obj, Allocation)
        for record in world.core.store.scan("allocations.slipway.dev")
    }
    for name, ending in scenario.ends.items():
        reason = _wrong_end(allocations.get(name), ending)
        if reason:
            return f"{name} {reason}"
    if world.setup.has_redis:
        streams = witness.streams()
        for name, allocation in allocations.items():
            events = streams.get(id_of(allocation), [])
            if not events or events[-1].seq != ring_of(allocation)[-1].seq:
                return f"the stream of {name} is behind"
        if witness.pending():
            return "hints are pending"
    objects = [(kind, record.obj["metadata"]) for kind in OURS for record in world.core.store.scan(kind)]
    left = next((f"{what}: {why}" for what, why in leftovers(allocations.values(), objects)), "")
    return left or _why_nobody_leads(world)


def _wrong_end(allocation: Allocation | None, ending: Ending) -> str:
    if allocation is None or ending.is_gone:
        return "" if ending.is_gone and allocation is None else "is there" if allocation else "is gone"
    status = allocation.status
    if status.phase is not ending.phase:
        return f"is {status.phase} in attempt {status.attempt} ({status.reason} {status.message})"
    if ending.phase is Phase.TERMINATED and TEARDOWN_FINALIZER in allocation.metadata.finalizers:
        return "is not let go"
    if ending.result is not None and status.result is not ending.result:
        return f"ended {status.result} ({status.reason} {status.message}), not {ending.result}"
    if ending.attempt is not None and status.attempt != ending.attempt:
        return f"took {status.attempt} attempts, not {ending.attempt}: {status.message}"
    return ""


async def _quiet(world: World, seconds: float) -> list[Violation]:
    """At rest nobody writes anything but leases."""
    begun = len(world.changes)
    await asyncio.sleep(seconds)
    return [
        Violation(invariant="I18", subject=change.key[1], message=f"{writer} writes {change.resource} at rest")
        for _, writer, change in world.changes[begun:]
        if not change.resource.startswith("leases")
    ][:3]


def _last_write_at(world: World) -> float:
    """When anything but a renewal was written: who has just become leader may still have to say so."""
    for at, _, change in reversed(world.changes):
        if not change.resource.startswith("leases") or change.previous is None:
            return at
        if _holder(change.record.obj) != _holder(change.previous.obj):
            return at
    return 0.0


def _why_nobody_leads(world: World) -> str:
    """A dead leader's lease runs out first; its successor then takes over, which writes."""
    living = {process.name for process in world.processes.values() if not process.is_dead}
    for record in world.core.store.scan("leases.coordination.k8s.io"):
        if _holder(record.obj) not in living:
            return f"lease {record.obj['metadata']['name']} is held by {_holder(record.obj)}"
    return ""


def _holder(lease: Mapping[str, Any]) -> str:
    return str(lease["spec"].get("holderIdentity") or "nobody")


def _states(world: World) -> str:
    return "; ".join(
        f"{record.obj['metadata']['name']} {record.obj.get('status', {}).get('phase')}"
        f" attempt {record.obj.get('status', {}).get('attempt')}"
        for record in world.core.store.scan("allocations.slipway.dev")
    )
