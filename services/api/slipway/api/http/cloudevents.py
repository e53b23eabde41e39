"""Events as JSON: CloudEvents 1.0 in structured mode, the same fields as in the streams. Pure."""

import msgspec

from slipway.model.events import AllocationEvent
from slipway.streams.codec import encode_event


def cloud_event(event: AllocationEvent) -> bytes:
    """Return the event as one line of JSON."""
    fields: dict[str, str | msgspec.Raw] = {name: value.decode() for name, value in encode_event(event).items()}
    fields["data"] = msgspec.Raw(str(fields["data"]).encode())
    return msgspec.json.encode(fields)


def page_of(events: list[AllocationEvent], cursor: str) -> bytes:
    """Return a page of events; `cursor` is the start of the next page."""
    items = [msgspec.Raw(cloud_event(event)) for event in events]
    return msgspec.json.encode({"items": items, "metadata": {"continue": cursor}})
