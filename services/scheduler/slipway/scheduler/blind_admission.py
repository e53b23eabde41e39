"""Builds the object of an unwritten allocation from its fact, which saves a read.

The read is saved before the admission, and before the first explanation of why it waits. Pure. Owns the rule of when a
fact is enough: only that explanation may have been written to the object. The built object has the fields that a first
status needs, and the version at which the fact was seen. If the object has changed since, the write under that version
is refused, and the object is read after all.
"""

from slipway.crd.facts import CONDITION_ADMITTED
from slipway.crd.meta import ANNOTATION_TRACE, ANNOTATION_USER, TEARDOWN_FINALIZER, Condition, ObjectMeta
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, AllocationStatus, RoleSpec
from slipway.model.facts import AllocationFact, FirstStatusFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Kind


def allocation_of(decision: Decision, fact: AllocationFact | None) -> Allocation | None:
    """Return the object of an admission, with the fields that the admission needs; None when it has to be read."""
    if decision.kind is not DecisionKind.ADMIT or fact is None or fact.invalid or fact.uid != decision.uid:
        return None
    return object_of(fact)


def object_of(fact: AllocationFact) -> Allocation | None:
    """Return the object, with the fields that a first write of its status needs; None when it has to be read."""
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
        status=AllocationStatus(conditions=_known_condition(fact, known)),
    )


def _known_condition(fact: AllocationFact, known: FirstStatusFact) -> list[Condition]:
    """Return the condition that already explains why it waits, if there is one."""
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
    """Whether the fact's part about the spec is valid for the written object."""
    known = fact.untouched
    meta = written.metadata
    return known is not None and (meta.uid, meta.generation) == (fact.uid, known.generation)
