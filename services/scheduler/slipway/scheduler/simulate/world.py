"""The virtual world: nodes on which admitted ranks run for their duration, in virtual time.

Owns what has happened to each allocation (attempts, places, devices, times). Knows nothing of why; plans come in
and are carried out as they are. Devices are given as a node's device plugin would: the lowest free numbers.
"""

from typing import Any

import msgspec

from slipway.errors import InvariantError
from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.lifecycle import Phase
from slipway.model.resources import GPU
from slipway.scheduler.plan.ask import requests_of
from slipway.scheduler.plan.columns import Columns
from slipway.scheduler.plan.outcome import Admit, Evict
from slipway.scheduler.simulate import lower
from slipway.scheduler.simulate.scenario import AllocationPart, PlacedPart, Scenario


class Place(msgspec.Struct, kw_only=True):
    """One rank of the last attempt."""

    rank: int
    role: str
    node: str
    device: list[int]
    start: float
    end: float | None = None


class Life(msgspec.Struct, kw_only=True):
    """What has happened to one allocation so far."""

    part: AllocationPart
    fact: AllocationFact
    is_submitted: bool = False
    phase: Phase = Phase.PENDING
    start: float | None = None
    first_start: float | None = None
    end: float | None = None
    ends_at: float | None = None
    places: list[Place] = []


class World:
    """All lives, and the columns that the planner sees."""

    def __init__(self, scenario: Scenario) -> None:
        self.columns = Columns(lower.pool(scenario))
        self.nodes = lower.nodes(scenario)
        self.columns.set_nodes(self.nodes)
        self.columns.set_queues(lower.queues(scenario))
        self.columns.set_jobs(lower.jobs(scenario))
        self.columns.set_workspaces(frozenset({lower.NAMESPACE}))
        self.lives = {part.name: Life(part=part, fact=lower.allocation(part)) for part in scenario.allocations}
        self.evictions: list[dict[str, Any]] = []
        self._free = {node.name: list(range(node.allocatable.get(GPU))) for node in self.nodes}

    def submit(self, name: str) -> float | None:
        """It arrives, running already if the scenario says so; answers when it will end, if that is known."""
        life = self.lives[name]
        life.is_submitted = True
        if life.part.placed:
            places = [self._place(life, item.rank, item.node, item.since, item) for item in life.part.placed]
            self._run(life, places, min(item.since for item in life.part.placed))
        self._publish(life)
        return life.ends_at

    def admit(self, admit: Admit, now: float) -> float | None:
        """It starts; answers when it will end, if that is known."""
        life = self.lives[admit.uid]
        self._run(life, [self._place(life, rank, node, now) for rank, node in admit.placements.items()], now)
        self._publish(life)
        return life.ends_at

    def evict(self, evict: Evict, now: float) -> None:
        """It is taken down whole and waits again, as the next attempt."""
        life = self.lives[evict.uid]
        for place in life.places:
            by = evict.by.rpartition("/")[2] or None
            self.evictions.append({"time": now, "allocation": life.fact.name, "rank": place.rank, "for": by})
        self._release(life)
        life.phase, life.start, life.ends_at, life.places = Phase.PENDING, None, None, []
        life.fact = msgspec.structs.replace(life.fact, attempt=life.fact.attempt + 1)
        self._publish(life)

    def finish(self, name: str, now: float) -> None:
        """Its time is over."""
        life = self.lives[name]
        life.phase, life.end, life.ends_at = Phase.TERMINATED, now, None
        for place in life.places:
            place.end = now
        self._release(life)
        self._publish(life)

    def _run(self, life: Life, places: list[Place], start: float) -> None:
        life.phase, life.start, life.places = Phase.RUNNING, start, sorted(places, key=lambda place: place.rank)
        life.first_start = start if life.first_start is None else life.first_start
        limits = [limit for limit in (life.part.duration, life.part.max_runtime) if limit is not None]
        life.ends_at = start + min(limits) if limits else None

    def _place(self, life: Life, rank: int, node: str, start: float, item: PlacedPart | None = None) -> Place:
        role = _role_of(life.fact, rank)
        count = requests_of(role).get(GPU)
        free = self._free[node]
        named = [] if item is None or item.device is None else item.device
        device = ([named] if isinstance(named, int) else list(named)) or free[:count]
        self._free[node] = [number for number in free if number not in device]
        return Place(rank=rank, role=role.name, node=node, device=device, start=start)

    def _release(self, life: Life) -> None:
        for place in life.places:
            self._free[place.node] = sorted({*self._free[place.node], *place.device})

    def _publish(self, life: Life) -> None:
        """Show the planner what stands now."""
        placements = {place.rank: place.node for place in life.places} if life.phase is Phase.RUNNING else {}
        life.fact = msgspec.structs.replace(life.fact, phase=life.phase, placements=placements)
        self.columns.set_allocation(life.fact)


def _role_of(fact: AllocationFact, rank: int) -> RoleFact:
    for role in fact.roles:
        if rank < role.count:
            return role
        rank -= role.count
    raise InvariantError(f"{fact.name} has no such rank")
