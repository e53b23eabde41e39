"""An admission that is made without a read equals one that is made with it."""

import msgspec
import pytest

from slipway.crd.members import is_elastic
from slipway.crd.meta import TEARDOWN_FINALIZER, Condition
from slipway.crd.transitions import requested
from slipway.crd.v1alpha1 import Allocation, AllocationStatus, RoleSpec
from slipway.facts.core_objects import decode_fact, encode_fact
from slipway.facts.custom_resources import allocation_fact
from slipway.model.facts import AllocationFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.scheduler.apply import allocation_of, is_same_spec, object_of
from tests.support.builders import an_allocation


def a_fresh(**spec: object) -> Allocation:
    """An allocation as the api creates it."""
    allocation = an_allocation().it
    meta = msgspec.structs.replace(allocation.metadata, finalizers=[TEARDOWN_FINALIZER], resource_version="7")
    template = {"spec": {"containers": [{"name": "main", "image": "local"}]}}
    spec_ = msgspec.structs.replace(allocation.spec, **{"template": template, **spec})
    return msgspec.structs.replace(allocation, metadata=meta, spec=spec_)


def fact_of(allocation: Allocation) -> AllocationFact:
    """The fact of the allocation as it arrives by the feed."""
    fact = decode_fact("allocations", encode_fact(allocation_fact(allocation, None)))
    assert isinstance(fact, AllocationFact)
    return fact


def a_decision(allocation: Allocation, kind: DecisionKind = DecisionKind.ADMIT) -> Decision:
    meta = allocation.metadata
    return Decision(id="1-1-0", epoch=1, allocation=f"{meta.namespace}/{meta.name}", uid=meta.uid, attempt=1, kind=kind)


def test_a_synthesised_status_gives_the_same_first_transition() -> None:
    """The object that is made from the fact has the version of the fact."""
    allocation = a_fresh()
    found = allocation_of(a_decision(allocation), fact_of(allocation))
    assert found is not None
    assert requested(found) == requested(allocation)
    assert found.metadata.resource_version == "7"
    assert found.status == allocation.status
    assert is_same_spec(fact_of(allocation), allocation)


@pytest.mark.parametrize(
    ("minimum", "of_role", "expected"), [(1, None, True), (None, 2, True), (3, None, False), (None, None, False)]
)
def test_a_synthesised_status_states_whether_the_gang_is_elastic(
    minimum: int | None, of_role: int | None, expected: bool
) -> None:
    """An attempt grows only when its admission says that its ranks were started for that."""
    ranks = [RoleSpec(name="worker", count=3, min_available=of_role)]
    allocation = a_fresh(ranks=ranks, min_available=minimum)
    found = allocation_of(a_decision(allocation), fact_of(allocation))
    assert found is not None
    assert is_elastic(found.spec) == is_elastic(allocation.spec) == expected


def with_reason(allocation: Allocation, *, attempt: int = 1) -> Allocation:
    """The allocation with the scheduler's condition that states why it waits."""
    condition = Condition(
        type="Admitted",
        status="False",
        reason="NoFit",
        message="0 of 1 nodes fit",
        observed_generation=allocation.metadata.generation,
        last_transition_time="2026-01-01T00:00:09.000Z",
    )
    return msgspec.structs.replace(allocation, status=AllocationStatus(conditions=[condition], attempt=attempt))


def test_to_have_been_told_why_it_waits_is_no_history() -> None:
    """The fact contains the whole condition, so the object that is made from it has the condition too."""
    allocation = with_reason(a_fresh())
    found = object_of(fact_of(allocation))
    assert found is not None
    assert found.status == allocation.status
    assert requested(found) == requested(allocation)


def test_to_have_been_told_besides_other_things_is_one() -> None:
    """A condition of an earlier attempt, or of an earlier spec, is a history."""
    allocation = a_fresh()
    earlier = msgspec.structs.replace(allocation.metadata, generation=2)
    assert object_of(fact_of(with_reason(allocation, attempt=2))) is None
    assert object_of(fact_of(msgspec.structs.replace(with_reason(allocation), metadata=earlier))) is None


@pytest.mark.parametrize("story", ["touched", "no finalizer", "stopped", "evicted", "another"])
def test_what_must_be_read(story: str) -> None:
    """An object with a history is read, and so is the object of a decision that is no plain admission."""
    allocation = a_fresh(desired="Stopped") if story == "stopped" else a_fresh()
    decision = a_decision(allocation, DecisionKind.EVICT if story == "evicted" else DecisionKind.ADMIT)
    if story == "touched":
        status = msgspec.structs.replace(allocation.status, message="written")
        allocation = msgspec.structs.replace(allocation, status=status)
    if story == "no finalizer":
        meta = msgspec.structs.replace(allocation.metadata, finalizers=[])
        allocation = msgspec.structs.replace(allocation, metadata=meta)
    if story == "another":
        decision = msgspec.structs.replace(decision, uid="other")
    assert allocation_of(decision, fact_of(allocation)) is None
