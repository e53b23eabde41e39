"""Signals between the ranks of an allocation and the api: preemption, readiness, activity, progress, rendezvous."""

from collections.abc import Callable
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations.changes import check_attempt, has_ended
from slipway.api.allocations.view import allocation_view
from slipway.api.deps import parts_of
from slipway.api.http.decoding import Json, checked, read_object
from slipway.api.http.endpoint import (
    Endpoint,
    Handler,
    Query,
    bad_param,
    caller_of,
    json_response,
    number_param,
    optional_number,
)
from slipway.api.http.errors import ConflictError
from slipway.api.schemas import (
    AckBody,
    ActivityBody,
    AllocationView,
    FlagBody,
    PreemptionView,
    ProgressBody,
    RendezvousView,
    StartOrderView,
)
from slipway.api.tasks.poll_cache import look_again, make_ready, still_on
from slipway.api.tasks.preemption_notice import asked_of, signals_of
from slipway.api.tasks.startorder import ranks_of
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, Signals
from slipway.errors import FieldError, InvalidError
from slipway.model.numbers import number_in
from slipway.model.times import format_time, parse_time

TAG = "signals"
ROOT = "/api/v1/allocations/{id}"
POLL_S = 1.0
WAIT_S_MAX = 300
REPORTED = "reported"


async def preemption(request: Request) -> Response:
    """Return the preemption signal; wait for it up to `timeout_seconds`, or until the allocation has ended."""
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    wait_s = number_param(request, "timeout_seconds", default=0, most=WAIT_S_MAX)
    until = parts.clock.monotonic() + wait_s
    while asked_of(found) is None and not has_ended(found) and parts.clock.monotonic() < until:
        if parts.stop.is_set():
            break
        await parts.clock.sleep(min(POLL_S, max(0.0, until - parts.clock.monotonic())))
        found = await look_again(parts, found)
    return json_response(_preemption_view(found))


async def acknowledge(request: Request) -> Response:
    """Record that the rank has received the preemption signal and ends in an orderly way from now on."""
    parts = parts_of(request)
    body = checked(await _object(request), AckBody)
    found = await parts.lookup.find(request.path_params["id"])
    caller = caller_of(request)
    rank = body.rank if body.rank is not None else caller.rank if caller is not None else 0
    _check_rank(found, rank, "/rank")
    asked = asked_of(found)
    if asked is None:
        check_attempt(found, body.attempt)
        raise ConflictError("the allocation is not being preempted; there is nothing to acknowledge")

    def acked(signals: Signals) -> Signals:
        n = max(min(body.n or asked.n, asked.n), signals.acks.get(str(rank), 0))
        return msgspec.structs.replace(signals, acks={**signals.acks, str(rank): n})

    changed = await parts.changes.signal(found, acked, attempt=_attempt(request, body.attempt) or found.status.attempt)
    return json_response(_preemption_view(changed))


async def ready(request: Request) -> Response:
    """Set whether the service in the allocation is ready."""
    return await _flag(request, lambda signals, value: msgspec.structs.replace(signals, ready=value))


async def waiting(request: Request) -> Response:
    """Set whether the service in the allocation has nothing to show yet."""
    return await _flag(request, lambda signals, value: msgspec.structs.replace(signals, waiting=value))


async def daemon(request: Request) -> Response:
    """Set whether the rank is a daemon: a daemon does not keep the gang running."""
    found = await parts_of(request).lookup.find(request.path_params["id"])
    rank = _rank_of(request)
    _check_rank(found, rank, "")

    def marked(signals: Signals, value: bool) -> Signals:
        others = [each for each in signals.daemons if each != rank]
        return msgspec.structs.replace(signals, daemons=sorted([*others, rank] if value else others))

    return await _flag(request, marked)


async def progress(request: Request) -> Response:
    """Record the progress of the allocation, or that its work has just been saved."""
    body = checked(await _object(request), ProgressBody)
    if body.progress is None and not body.checkpoint:
        detail = "is missing; send the progress, or checkpoint to report that the work was saved"
        raise InvalidError(f"progress: {detail}", fields=(FieldError("/progress", detail),))
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    now = format_time(parts.clock.now())

    def told(signals: Signals) -> Signals:
        known = signals.progress if body.progress is None else body.progress
        saved = now if body.checkpoint else signals.checkpoint_at
        return msgspec.structs.replace(signals, progress=known, checkpoint_at=saved)

    changed = await parts.changes.signal(found, told, attempt=_attempt(request, body.attempt))
    return json_response(allocation_view(changed, outside=parts.settings.outside()))


async def activity(request: Request) -> Response:
    """Record that the allocation is in use, for the idle timeout."""
    body = checked(await _object(request), ActivityBody)
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    check_attempt(found, None)
    now = parts.clock.now()
    parts.behind.offer_activity(id_of(found), REPORTED, min(_time(body.at, now), now))
    return Response(status_code=202)


async def rendezvous(request: Request) -> Response:
    """Return the addresses of the ranks; with `timeout_seconds`, wait until all have one.

    After a POST, the allocation is marked as ready when all ranks have one.
    """
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    check_attempt(found, _attempt(request, optional_number(request, "attempt")))
    rank = optional_number(request, "rank")
    if rank is not None and rank not in ranks_of(found):
        placed = ", ".join(map(str, ranks_of(found)[:16]))
        raise bad_param("rank", f"{rank} is not a rank of this attempt; the ranks are {placed}")
    wait_s = number_param(request, "timeout_seconds", default=0, most=WAIT_S_MAX)
    met = await parts.rendezvous.wait_for_addresses(found, wait_s=wait_s, reload=lambda: still_on(parts, found))
    if met.ready and request.method == "POST":
        await make_ready(parts, found)
    return json_response(met)


async def start(request: Request) -> Response:
    """Return whether a rank may start, by the roles that its role depends on; wait up to `timeout_seconds` for it."""
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    check_attempt(found, _attempt(request, optional_number(request, "attempt")))
    rank = _rank_of(request)
    _check_rank(found, rank, "")
    wait_s = number_param(request, "timeout_seconds", default=0, most=WAIT_S_MAX)
    return json_response(
        await parts.rendezvous.may_start(found, rank, wait_s=wait_s, reload=lambda: still_on(parts, found))
    )


async def _flag(request: Request, change: Callable[[Signals, bool], Signals]) -> Response:
    body = checked(await _object(request), FlagBody)
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    changed = await parts.changes.signal(
        found, lambda signals: change(signals, body.value), attempt=_attempt(request, body.attempt)
    )
    return json_response(allocation_view(changed, outside=parts.settings.outside()))


def _attempt(request: Request, given: int | None) -> int | None:
    """Return the given attempt, or else the attempt of the caller's task token; None without both."""
    caller = caller_of(request)
    return given if given is not None or caller is None else caller.attempt


def _rank_of(request: Request) -> int:
    text = str(request.path_params["rank"])
    rank = number_in(text)
    if rank is None:
        raise InvalidError(f"there is no rank {text[:16]!r}; the ranks are numbers from 0")
    return rank


def _check_rank(allocation: Allocation, rank: int, pointer: str) -> None:
    count = sum(role.count for role in allocation.spec.ranks) or 1
    if rank >= count:
        detail = f"there is no rank {rank}; the ranks are 0 to {count - 1}"
        raise InvalidError(f"rank: {detail}", fields=(FieldError(pointer, detail),))


async def _object(request: Request) -> Json:
    return await read_object(request, parts_of(request).settings.body_bytes_max)


def _preemption_view(allocation: Allocation) -> PreemptionView:
    asked = asked_of(allocation)
    return PreemptionView(
        preempt=asked is not None,
        n=asked.n if asked else 0,
        reason=asked.reason if asked else "",
        at=asked.at if asked else "",
        deadline=asked.deadline if asked else "",
        requeue=asked is not None and asked.requeue,
        attempt=allocation.status.attempt,
        acks=signals_of(allocation).acks,
        by=asked.by if asked else "",
    )


def _time(text: str, now: float) -> float:
    try:
        return parse_time(text) if text else now
    except ValueError as error:
        raise bad_param("at", str(error)) from error


def _row(path: str, handler: Handler, summary: str, body: type, answer: object, *, status: int = 200) -> Endpoint:
    return Endpoint(
        method="POST",
        path=f"{ROOT}/{path}",
        handler=handler,
        summary=summary,
        tag=TAG,
        body=body,
        answer=answer,
        status=status,
        for_tasks=True,
    )


_BOTH: tuple[Literal["GET"], Literal["POST"]] = ("GET", "POST")

ENDPOINTS = (
    Endpoint(
        method="GET",
        path=f"{ROOT}/signals/preemption",
        handler=preemption,
        summary="Show whether the ranks are asked to end (long poll)",
        tag=TAG,
        query=(
            Query("timeout_seconds", f"seconds to wait for the signal, at most {WAIT_S_MAX}; default: 0", "integer"),
        ),
        answer=PreemptionView,
        is_long=True,
        for_tasks=True,
    ),
    *(
        Endpoint(
            method=method,
            path=f"{ROOT}/rendezvous",
            handler=rendezvous,
            summary=(
                "List the addresses of the ranks (long poll); after a POST, the allocation is marked as ready when "
                "all have one"
            ),
            tag=TAG,
            query=(
                Query(
                    "timeout_seconds",
                    f"seconds to wait until all ranks have an address, at most {WAIT_S_MAX}; default: 0",
                    "integer",
                ),
                Query("rank", "the calling rank; the request is refused when there is no such rank", "integer"),
                Query(
                    "attempt",
                    "the attempt of the caller; the request is refused when it is not the current one",
                    "integer",
                ),
            ),
            answer=RendezvousView,
            is_long=True,
            for_tasks=True,
        )
        for method in _BOTH
    ),
    Endpoint(
        method="GET",
        path=f"{ROOT}/ranks/{{rank}}/start",
        handler=start,
        summary="Show whether a rank may start, by the roles that its role depends on (long poll)",
        tag=TAG,
        query=(
            Query("timeout_seconds", f"seconds to wait for those roles, at most {WAIT_S_MAX}; default: 0", "integer"),
            Query(
                "attempt", "the attempt of the caller; the request is refused when it is not the current one", "integer"
            ),
        ),
        answer=StartOrderView,
        is_long=True,
        for_tasks=True,
    ),
    _row("signals/preemption/ack", acknowledge, "Acknowledge a preemption", AckBody, PreemptionView),
    _row("ready", ready, "Report whether the service inside is ready", FlagBody, AllocationView),
    _row("waiting", waiting, "Report whether the service inside has nothing to show yet", FlagBody, AllocationView),
    _row("progress", progress, "Report progress, or that the work was saved", ProgressBody, AllocationView),
    _row("activity", activity, "Report that the allocation is in use", ActivityBody, None, status=202),
    _row(
        "ranks/{rank}/daemon",
        daemon,
        "Report whether the rank is a daemon, which does not keep the gang running",
        FlagBody,
        AllocationView,
    ),
)
