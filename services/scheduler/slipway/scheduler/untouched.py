"""An allocation that nobody has written to yet, from its fact alone: what saves the read before its admission.

Pure. Owns which fact is enough for that. The object that is made up has what a first status is made from, and the
version that the fact was seen at: if it has changed since, the write under that version is refused and the object is
read after all.
"""

from slipway.crd.meta import ANNOTATION_TRACE, ANNOTATION_USER, TEARDOWN_FINALIZER, ObjectMeta
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, RoleSpec
from slipway.model.facts import AllocationFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Kind


def allocation_of(decision: Decision, fact: AllocationFact | None) -> Allocation | None:
    """The object of an admission, as far as its admission needs it; None: read it."""
    if decision.kind is not DecisionKind.ADMIT or fact is None or fact.untouched is None or fact.invalid:
        return None
    if fact.uid != decision.uid or fact.deleting or fact.desired != "Running":
        return None
    known = fact.untouched
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
        ),
    )


def is_same_spec(fact: AllocationFact, written: Allocation) -> bool:
    """Whether what the fact says of the spec holds for the object as it was written."""
    known = fact.untouched
    meta = written.metadata
    return known is not None and (meta.uid, meta.generation) == (fact.uid, known.generation)
