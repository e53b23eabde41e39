"""Allgather between ranks: each rank sends some data, and each receives the data of all."""

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations.changes import check_attempt
from slipway.api.deps import parts_of
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import JSON_TYPE, Endpoint, caller_of
from slipway.api.http.streaming import first_of
from slipway.api.schemas import GatherBody, GatherView
from slipway.api.tasks.poll_cache import make_ready, still_on
from slipway.crd.transitions import id_of
from slipway.errors import FieldError, InvalidError
from slipway.streams.allgather import NO_RANK, GatherKey, Seat

T = TypeVar("T")

DATA_BYTES_MAX = 64 * 1024
CLIENT_GONE = 499
"""Status in the log when the client disconnected before the answer; it is not sent to any client."""


async def allgather(request: Request) -> Response:
    """Wait until the stated number of peers has arrived, and return the data of each peer."""
    parts = parts_of(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), GatherBody)
    data = msgspec.json.encode(body.data)
    if len(data) > DATA_BYTES_MAX:
        detail = f"has {len(data)} bytes; one peer may send {DATA_BYTES_MAX}. For large data, send its location instead"
        raise InvalidError(f"data: {detail}", fields=(FieldError("/data", detail),))
    caller = caller_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    check_attempt(found, body.attempt or (caller.attempt if caller is not None else None))
    key = GatherKey(allocation=id_of(found), attempt=found.status.attempt, group=body.group)
    rank = body.rank if body.rank is not None else caller.rank if caller is not None else NO_RANK
    meeting = parts.gather.gather(
        key,
        Seat(request_id=body.request_id, rank=rank, data=data),
        peers=body.num_peers,
        wait_s=body.timeout_seconds,
        still_on=lambda: still_on(parts, found),
    )
    met = await _unless_gone(request, meeting)
    if met is None:
        return Response(status_code=CLIENT_GONE)
    if body.request_id in met.places:
        await make_ready(parts, found)
    return Response(met.answer(body.request_id), media_type=JSON_TYPE, headers={"Cache-Control": "no-store"})


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`. When the client disconnects, cancel `work` and return None."""
    answers: list[T] = []

    async def answer() -> None:
        answers.append(await work)

    async def gone() -> None:
        while True:
            if (await request.receive())["type"] == "http.disconnect":
                return

    await first_of(answer(), gone())
    return answers[0] if answers else None


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/allocations/{id}/allgather",
        handler=allgather,
        summary=(
            "Exchange data with the other ranks (long poll); when all have arrived, the allocation is marked as ready"
        ),
        tag="signals",
        body=GatherBody,
        answer=GatherView,
        is_long=True,
        for_tasks=True,
    ),
)
