"""The producer span of a hint, to which the pod worker's span links on the other side of the stream.

This module owns this one span. It must not know how hints are sent. The span has no duration, because hints are
collected and sent together.
"""

from slipway.model.ids import AllocationId
from slipway.runtime import semconv, telemetry
from slipway.streams import keys


def hint_traceparent(cause: str, allocation: AllocationId) -> str:
    """Return the traceparent for a hint about this allocation. `cause` is the traceparent of the span that caused the
    hint.
    """
    stream = keys.work(keys.shard_of(allocation))
    sent = telemetry.emit(
        f"send {keys.WORK.prefix.rstrip(':')}",
        parent=cause,
        allocation_id=allocation,
        attributes=semconv.sends(stream),
        kind=telemetry.SpanKind.PRODUCER,
    )
    return sent or cause
