"""Container logs: a port, and the adapter that asks the node.

Owns the way from a pod to its node's log endpoint (annotation `slipway.dev/log-endpoint` of the Node). It keeps no
log. Invariant: chunks are passed on as they come; the caller ends the stream by closing the iterator.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import aiohttp

from slipway.local.apiserver.objects import Json, mapping, metadata
from slipway.local.apiserver.status import StatusError, bad_request

LOG_ENDPOINT = "slipway.dev/log-endpoint"
CONNECT_TIMEOUT_S = 5.0


class LogSource(Protocol):
    def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The log of one container, in chunks; an empty one says that it begins. Raises: StatusError before that."""
        ...


class NodeLogSource:
    """Reads from `GET <endpoint>/logs/<namespace>/<pod uid>` with the query passed on, each over its own connection."""

    async def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        endpoint = str(mapping(metadata(node), "annotations").get(LOG_ENDPOINT) or "")
        if not endpoint:
            name = metadata(node).get("name")
            raise StatusError(
                500, "InternalError", f"node {name} serves no logs (annotation {LOG_ENDPOINT} is missing)"
            )
        meta = metadata(pod)
        url = f"{endpoint.rstrip('/')}/logs/{meta['namespace']}/{meta['uid']}"
        # A node's answer ends with its connection, and one that is followed takes as long as its container runs.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.get(url, params=dict(query)) as answer,
            ):
                if answer.status >= 400:
                    words = (await answer.read()).decode(errors="replace")
                    raise _refused(answer.status, words)
                yield b""
                async for chunk in answer.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise StatusError(502, "InternalError", f"the node's log endpoint did not answer: {exc}") from exc


def _refused(code: int, words: str) -> StatusError:
    return bad_request(words) if code < 500 else StatusError(code, "InternalError", words)
