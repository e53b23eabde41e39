"""The small client of the suite: one call, one reply, and watches."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec

from tests.contract.kube.samples import Json
from tests.contract.kube.target import Target

DEADLINE_S = 10.0
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Reply(msgspec.Struct, frozen=True):
    """A status code and the decoded body."""

    code: int
    body: Json
    headers: dict[str, str]

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def causes(self) -> list[Json]:
        return list(self.body.get("details", {}).get("causes", []))

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]


class OpenWatch:
    """The events of one open watch."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> Json:
        async with asyncio.timeout(DEADLINE_S):
            return msgspec.json.decode(await anext(self._lines))

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Return (type, name) of the next events."""
        found: list[tuple[str, str]] = []
        while len(found) < count:
            event = await self.next()
            found.append((event["type"], event["object"]["metadata"]["name"]))
        return found

    async def rest(self) -> list[Json]:
        """Return all events until the server ends the watch."""
        async with asyncio.timeout(DEADLINE_S):
            return [msgspec.json.decode(line) async for line in self._lines]


class KubeHttp:
    """Plain HTTP against one server."""

    def __init__(self, target: Target) -> None:
        verify = target.tls if target.tls is not None else True
        self._client = httpx2.AsyncClient(
            base_url=target.url, headers=target.headers, verify=verify, timeout=DEADLINE_S, trust_env=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, *, accept: str = "application/json", **query: Any) -> Reply:
        return await self._call("GET", path, None, query, headers={"accept": accept})

    async def post(self, path: str, body: Any, **query: Any) -> Reply:
        return await self._call("POST", path, body, query)

    async def put(self, path: str, body: Any, **query: Any) -> Reply:
        return await self._call("PUT", path, body, query)

    async def patch(self, path: str, body: Any, media: str = MERGE, **query: Any) -> Reply:
        return await self._call("PATCH", path, body, query, headers={"content-type": media})

    async def delete(self, path: str, body: Any = None, **query: Any) -> Reply:
        return await self._call("DELETE", path, body, query)

    async def text(self, path: str, *, timeout_s: float = DEADLINE_S, **query: Any) -> tuple[int, str]:
        """Return the code and the answer as text; of a refusal its message."""
        answer = await self._client.get(path, params=_texts(query), timeout=timeout_s)
        return answer.status_code, answer.text if answer.is_success else _reply(answer).message

    async def send_raw(self, method: str, path: str, content: bytes, content_type: str) -> Reply:
        answer = await self._client.request(method, path, content=content, headers={"content-type": content_type})
        return _reply(answer)

    @asynccontextmanager
    async def watch(self, path: str, **query: Any) -> AsyncGenerator[OpenWatch]:
        params = {"watch": "true", "timeoutSeconds": "30", **_texts(query)}
        async with self._client.stream("GET", path, params=params) as answer:
            assert answer.status_code == 200, (await answer.aread()).decode()
            yield OpenWatch(answer.aiter_lines())

    async def _call(
        self, method: str, path: str, body: Any, query: Json, headers: dict[str, str] | None = None
    ) -> Reply:
        content = None if body is None else msgspec.json.encode(body)
        sent = {"content-type": "application/json", **(headers or {})}
        answer = await self._client.request(method, path, content=content, params=_texts(query), headers=sent)
        return _reply(answer)


def _reply(answer: httpx2.Response) -> Reply:
    try:
        body: Json = msgspec.json.decode(answer.content) if answer.content else {}
    except msgspec.DecodeError:
        body = {"text": answer.text}
    return Reply(answer.status_code, body, dict(answer.headers))


def _texts(query: Json) -> dict[str, str]:
    return {name: str(value) for name, value in query.items()}
