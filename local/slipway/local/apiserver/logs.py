"""Container logs: a port, and the adapter that requests the log from the node.

Owns the validation of a log query, and the way from a pod to its node's log endpoint (annotation
`slipway.dev/log-endpoint` of the Node). Stores no log. Invariant: chunks are passed on as they arrive; the caller ends
the stream by closing the iterator.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import aiohttp

from slipway.local.apiserver.objects import Json, format_time, mapping, metadata, parse_time
from slipway.local.apiserver.status import FieldCause, StatusError, bad_request, bad_value, invalid, not_allowed

LOG_ENDPOINT = "slipway.dev/log-endpoint"
CONNECT_TIMEOUT_S = 5.0


class NodeLogs(Protocol):
    def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the log of one container in chunks. The first chunk is empty and marks the start of the log.

        Raises: StatusError, only before the first chunk.
        """
        ...


def checked(pod: Json, query: Mapping[str, str]) -> dict[str, str]:
    """Return the query as sent to a node: validated, with the container's name and a time in whole seconds.

    Raises:
        StatusError: 400 or 422.
    """
    given = {name: text for name, text in query.items() if text}
    tail, limit, seconds = (_number(given, name) for name in ("tailLines", "limitBytes", "sinceSeconds"))
    causes = list[FieldCause]()
    if tail is not None and tail < 0:
        causes.append(bad_value("tailLines", tail, "must be greater than or equal to 0"))
    if limit is not None and limit < 1:
        causes.append(bad_value("limitBytes", limit, "must be greater than 0"))
    if seconds is not None and "sinceTime" in given:
        causes.append(not_allowed("", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    elif seconds is not None and seconds < 1:
        causes.append(bad_value("sinceSeconds", seconds, "must be greater than 0"))
    if "sinceTime" in given:
        since = parse_time(given["sinceTime"])
        if since is None:
            raise bad_request(f'sinceTime: Invalid value: "{given["sinceTime"]}": must be an RFC 3339 time')
        given["sinceTime"] = format_time(int(since))
    if causes:
        raise invalid("PodLogOptions", metadata(pod)["name"], causes)
    return given | {"container": container_of(pod, given.get("container", ""))}


class NodeLogSource:
    """Reads logs by `GET <endpoint>/logs/<namespace>/<pod uid>` with the caller's query, one connection per log."""

    async def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        endpoint = str(mapping(metadata(node), "annotations").get(LOG_ENDPOINT) or "")
        if not endpoint:
            name = metadata(node).get("name")
            raise StatusError(
                500, "InternalError", f"node {name} serves no logs (annotation {LOG_ENDPOINT} is missing)"
            )
        asked = checked(pod, query)
        meta = metadata(pod)
        url = f"{endpoint.rstrip('/')}/logs/{meta['namespace']}/{meta['uid']}"
        # A followed log lasts as long as its container runs, so the request has no total timeout.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.get(url, params=asked) as answer,
            ):
                if answer.status >= 400:
                    words = (await answer.read()).decode(errors="replace")
                    raise _refused(answer.status, words)
                yield b""
                async for chunk in answer.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise StatusError(502, "InternalError", f"the node's log endpoint did not answer: {exc}") from exc


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    try:
        return None if text is None else int(text)
    except ValueError as exc:
        raise bad_request(f'{name}: Invalid value: "{text}": strconv.ParseInt: invalid syntax') from exc


def container_of(pod: Json, name: str) -> str:
    """Return the requested container, or the pod's only container when none is named. Raises StatusError 400."""
    spec, whose = mapping(pod, "spec"), metadata(pod)["name"]
    inits, mains = (
        [str(each.get("name")) for each in spec.get(kind) or ()] for kind in ("initContainers", "containers")
    )
    if not name and len(mains) > 1:
        words = f"a container name must be specified for pod {whose}, choose one of: [{' '.join((*inits, *mains))}]"
        raise bad_request(words)
    if name and name not in (*inits, *mains):
        raise bad_request(f"container {name} is not valid for pod {whose}")
    return name or mains[0]


def _refused(code: int, words: str) -> StatusError:
    return bad_request(words) if code < 500 else StatusError(code, "InternalError", words)
