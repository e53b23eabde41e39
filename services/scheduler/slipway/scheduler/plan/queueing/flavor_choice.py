"""The order in which flavors are tried for pending work, and the flavor that its explanation is about.

Work accepts flavors in an order: its own, else its queue's, else its pool's. Each flavor is tried with its quotas and
its nodes. Owns the order and the queue's policy for going on to the next flavor; knows nothing of places.
Source: Kueue's flavorFungibility (KEP-582), from which the policy's names and defaults come.
"""

import msgspec

from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state import flavors
from slipway.scheduler.plan.state.pending import PendingGroup
from slipway.scheduler.plan.state.rank_request import smallest_demand
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

BORROW, PREEMPT, TRY_NEXT = "Borrow", "Preempt", "TryNextFlavor"


class _GroupFlavor(msgspec.Struct, frozen=True):
    """One flavor that a group accepts."""

    flavor: str
    roles: tuple[RoleFact, ...]
    demand: Resources


class FlavorChoice:
    """Work in one of the flavors that it accepts; what a flavor changes is computed when it is read."""

    def __init__(self, fact: AllocationFact, group: PendingGroup, known: _GroupFlavor | None = None) -> None:
        self._fact = fact
        self._group = group
        self._known = known

    @property
    def flavor(self) -> str | None:
        """The flavor; None when the work may use every node."""
        return None if self._known is None else self._known.flavor

    @property
    def demand(self) -> Resources:
        """The demand of the work in this flavor."""
        return self._group.demand if self._known is None else self._known.demand

    @property
    def fact(self) -> AllocationFact:
        """The work, confined to the nodes of the flavor."""
        return self._fact if self._known is None else msgspec.structs.replace(self._fact, roles=self._known.roles)

    @property
    def group(self) -> PendingGroup:
        """Its group, with the demand of one of its members in this flavor."""
        if self._known is None:
            return self._group
        shape = self._group.shape + self._known.flavor.encode()
        return msgspec.structs.replace(self._group, shape=shape, demand=self._known.demand)


class FlavorChoices:
    """The choices of one tick."""

    def __init__(self, snapshot: PoolSnapshot, tree: QueueTree) -> None:
        self._snapshot = snapshot
        self._tree = tree
        self.is_any = bool(snapshot.pool.flavors)
        """whether the pool has flavors"""
        self._known: dict[tuple[str, bytes], list[_GroupFlavor]] = {}
        """{(queue, shape of a group): the flavors that it accepts}"""
        self._told: dict[bytes, str] = {}
        """{group: the flavor that its explanation is about}"""
        self._closed: dict[tuple[str, bool, int], tuple[int, Resources]] = {}
        """{(queue, preemptible, id of a demand): (`given_back` of the tree when it did not fit, the demand)}"""

    def of(self, fact: AllocationFact, group: PendingGroup) -> list[FlavorChoice]:
        """Return the choices to try for a member of `group`, in order; never empty."""
        known = self._of_group(group)
        return [FlavorChoice(fact, group, each) for each in known] or [FlavorChoice(fact, group)]

    def likely(self, fact: AllocationFact, group: PendingGroup) -> FlavorChoice:
        """Return the first choice that quota permits; the first of all when quota permits none."""
        choices = self.of(fact, group)
        if len(choices) > 1:
            return next((each for each in choices if not self.is_closed(fact, each)), choices[0])
        return choices[0]

    def is_closed(self, fact: AllocationFact, choice: FlavorChoice) -> bool:
        """Whether quota does not permit `fact` in the flavor of `choice` now."""
        if self.is_known_closed(fact, choice):
            return True
        demand = choice.demand
        if self._tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible) is None:
            return False
        self._closed[fact.queue, fact.preemptible, id(demand)] = (self._tree.given_back, demand)
        return True

    def is_known_closed(self, fact: AllocationFact, choice: FlavorChoice) -> bool:
        """Whether `is_closed` has returned True and still would: only use that is given back opens a flavor again."""
        known = self._closed.get((fact.queue, fact.preemptible, id(choice.demand)))
        return known is not None and known[0] == self._tree.given_back

    def would_borrow(self, choice: FlavorChoice) -> bool:
        """Whether its queue would then use more GPUs than it deserves, of all GPUs or of that flavor."""
        return self._tree.would_borrow(choice.fact.queue, choice.demand.amounts)

    def set_explained(self, group: PendingGroup, flavor: str | None) -> None:
        """Record that the explanation of `group` is about `flavor`."""
        if flavor is not None:
            self._told[group.key] = flavor

    def explained(self, fact: AllocationFact, group: PendingGroup) -> AllocationFact:
        """Return a member of `group` in the flavor that its explanation is about."""
        known = self._of_group(group)
        flavor = self._told.get(group.key)
        found = next((each for each in known if each.flavor == flavor), known[0] if known else None)
        return fact if found is None else msgspec.structs.replace(fact, roles=found.roles)

    def _of_group(self, group: PendingGroup) -> list[_GroupFlavor]:
        if not self.is_any:
            return []
        key = (group.sample.queue, group.shape)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._found(group.sample)
        return known

    def _found(self, fact: AllocationFact) -> list[_GroupFlavor]:
        if flavors.is_chosen(fact):
            return []
        queue, table = self._tree.queue(fact.queue), self._snapshot.table
        found: list[_GroupFlavor] = []
        for flavor in flavors.accepted(fact, queue, self._snapshot.pool, table):
            chosen = flavors.of_flavor(fact, flavor)
            found.append(_GroupFlavor(flavor, chosen.roles, smallest_demand(chosen)))
        return found
