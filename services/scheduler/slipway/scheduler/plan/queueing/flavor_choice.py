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


class FlavorChoice(msgspec.Struct, frozen=True, eq=False):
    """One flavor that the members of a group accept, or all nodes when they accept no flavor by name."""

    flavor: str | None
    """the flavor; None when the work may use every node"""
    roles: tuple[RoleFact, ...]
    """the roles of a member, confined to the nodes of the flavor"""
    group: PendingGroup
    """the group, with the shape and the demand of its members in this flavor"""

    def of(self, fact: AllocationFact) -> AllocationFact:
        """Return `fact`, a member of the group, confined to the nodes of the flavor."""
        return fact if self.flavor is None else msgspec.structs.replace(fact, roles=self.roles)


class FlavorChoices:
    """The choices of one tick."""

    def __init__(self, snapshot: PoolSnapshot, tree: QueueTree) -> None:
        self._snapshot = snapshot
        self._tree = tree
        self.is_any = bool(snapshot.pool.flavors)
        """whether the pool has flavors"""
        self._roles: dict[tuple[str, bytes], list[tuple[str, tuple[RoleFact, ...], Resources]]] = {}
        """{(queue, shape of a group): (flavor, the roles in it, the demand in it) of each flavor that it accepts}"""
        self._choices: dict[int, tuple[PendingGroup, list[FlavorChoice]]] = {}
        """{id of a group: (the group, its choices)}"""
        self._told: dict[bytes, str] = {}
        """{group: the flavor that its explanation is about}"""
        self._closed: dict[tuple[str, bool, int], tuple[int, Resources]] = {}
        """{(queue, preemptible, id of a demand): (`given_back` of the tree when it did not fit, the demand)}"""

    def of(self, group: PendingGroup) -> list[FlavorChoice]:
        """Return the choices to try for the members of `group`, in order; never empty."""
        known = self._choices.get(id(group))
        if known is not None and known[0] is group:
            return known[1]
        choices = [
            FlavorChoice(
                flavor, roles, msgspec.structs.replace(group, shape=group.shape + flavor.encode(), demand=demand)
            )
            for flavor, roles, demand in self._of_shape(group)
        ] or [FlavorChoice(None, group.sample.roles, group)]
        self._choices[id(group)] = (group, choices)
        return choices

    def likely(self, fact: AllocationFact, group: PendingGroup) -> FlavorChoice:
        """Return the first choice that quota permits; the first of all when quota permits none."""
        choices = self.of(group)
        if len(choices) > 1:
            for each in choices:
                if not self.is_closed(fact, each):
                    return each
        return choices[0]

    def is_closed(self, fact: AllocationFact, choice: FlavorChoice) -> bool:
        """Whether quota does not permit `fact` in the flavor of `choice` now."""
        if self.is_known_closed(fact, choice):
            return True
        demand = choice.group.demand
        if self._tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible) is None:
            return False
        self._closed[fact.queue, fact.preemptible, id(demand)] = (self._tree.given_back, demand)
        return True

    def is_known_closed(self, fact: AllocationFact, choice: FlavorChoice) -> bool:
        """Whether `is_closed` has returned True and still would: only use that is given back opens a flavor again."""
        known = self._closed.get((fact.queue, fact.preemptible, id(choice.group.demand)))
        return known is not None and known[0] == self._tree.given_back

    def would_borrow(self, choice: FlavorChoice) -> bool:
        """Whether its queue would then use more GPUs than it deserves, of all GPUs or of that flavor."""
        return self._tree.would_borrow(choice.group.sample.queue, choice.group.demand.amounts)

    def set_explained(self, group: PendingGroup, flavor: str | None) -> None:
        """Record that the explanation of `group` is about `flavor`."""
        if flavor is not None:
            self._told[group.key] = flavor

    def explained(self, fact: AllocationFact, group: PendingGroup) -> AllocationFact:
        """Return a member of `group` in the flavor that its explanation is about."""
        choices = self.of(group)
        told = self._told.get(group.key)
        return next((each for each in choices if each.flavor == told), choices[0]).of(fact)

    def _of_shape(self, group: PendingGroup) -> list[tuple[str, tuple[RoleFact, ...], Resources]]:
        if not self.is_any:
            return []
        key = (group.sample.queue, group.shape)
        known = self._roles.get(key)
        if known is None:
            known = self._roles[key] = self._found(group.sample)
        return known

    def _found(self, fact: AllocationFact) -> list[tuple[str, tuple[RoleFact, ...], Resources]]:
        if flavors.is_chosen(fact):
            return []
        queue, table = self._tree.queue(fact.queue), self._snapshot.table
        found: list[tuple[str, tuple[RoleFact, ...], Resources]] = []
        for flavor in flavors.accepted(fact, queue, self._snapshot.pool, table):
            chosen = flavors.of_flavor(fact, flavor)
            found.append((flavor, chosen.roles, smallest_demand(chosen)))
        return found
