"""The simulated world: nodes on which admitted ranks run for their duration, in virtual time.

Owns the history of each allocation (attempts, places, devices, times). Decides nothing: it carries out plans exactly as
they are. It assigns devices like a node's device plugin: the lowest free numbers.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slipway.errors import InvariantError
from slipway.model.decay import ByUser, DecayedUsage
from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.ids import allocation_id
from slipway.model.lifecycle import Phase
from slipway.model.mig import GPU_UNITS
from slipway.model.reasons import DependencyEnd
from slipway.model.resources import GPU, GPU_MILLI, MILLI, counted_gpus
from slipway.scheduler.plan.queueing.queue_tree import with_run_limits
from slipway.scheduler.plan.state import past_use
from slipway.scheduler.plan.state.flavors import labelled, where_it_stands
from slipway.scheduler.plan.state.nodes import NodeTable
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Grow
from slipway.scheduler.plan.state.pool_state import PoolState
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.plan.state.run_ends import run_limit
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.scenario_format import AllocationPart, PlacedPart, Scenario

Devices = tuple[int, ...]


_AT_ZERO = 1e-9
"""The value for a checkpoint at time 0, because 0 means no checkpoint in a fact."""


class SimulatedRank(msgspec.Struct, kw_only=True):
    """One rank of the last attempt."""

    rank: int
    role: str
    node: str
    device: list[int]
    start: float
    end: float | None = None


class GpuOccupancy(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that a queue used for some time."""

    queue: str
    gpu_units: int
    start: float
    end: float


class LostWork(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a rank used for work that an eviction undid."""

    used: Mapping[str, int]
    """base units, by resource"""
    start: float
    end: float


class AllocationHistory(msgspec.Struct, kw_only=True):
    """The history of one allocation so far."""

    part: AllocationPart
    fact: AllocationFact
    is_submitted: bool = False
    phase: Phase = Phase.PENDING
    start: float | None = None
    first_start: float | None = None
    end: float | None = None
    ends_at: float | None = None
    saved: float = 0.0
    """the seconds of running that its checkpoints have saved in earlier attempts"""
    places: list[SimulatedRank] = []


class SimulatedWorld:
    """The histories of all allocations, and the columns that the planner reads."""

    def __init__(self, scenario: Scenario, given: scenario_facts.ScenarioFacts | None = None) -> None:
        """`given` replaces everything in the scenario except times."""
        given = given or scenario_facts.facts_of(scenario)
        self.columns = PoolState(given.pool)
        self.nodes = given.nodes
        self.columns.set_nodes(self.nodes)
        flavors = given.pool.flavors
        self._flavored = NodeTable(labelled(node, flavors) for node in self.nodes) if flavors else None
        self.columns.set_queues(given.queues)
        self._queues = with_run_limits({queue.name: queue for queue in given.queues})
        self._windows = past_use.budget_windows(self._queues)
        self._stretches: list[GpuOccupancy] = []
        self._past = given.past
        self._held: dict[str, dict[str, int]] = {}
        """{queue: {user: GPUs in use, in `GPU_UNITS`}}, if the pool has `fairShare`"""
        self.columns.set_jobs(given.jobs)
        self.columns.set_workspaces(given.workspaces)
        self.columns.set_namespaces(given.namespaces)
        self.columns.set_volumes(given.volumes)
        self.columns.set_quotas(given.quotas)
        for pod in given.pods:
            self.columns.set_pod(pod)
        self.lives = {
            part.name: AllocationHistory(part=part, fact=given.allocations[part.name]) for part in scenario.allocations
        }
        self._dependents = [life for life in self.lives.values() if life.fact.waits_for]
        self._saving = [life for life in self.lives.values() if life.part.checkpoint_every]
        self.waiting: set[str] = set()
        """names of allocations that have arrived and do not run"""
        self.below_count: set[str] = set()
        """names of allocations that run with fewer ranks than they request"""
        self.used: dict[str, int] = {}
        """{resource: base units in use}"""
        self._devices: dict[str, dict[int, Devices]] = {}
        self.evictions: list[dict[str, Any]] = []
        self.evicted = given.evicted
        """the usage of the eviction limits"""
        self.lost: list[LostWork] = []
        self._left = {node.name: [MILLI] * node.allocatable.get(GPU) for node in self.nodes}
        """{node: free thousandths of each device}"""

    def flavor_of(self, life: AllocationHistory) -> str:
        """Return the flavor of the GPUs of its last attempt; "" for none."""
        if self._flavored is None:
            return ""
        fact = where_it_stands(life.fact, {place.rank: place.node for place in life.places}, self._flavored)
        return next((role.flavor for role in fact.roles if role.flavor), "")

    def submit(self, name: str) -> float | None:
        """Let an allocation arrive, running already if the scenario places it;
        return when it will end, if that is known."""
        life = self.lives[name]
        life.is_submitted = True
        if life.part.placed:
            told = self._devices_of(life)
            places = [self._place(life, item.rank, item.node, item.since, told[item.rank]) for item in life.part.placed]
            self._run(life, places, min(item.since for item in life.part.placed))
        self._publish(life)
        return life.ends_at

    def admit(self, admit: Admit, now: float) -> float | None:
        """Start an allocation; return when it will end, if that is known."""
        self._remember(now)
        life = self.lives[admit.uid]
        chosen = admit.devices
        places = [self._place(life, rank, node, now, chosen.get(rank)) for rank, node in admit.placements.items()]
        self._run(life, places, now)
        self._publish(life)
        return life.ends_at

    def grow(self, grow: Grow, now: float) -> None:
        """Add ranks to a running allocation; the time of its end does not change."""
        self._remember(now)
        life = self.lives[grow.uid]
        added = [self._place(life, rank, node, now, grow.devices.get(rank)) for rank, node in grow.placements.items()]
        life.places = sorted((*life.places, *added), key=lambda place: (place.rank, place.start))
        self._publish(life)

    def evict(self, evict: Evict, now: float) -> None:
        """Stop an allocation, which then waits as the next attempt;
        or only the ranks in `evict`, while the rest goes on."""
        self._remember(now)
        life = self.lives[evict.uid]
        gone = [place for place in life.places if place.end is None and (not evict.ranks or place.rank in evict.ranks)]
        for place in gone:
            by = evict.by.partition("/")[2] or None
            self.evictions.append({"time": now, "allocation": life.fact.name, "rank": place.rank, "for": by})
        self._release(life, gone)
        if evict.by:
            history = (*life.fact.evictions, (now, evict.by))
            life.fact = msgspec.structs.replace(life.fact, evictions=history)
        for place in gone:
            place.end = now
        self._account(life, gone)
        if not evict.ranks:
            kept = (life.start or 0.0) + _last_checkpoint(life, now)
            for place in gone:
                used = requests_of(_role_of(life.fact, place.rank)).amounts
                self.lost.append(LostWork(used=used, start=max(place.start, kept), end=now))
            life.saved += _last_checkpoint(life, now)
            life.phase, life.start, life.ends_at, life.places = Phase.PENDING, None, None, []
            life.fact = msgspec.structs.replace(life.fact, attempt=life.fact.attempt + 1, waiting_since=now)
        self._publish(life)

    def save_work(self, now: float) -> None:
        """Update the checkpoints of running allocations up to `now`."""
        for life in self._saving:
            if life.phase is Phase.RUNNING and life.start is not None:
                saved = _last_checkpoint(life, now)
                at = (life.start + saved or _AT_ZERO) if saved else 0.0
                if at != life.fact.checkpoint_at:
                    life.fact = msgspec.structs.replace(life.fact, checkpoint_at=at)
                    self._publish(life)

    def finish(self, name: str, now: float) -> None:
        """End an allocation."""
        self._remember(now)
        life = self.lives[name]
        life.phase, life.end, life.ends_at = Phase.TERMINATED, now, None
        gone = [place for place in life.places if place.end is None]
        for place in gone:
            place.end = now
        self._account(life, gone)
        self._release(life, gone)
        self._publish(life)
        self._met(life)

    def _met(self, ended: AllocationHistory) -> None:
        """Remove an ended allocation from the dependencies of others; every allocation here ends with success."""
        names = {ended.fact.name, allocation_id(ended.fact.name, ended.fact.uid)}
        for life in self._dependents:
            left = tuple(
                each for each in life.fact.waits_for if each[0] not in names or each[1] == DependencyEnd.FAILED
            )
            if left != life.fact.waits_for and life.fact.namespace == ended.fact.namespace:
                life.fact = msgspec.structs.replace(life.fact, waits_for=left)
                if life.is_submitted:
                    self._publish(life)

    def spent(self, now: float) -> past_use.Spent:
        """Return what the queues have used in the windows of their budgets."""
        if not self._windows:
            return {}
        running = [
            stretch
            for life in self.lives.values()
            for stretch in _gpu_occupancies(life, [place for place in life.places if place.end is None], now)
        ]
        spent: dict[float, dict[str, int]] = {}
        for window_s in self._windows:
            begin, used = past_use.begin_of(window_s, now), dict[str, int]()
            for stretch in (*self._stretches, *running):
                seconds = min(stretch.end, now) - max(stretch.start, begin)
                if seconds > 0:
                    used[stretch.queue] = used.get(stretch.queue, 0) + round(seconds * 1000) * stretch.gpu_units
            spent[window_s] = {queue: amount // GPU_UNITS for queue, amount in used.items()}
        return spent

    def _account(self, life: AllocationHistory, gone: list[SimulatedRank]) -> None:
        if self._windows:
            self._stretches += _gpu_occupancies(life, gone, 0.0)

    def _run(self, life: AllocationHistory, places: list[SimulatedRank], start: float) -> None:
        life.phase, life.start, life.places = Phase.RUNNING, start, sorted(places, key=lambda place: place.rank)
        life.first_start = start if life.first_start is None else life.first_start
        left = None if life.part.duration is None else max(0.0, life.part.duration - life.saved)
        limit = run_limit(life.fact, self._queues.get(life.fact.queue))
        life.fact = msgspec.structs.replace(life.fact, max_runtime=limit)
        limits = [each for each in (left, limit) if each is not None]
        life.ends_at = start + min(limits) if limits else None

    def _place(
        self, life: AllocationHistory, rank: int, node: str, start: float, told: Devices | None = None
    ) -> SimulatedRank:
        role = _role_of(life.fact, rank)
        gpus, milli = requests_of(role).get(GPU), requests_of(role).get(GPU_MILLI)
        left = self._left[node]
        device = list(told or _lowest(left, gpus, milli))
        _take(left, device, milli or MILLI)
        self._use(life, role, 1)
        return SimulatedRank(rank=rank, role=role.name, node=node, device=device, start=start)

    def _release(self, life: AllocationHistory, places: list[SimulatedRank]) -> None:
        for place in places:
            role = _role_of(life.fact, place.rank)
            self._use(life, role, -1)
            milli = requests_of(role).get(GPU_MILLI) or MILLI
            _take(self._left[place.node], place.device, -milli)

    def _use(self, life: AllocationHistory, role: RoleFact, times: int) -> None:
        requests = requests_of(role)
        for name, amount in requests.amounts.items():
            self.used[name] = self.used.get(name, 0) + amount * times
        if self._past.half_life_ms and (units := requests.gpu_units()):
            users = self._held.setdefault(life.fact.queue, {})
            users[life.fact.user] = users.get(life.fact.user, 0) + units * times
            self._past = msgspec.structs.replace(self._past, held=_copied(self._held))

    def _remember(self, now: float) -> None:
        """Count the held GPUs as used up to `now`."""
        if self._past.half_life_ms:
            self._past = self._past.going_on(now, self._past.held)

    @property
    def past(self) -> DecayedUsage:
        """The past usage of queues and users, and the GPUs that they hold."""
        return self._past

    def _devices_of(self, life: AllocationHistory) -> dict[int, Devices]:
        """Return {rank: devices} of an allocation that runs from the beginning.

        Devices that the scenario names are assigned first. The other ranks get the lowest remaining devices: whole
        ones, or for a part of a GPU the fullest one that is sufficient. They are assigned in the order of names, so the
        order in the scenario does not matter.
        """
        if not self._devices:
            standing = [(each, item) for each in self.lives.values() for item in each.part.placed]
            standing.sort(key=_turn_for_devices)
            left = {node: list(devices) for node, devices in self._left.items()}
            for each, item in standing:
                requests = requests_of(_role_of(each.fact, item.rank))
                chosen = _stated_devices(item) or _lowest(left[item.node], requests.get(GPU), requests.get(GPU_MILLI))
                _take(left[item.node], chosen, requests.get(GPU_MILLI) or MILLI)
                self._devices.setdefault(each.fact.name, {})[item.rank] = chosen
        return self._devices[life.fact.name]

    def _publish(self, life: AllocationHistory) -> None:
        """Update the planner's columns with the state of an allocation."""
        is_running = life.phase is Phase.RUNNING
        (self.waiting.add if life.phase is Phase.PENDING else self.waiting.discard)(life.fact.name)
        standing = [place for place in life.places if is_running and place.end is None]
        placements = {place.rank: place.node for place in standing}
        is_below = is_running and len(placements) < life.fact.rank_count
        (self.below_count.add if is_below else self.below_count.discard)(life.fact.name)
        devices = {place.rank: tuple(place.device) for place in standing if place.device}
        started = life.start or 0.0
        saved = life.fact.checkpoint_at if is_running else 0.0
        life.fact = msgspec.structs.replace(
            life.fact, phase=life.phase, placements=placements, devices=devices, started=started, checkpoint_at=saved
        )
        self.columns.set_allocation(life.fact)


def _gpu_occupancies(life: AllocationHistory, places: list[SimulatedRank], now: float) -> "list[GpuOccupancy]":
    """Return the GPU usage of `places`, up to `now` for those that are still in use."""
    found: list[GpuOccupancy] = []
    for place in places:
        requests = requests_of(_role_of(life.fact, place.rank))
        gpu_units = counted_gpus(requests.amounts)
        if gpu_units:
            end = now if place.end is None else place.end
            found.append(GpuOccupancy(queue=life.fact.queue, gpu_units=gpu_units, start=place.start, end=end))
    return found


def _copied(amounts: ByUser) -> dict[str, dict[str, int]]:
    return {queue: dict(users) for queue, users in amounts.items()}


def _lowest(left: list[int], gpus: int, milli: int) -> Devices:
    """Return devices like a device plugin: the lowest free ones; for a part of one, the fullest that is sufficient."""
    if milli:
        return tuple(number for _, number in sorted((free, at) for at, free in enumerate(left) if free >= milli)[:1])
    return tuple([number for number, free in enumerate(left) if free == MILLI][:gpus]) if gpus else ()


def _take(left: list[int], numbers: Iterable[int], milli: int) -> None:
    """Take `milli` of each device (negative gives back); a real node may have lost devices that its ranks use."""
    for number in numbers:
        if 0 <= number < len(left):
            left[number] -= milli


def _turn_for_devices(pair: tuple[AllocationHistory, PlacedPart]) -> tuple[bool, int, str, int]:
    life, item = pair
    return (item.device is None, -_role_of(life.fact, item.rank).gpu_milli, life.fact.name, item.rank)


def _stated_devices(item: PlacedPart) -> Devices:
    named = [] if item.device is None else item.device
    return (named,) if isinstance(named, int) else tuple(named)


def _last_checkpoint(life: AllocationHistory, now: float) -> float:
    """Return the seconds from its start to its last checkpoint; 0 without one."""
    every = life.part.checkpoint_every
    if not every or life.start is None:
        return 0.0
    return (now - life.start) // every * every


def _role_of(fact: AllocationFact, rank: int) -> RoleFact:
    for role in fact.roles:
        if rank < role.count:
            return role
        rank -= role.count
    raise InvariantError(f"{fact.name} has no such rank")
