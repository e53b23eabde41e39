"""The span of a hint that is sent: what the pod worker's span links to, on the other side of the stream.

Owns the one span; must not know how hints are sent. It is an instant: hints are gathered and sent together.
"""

from slipway.model.ids import AllocationId
from slipway.runtime import semconv, telemetry
from slipway.streams import keys


def hinted(cause: str, allocation: AllocationId) -> str:
    """The traceparent for a hint about this allocation; `cause` is that of what led to it."""
    stream = keys.work(keys.shard_of(allocation))
    sent = telemetry.emit(
        f"send {keys.WORK.prefix.rstrip(':')}",
        parent=cause,
        allocation_id=allocation,
        attributes=semconv.sends(stream),
        kind=telemetry.SpanKind.PRODUCER,
    )
    return sent or cause
