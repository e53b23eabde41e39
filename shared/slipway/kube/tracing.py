"""The trace of an object: the one in its annotation, else one derived from its uid.

Owns the derived span of each attempt: every service can compute its id without receiving it.
"""

from slipway.crd.meta import ANNOTATION_TRACE, ObjectMeta
from slipway.runtime.traceparent import derived_span, traceparent_from_uid


def traceparent_of(meta: ObjectMeta) -> str:
    """Return the traceparent with which every service records its work for the object."""
    return meta.annotations.get(ANNOTATION_TRACE) or traceparent_from_uid(meta.uid)


def has_own_root(meta: ObjectMeta) -> bool:
    """Whether the creator of the object left no span in an annotation, so that the trace starts with the object."""
    return not meta.annotations.get(ANNOTATION_TRACE)


def attempt_span(meta: ObjectMeta, attempt: int) -> str:
    """Return the span of one attempt as a traceparent in the object's trace. It is recorded after the end of the
    attempt."""
    return derived_span(traceparent_of(meta), f"{meta.uid}/{attempt}")
