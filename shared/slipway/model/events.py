"""The events of the streams: one transition of one allocation.

A stream entry is a pure function of the object's metadata and one entry of its ring. So an entry that is published
again is the same, except for the traceparent. The translation to stream fields is `streams/codec.py`.
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
        """The id of the entry in the stream of its allocation."""
        return f"{self.created_ms}-{self.seq}"

    @property
    def event_id(self) -> str:
        """The CloudEvents id. It is deterministic, so that consumers can detect duplicates."""
        return f"{self.allocation_id}/{self.seq}"
