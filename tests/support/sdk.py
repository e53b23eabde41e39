"""The two clients of the SDK behind one interface, and an allocation as they return it."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import msgspec

from slipway.api.schemas import AllocationView
from slipway.sdk import AsyncClient, Client, calls

Use = Callable[[Any], Any]


class Shell:
    """One of the two clients behind one interface: a call is a function of the client."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    async def do(self, use: Use) -> Any:
        """Return the result of the function: awaited, or run on a thread of its own."""
        if isinstance(self.client, Client):
            return await asyncio.to_thread(use, self.client)
        found = use(self.client)
        return await found if inspect.isawaitable(found) else found

    async def all(self, use: Use, most: int = 1000) -> list[Any]:
        """Return at most `most` items of the function's iterator; then close the iterator."""
        if isinstance(self.client, Client):
            return await asyncio.to_thread(self._all, use, most)
        found: list[Any] = []
        entries = use(self.client)
        async for each in cast("AsyncIterator[Any]", entries):
            found.append(each)
            if len(found) == most:
                break
        if hasattr(entries, "close"):
            await entries.close()
        return found

    def _all(self, use: Use, most: int) -> list[Any]:
        found: list[Any] = []
        entries = use(self.client)
        for each in cast("Iterator[Any]", entries):
            found.append(each)
            if len(found) == most:
                break
        if hasattr(entries, "close"):
            entries.close()
        return found

    async def close(self) -> None:
        """Close its connections."""
        await self.do(lambda client: client.close())


def a_view(**changes: Any) -> AllocationView:
    """One allocation."""
    known: dict[str, Any] = {name: "" for name in AllocationView.__struct_fields__}
    known |= {"id": "a-12345678", "kind": "command", "phase": "Running", "attempt": 1, "priority": 50, "job": None}
    known |= {"hold": False, "ready": False, "waiting": False, "deleting": False, "result": None, "labels": {}}
    known |= {
        "gpus": 0.0,
        "started_at": None,
        "ended_at": None,
        "warnings": [],
        "status": {"ranks": [{"phase": "Running"}, {}]},
    }
    known |= {"spec": {"ranks": [{"name": "worker", "count": 2}]}, "created_at": "2026-01-02T03:04:05Z"}
    known["links"] = dict.fromkeys(("self", "events", "logs", "explain", "proxy", "trace"), "/")
    camel = {calls.parameters({name: 0}).popitem()[0]: value for name, value in (known | changes).items()}
    return msgspec.convert(camel, AllocationView)


def html_of(value: Any) -> str:
    """The HTML that a notebook shows for the value."""
    return str(value._repr_html_())
