"""Builds an allocation object that was never written to from its fact alone, which saves a read.

The read is saved before the admission, and before users are told why the allocation waits. Pure. Owns the rule of when
a fact is enough: nothing but "why it waits" may have been written to the object. The object that is built has the
fields from which a first status is made, and the version at which the fact was seen. If the object has changed since,
the write under that version is refused, and the object is read after all.
"""

from slipway.crd.facts import CONDITION_ADMITTED
from slipway.crd.meta import ANNOTATION_TRACE, ANNOTATION_USER, TEARDOWN_FINALIZER, Condition, ObjectMeta
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, AllocationStatus, RoleSpec
from slipway.model.facts import AllocationFact, Untouched
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Kind


def allocation_of(decision: Decision, fact: AllocationFact | None) -> Allocation | None:
    """The object of an admission, as far as its admission needs it; None: read it."""
    if decision.kind is not DecisionKind.ADMIT or fact is None or fact.invalid or fact.uid != decision.uid:
        return None
    return object_of(fact)


def object_of(fact: AllocationFact) -> Allocation | None:
    """The object, as far as a first write of its status needs it; None: read it."""
    known = fact.untouched
    if known is None or fact.deleting or fact.desired != "Running":
        return None
    annotations = {} if known.user is None else {ANNOTATION_USER: known.user}
    if known.trace:
        annotations[ANNOTATION_TRACE] = known.trace
    return Allocation(
        metadata=ObjectMeta(
            name=fact.name,
            namespace=fact.namespace,
            uid=fact.uid,
            resource_version=str(fact.version),
            generation=known.generation,
            creation_timestamp=known.created_at,
            annotations=annotations,
            finalizers=[TEARDOWN_FINALIZER],
        ),
        spec=AllocationSpec(
            kind=Kind(fact.kind),
            pool=fact.pool,
            queue=fact.queue,
            ranks=[RoleSpec(name=role.name, count=role.count) for role in fact.roles],
            min_available=fact.minimum,
        ),
        status=AllocationStatus(conditions=_told(fact, known)),
    )


def _told(fact: AllocationFact, known: Untouched) -> list[Condition]:
    """What it was told of why it waits."""
    if not known.told_at:
        return []
    return [
        Condition(
            type=CONDITION_ADMITTED,
            status="False",
            reason=fact.gate,
            message=fact.gate_message,
            observed_generation=known.generation,
            last_transition_time=known.told_at,
        )
    ]


def is_same_spec(fact: AllocationFact, written: Allocation) -> bool:
    """Whether what the fact says of the spec holds for the object as it was written."""
    known = fact.untouched
    meta = written.metadata
    return known is not None and (meta.uid, meta.generation) == (fact.uid, known.generation)
