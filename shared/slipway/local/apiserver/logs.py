"""Container logs: a port, and the adapter that asks the node.

Owns the way from a pod to its node's log endpoint (annotation `slipway.dev/log-endpoint` of the Node). It keeps no
log. Invariant: chunks are passed on as they come; the caller ends the stream by closing the iterator.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import httpx

from slipway.local.apiserver.objects import Json, mapping, metadata
from slipway.local.apiserver.status import StatusError, bad_request

LOG_ENDPOINT = "slipway.dev/log-endpoint"
CONNECT_TIMEOUT_S = 5.0


class LogSource(Protocol):
    def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The log of one container, in chunks; an empty one says that it begins. Raises: StatusError before that."""
        ...


class NodeLogSource:
    """Reads from `GET <endpoint>/logs/<namespace>/<pod uid>` with the query passed on."""

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    async def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        endpoint = str(mapping(metadata(node), "annotations").get(LOG_ENDPOINT) or "")
        if not endpoint:
            name = metadata(node).get("name")
            raise StatusError(
                500, "InternalError", f"node {name} serves no logs (annotation {LOG_ENDPOINT} is missing)"
            )
        meta = metadata(pod)
        url = f"{endpoint.rstrip('/')}/logs/{meta['namespace']}/{meta['uid']}"
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S), trust_env=False)
        try:
            async with self._client.stream("GET", url, params=dict(query)) as answer:
                if answer.status_code >= 400:
                    words = (await answer.aread()).decode(errors="replace")
                    raise _refused(answer.status_code, words)
                yield b""
                async for chunk in answer.aiter_raw():
                    yield chunk
        except httpx.TransportError as exc:
            raise StatusError(502, "InternalError", f"the node's log endpoint did not answer: {exc}") from exc

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _refused(code: int, words: str) -> StatusError:
    return bad_request(words) if code < 500 else StatusError(code, "InternalError", words)
