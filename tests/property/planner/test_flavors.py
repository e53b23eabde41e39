"""Flavors on random pools: a gang uses one flavor that it accepts; runs end; a single flavor for all nodes changes
nothing."""

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.lifecycle import Phase
from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.scenario import decode
from tests.property.planner.test_evictions_over_time import TYPES, a_document, check

SETTINGS = settings(max_examples=25, deadline=None)


def a_flavored(seed: int) -> dict[str, Any]:
    """Nodes of two flavors and sometimes of none, queues with limits for some flavors, allocations that accept some."""
    chance = random.Random(seed)
    found = a_document(seed, is_typed=True)
    kinds = TYPES if chance.random() < 0.7 else TYPES[:1]
    found["pool"]["flavors"] = [{"name": kind, "nodeLabels": {"gpu": kind}} for kind in kinds]
    for queue in found["queues"]:
        if chance.random() < 0.7:
            queue["flavors"] = [limits(chance, kind) for kind in chance.sample(kinds, chance.randint(1, len(kinds)))]
        queue["flavorFungibility"] = {
            "whenCanBorrow": chance.choice(["Borrow", "TryNextFlavor"]),
            "whenCanPreempt": chance.choice(["Preempt", "TryNextFlavor"]),
        }
    for each in found["allocations"]:
        each["ranks"][0].pop("nodeSelector", None)
        if chance.random() < 0.6:
            each["flavors"] = chance.sample(kinds, chance.randint(1, len(kinds)))
    return found


def limits(chance: random.Random, kind: str) -> dict[str, Any]:
    """The limits of a queue for one flavor."""
    found: dict[str, Any] = {"name": kind, "nominal": {"gpus": chance.randint(0, 6)}}
    for field in ("borrowingLimit", "lendingLimit"):
        if chance.random() < 0.3:
            found[field] = {"gpus": chance.randint(0, 4)}
    return found


def outcome_of(document: dict[str, Any]) -> SimulationOutcome:
    """The outcome of the run; the simulator checks every plan, including limits of flavors."""
    return simulate(decode(json.dumps(document)))


@given(st.integers(0, 2**32))
@SETTINGS
def test_a_gang_is_of_one_flavor_that_it_accepts(seed: int) -> None:
    """A gang with GPUs is on nodes of one flavor, one of its own if it names some; and runs end."""
    outcome = outcome_of(a_flavored(seed))
    check(outcome)
    kinds = {node.name: node.labels["gpu"] for node in outcome.world.nodes}
    flavors = {flavor.name for flavor in outcome.world.columns.snapshot().pool.flavors}
    for life in outcome.world.lives.values():
        if life.phase is not Phase.PENDING and life.fact.roles[0].requests.gpus():
            found = {kinds[place.node] if kinds[place.node] in flavors else "" for place in life.places}
            assert len(found) <= 1
            assert not life.fact.flavors or found <= set(life.fact.flavors)


@given(st.integers(0, 2**32))
@SETTINGS
def test_one_flavor_of_all_nodes_changes_nothing(seed: int) -> None:
    """When every node has the same flavor, and no limit is for it, the result is the same as without flavors."""
    document = a_document(seed)
    for node in document["nodes"]:
        node["labels"] = {"kind": "x"}
    plain = outcome_of(document)
    flavored = outcome_of({**document, "pool": {**document["pool"], "flavors": [a_kind()]}})
    assert flavored.world.evictions == plain.world.evictions
    for name, life in plain.world.lives.items():
        other = flavored.world.lives[name]
        assert (other.phase, other.start, other.places) == (life.phase, life.start, life.places)


def a_kind() -> dict[str, Any]:
    """The flavor of every node."""
    return {"name": "x", "nodeLabels": {"kind": "x"}}
