"""Which trace an object's life belongs to: the one in its annotation, else one that follows from its uid."""

from slipway.crd.meta import ANNOTATION_TRACE, ObjectMeta
from slipway.runtime.traceparent import traceparent_from_uid


def traceparent_of(meta: ObjectMeta) -> str:
    """The traceparent under which every service records what it does for the object."""
    return meta.annotations.get(ANNOTATION_TRACE) or traceparent_from_uid(meta.uid)
