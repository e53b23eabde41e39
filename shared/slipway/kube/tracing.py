"""Which trace an object's life belongs to: the one in its annotation, else one that follows from its uid.

Owns the spans that everybody may name without having met them: that of each attempt.
"""

from slipway.crd.meta import ANNOTATION_TRACE, ObjectMeta
from slipway.runtime.traceparent import derived_span, traceparent_from_uid


def traceparent_of(meta: ObjectMeta) -> str:
    """The traceparent under which every service records what it does for the object."""
    return meta.annotations.get(ANNOTATION_TRACE) or traceparent_from_uid(meta.uid)


def has_own_root(meta: ObjectMeta) -> bool:
    """Whether nobody who made the object left a span: then its trace begins with the object."""
    return not meta.annotations.get(ANNOTATION_TRACE)


def attempt_span(meta: ObjectMeta, attempt: int) -> str:
    """The span of one attempt as a traceparent, in the object's trace. It is recorded when the attempt has ended."""
    return derived_span(traceparent_of(meta), f"{meta.uid}/{attempt}")
