"""What the streams say: one transition of one allocation.

A stream entry is a pure function of the object's metadata and one entry of its ring, so that republishing it
gives the same entry (but for the traceparent). The translation to stream fields is `streams/codec.py`.
"""

from typing import Any

import msgspec

from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event, Phase

TYPE_PREFIX = "dev.slipway.allocation."
DATA_BYTES_MAX = 512


class AllocationEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One transition; `time` is RFC 3339 UTC, `created_ms` the creationTimestamp in ms (whole seconds * 1000)."""

    allocation_id: AllocationId
    namespace: str
    name: str
    uid: str
    created_ms: int
    seq: int
    attempt: int
    type: Event
    phase: Phase
    reason: str = ""
    time: str
    data: dict[str, Any] = {}
    truncated: str | None = None
    traceparent: str = ""

    @property
    def entry_id(self) -> str:
        """The id of the entry in the allocation's own stream."""
        return f"{self.created_ms}-{self.seq}"

    @property
    def event_id(self) -> str:
        """The CloudEvents id: deterministic, for consumers to dedupe by."""
        return f"{self.allocation_id}/{self.seq}"
