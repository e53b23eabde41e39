"""One run: takes a scenario, a seed and some faults; returns the violations and the effects.

Owns when a world is at rest, and what must be true then (I18: within a minute of the last fault everything is as
desired, and then only leases are written). Deterministic: equal arguments give equal answers.
"""

import asyncio
import gc
import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.crd.transitions import id_of, ring_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.ops.audit.check import audit
from slipway.ops.audit.evidence import InvariantViolation
from slipway.ops.audit.rest import OURS, leftovers
from tests.simulation.replays import Replays
from tests.simulation.scenarios import SCENARIOS, Ending, Scenario
from tests.support.faults import Effect, Fault, Kind
from tests.support.world import World, run_world
from tests.support.world_evidence import EvidenceRecorder

SETTLE_S = 60.0
"""The seconds that I18 allows after the last fault."""
SILENT_S = 2.0
RECOVERY_S = 4.0
"""Seconds after the last fault until every service has a leader again, which has written that."""
QUIET_S = 3.0
LONG_QUIET_S = 65.0
"""Longer than any resync, sweep or retention: for runs without faults."""
LOOK_S = 0.5
CHANGES_MAX = 3_000
"""Far more writes than any scenario needs."""
BROKEN_MAX = 10
"""The number of unplanned ends of processes after which waiting is pointless."""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of one run."""

    scenario: str
    seed: int
    faults: tuple[str, ...] = ()
    replicas: int = 1
    violations: list[str] = []
    effects: list[Effect] = []
    struck: int = 0
    trace: str = ""
    """A digest of every effect and every commit, if requested: equal runs have equal digests."""
    virtual_s: float = 0.0
    real_s: float = 0.0

    @property
    def replay(self) -> str:
        """The arguments that run it again."""
        faults = "".join(f" --crash {fault}" for fault in self.faults)
        replicas = f" --replicas {self.replicas}" if self.replicas > 1 else ""
        return f"--scenario {self.scenario} --seed {self.seed}{replicas}{faults}"


def run(
    name: str,
    seed: int,
    faults: Iterable[Fault] = (),
    *,
    replicas: int = 1,
    traced: bool = False,
    begin: Callable[[World, Outcome, Replays], None] = lambda _world, _outcome, _replays: None,
    finish: Callable[[Outcome], None] = lambda _outcome: None,
) -> Outcome:
    """Play one scenario. `begin` is called before it starts; `finish` once it has been judged, before its end."""
    scenario, planned = SCENARIOS[name], tuple(faults)
    setup = scenario.setup
    if replicas > 1:
        each = {"scheduler": replicas, "podworker": replicas, "watcher": replicas}
        setup = msgspec.structs.replace(setup, replicas={**setup.replicas, **each})
    begun = time.perf_counter()
    outcome = Outcome(scenario=name, seed=seed, faults=tuple(map(str, planned)), replicas=replicas)

    async def play(world: World) -> None:
        world.server.is_replicated = lambda: world.injector.expects(Kind.FAILOVER)
        replays = Replays(world)
        begin(world, outcome, replays)
        try:
            await _play(world, scenario, outcome, replays)
        except Exception as error:  # noqa: BLE001 - whatever breaks a run is a finding, with the line that replays it
            outcome.violations.append(f"RUN {type(error).__name__}: {error}")
        if traced:
            outcome.trace = _trace(world)
        outcome.real_s = time.perf_counter() - begun
        finish(outcome)

    try:
        with _uncollected():
            run_world(play, setup, seed=seed, faults=planned)
    except Exception as error:  # noqa: BLE001 - the same, of what runs before and after the story
        outcome.violations.append(f"RUN {type(error).__name__}: {error}")
    return outcome


@contextmanager
def _uncollected() -> Generator[None]:
    """Disable garbage collection: its time would depend on earlier runs in this process, and a run must not."""
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _play(world: World, scenario: Scenario, outcome: Outcome, replays: Replays) -> None:
    recorder = EvidenceRecorder(world)
    found: list[InvariantViolation] = []
    try:
        await scenario.story(world)
    except TimeoutError:
        found.append(
            InvariantViolation(invariant="I18", subject=scenario.name, message=f"no progress: {_states(world)}")
        )
    except AssertionError as error:
        # A failed assertion of the scenario does not show the cause; the audit may.
        found.append(InvariantViolation(invariant="RUN", subject=scenario.name, message=f"AssertionError: {error}"))
    reason, rest_from, writes = await _rest(world, recorder, scenario, outcome)
    if reason:
        found.append(InvariantViolation(invariant="I18", subject=scenario.name, message=f"not settled: {reason}"))
    found += writes
    evidence = recorder.evidence(is_at_rest=True, rest_from=rest_from)
    found += audit(evidence)
    found += replays.violations()
    found += [InvariantViolation(invariant="CRASH", subject=scenario.name, message=why) for why in world.broken]
    outcome.violations = list(dict.fromkeys(map(str, found)))
    outcome.struck = len(world.injector.struck)
    outcome.virtual_s = world.loop.time()


def _trace(world: World) -> str:
    told = hashlib.sha256()
    for effect in world.injector.effects:
        told.update(repr(effect).encode())
    for at, writer, change in world.changes:
        told.update(repr((at, writer, change.version, change.type)).encode())
        told.update(msgspec.json.encode(change.record.obj))
    return told.hexdigest()


async def _rest(
    world: World, recorder: EvidenceRecorder, scenario: Scenario, outcome: Outcome
) -> tuple[str, float | None, Sequence[InvariantViolation]]:
    """Return why the world does not come to rest; else since when it rests, and the writes at rest.

    The world must recover from a fault that strikes at rest too; effects at rest give no points of their own.
    """
    while True:
        struck = len(world.injector.struck)
        reason = await _settle(world, recorder, scenario)
        outcome.effects = world.injector.boundaries
        if reason:
            return reason, None, []
        rest_from = world.clock.now()
        writes = await _quiet(world, QUIET_S if outcome.faults else LONG_QUIET_S)
        if len(world.injector.struck) == struck:
            return "", rest_from, writes


async def _settle(world: World, recorder: EvidenceRecorder, scenario: Scenario) -> str:
    """Return nothing once everything is as desired; else why it is not, a minute after the last fault."""
    told_at, writes = world.clock.now(), _Writes(world)
    while True:
        now = world.clock.now()
        is_late = now > max(told_at, world.last_fault_at, *(at for at, _ in world.injector.struck)) + SETTLE_S
        is_silent = now - writes.last_at() >= SILENT_S and now >= world.last_fault_at + RECOVERY_S
        if is_silent or is_late:
            # Before that the answer would be no in any case.
            reason = _why_not(world, recorder, scenario)
            if is_silent and not reason:
                return ""
            if is_late:
                return reason or "somebody keeps writing"
        if len(world.changes) > CHANGES_MAX or len(world.broken) > BROKEN_MAX:
            return f"a storm of {len(world.changes)} writes, {len(world.broken)} ends of processes"
        await asyncio.sleep(LOOK_S)


def _why_not(world: World, recorder: EvidenceRecorder, scenario: Scenario) -> str:
    nobody = _why_nobody_leads(world)
    if nobody:
        return nobody
    if world.setup.has_redis and recorder.pending():
        return "hints are pending"
    allocations = recorder.allocations()
    for name, ending in scenario.ends.items():
        reason = _wrong_end(allocations.get(name), ending)
        if reason:
            return f"{name} {reason}"
    if world.setup.has_redis:
        for name, allocation in allocations.items():
            event = recorder.newest(id_of(allocation))
            if event is None or event.seq != ring_of(allocation)[-1].seq:
                return f"the stream of {name} is behind"
    objects = [(kind, record.obj["metadata"]) for kind in OURS for record in world.core.store.scan(kind)]
    return next((f"{what}: {why}" for what, why in leftovers(allocations.values(), objects)), "")


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


async def _quiet(world: World, seconds: float) -> list[InvariantViolation]:
    """Writes at rest other than leases; there was silence for a moment already."""
    begun = len(world.changes)
    await asyncio.sleep(seconds - SILENT_S)
    return [
        InvariantViolation(invariant="I18", subject=change.key[1], message=f"{writer} writes {change.resource} at rest")
        for _, writer, change in world.changes[begun:]
        if not change.resource.startswith("leases")
    ][:3]


class _Writes:
    """The time of the last write that is no renewal: a new leader may still have something to write. Each change is
    read once, because some runs are long."""

    def __init__(self, world: World) -> None:
        self._changes = world.changes
        self._seen, self._last_at = 0, 0.0

    def last_at(self) -> float:
        for at, _, change in self._changes[self._seen :]:
            is_renewal = (
                change.resource.startswith("leases")
                and change.previous is not None
                and _holder(change.record.obj) == _holder(change.previous.obj)
            )
            if not is_renewal:
                self._last_at = at
        self._seen = len(self._changes)
        return self._last_at


def _why_nobody_leads(world: World) -> str:
    """Why a service has no leader. A dead leader's lease expires first; then its successor takes over, which is a
    write."""
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
