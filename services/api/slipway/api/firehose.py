"""The firehose as a stream of a client: filtered, without the repeats of one connection.

At least once over reconnects: clients dedupe by the CloudEvents id.
"""

from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from slipway.api.access.permissions import VisibleWorkspaces
from slipway.api.access.redaction import Blinds
from slipway.api.cloudevents import cloud_event
from slipway.api.sse import Outlet
from slipway.model.events import AllocationEvent
from slipway.streams.ports import Firehose

BLOCK_S = 5.0
PAGE = 200
SEEN_MAX = 10_000
Look = Callable[[], Awaitable[tuple[VisibleWorkspaces, Blinds | None]]]


class FirehoseFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events; empty means all."""

    workspace: str = ""
    types: frozenset[str] = frozenset()
    allocation: str = ""

    def has(self, event: AllocationEvent) -> bool:
        """Whether the event was asked for."""
        if self.workspace and event.namespace != self.workspace:
            return False
        if self.allocation and event.allocation_id != self.allocation:
            return False
        return not self.types or event.type.value in self.types


async def follow_all(firehose: Firehose, wanted: FirehoseFilter, cursor: str, outlet: Outlet, look: Look) -> None:
    """Write what comes after the cursor, for ever; `look` says each time what may be seen, and how."""
    seen: set[str] = set()
    order = deque[str]()
    while True:
        page = await firehose.read(after=cursor, limit=PAGE, block_s=BLOCK_S)
        sight, blinds = await look() if page else (VisibleWorkspaces(), None)
        for found in page:
            cursor = found.cursor
            event_id = found.event.event_id
            if event_id in seen or not wanted.has(found.event) or not sight.has(found.event.namespace):
                continue
            seen.add(event_id)
            order.append(event_id)
            if len(order) > SEEN_MAX:
                seen.discard(order.popleft())
            told = cloud_event(found.event)
            await outlet.event(blinds(told) if blinds else told, id_=cursor)
