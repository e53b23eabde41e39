"""Many launches in one request: the body has the common fields once, and the differences of each launch.

Each launch is the same as a launch by `POST /allocations`: with the same checks, and with its own audit log line. Its
Idempotency-Key is made of the key of the request and the name of the launch. A request that is sent again with the same
key launches only what it has not launched before, also if it has fewer or other launches. A launch with `replicas` is
expanded first (`replicas.py`). All launches go to one workspace, so the caller's permission is checked once.
"""

from collections import Counter
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations.batch_schemas import LaunchesAnswer, LaunchesRequest, LaunchItem, LaunchOutcome
from slipway.api.auth.middleware import permit
from slipway.api.auth.principal import CREATE, principal_of, user_of
from slipway.api.deps import parts_of
from slipway.api.http import audit
from slipway.api.http.batch import BatchDeadlineError, Tried
from slipway.api.http.decoding import checked, read_object, summary
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.api.http.problems import problem_of
from slipway.api.http.request_telemetry import unique_id
from slipway.api.launch import replicas
from slipway.api.launch.launcher import LaunchRequest, LaunchResult, check_key
from slipway.api.launch.overlays import merged
from slipway.api.launch.secret_values import FIELD as SECRET_VALUES
from slipway.api.launch.secret_values import split
from slipway.api.schemas import DEFAULT_WORKSPACE
from slipway.crd.hashing import key_hash
from slipway.crd.transitions import id_of
from slipway.errors import ControlPlaneError, FieldError, InvalidError
from slipway.runtime import telemetry

Json = dict[str, Any]

PATH = "/api/v1/allocations/launches"
_OF_ALL = ("workspace", SECRET_VALUES, "secretVariables")
"""Fields that all launches of a request share; they are refused in `each`."""


async def launch_batch(request: Request) -> Response:
    """Launch all. Answers 200 with the outcome of each launch."""
    parts = parts_of(request)
    asked = checked(await read_object(request, parts.settings.body_bytes_max), LaunchesRequest)
    key = request.headers.get("idempotency-key", "")
    check_key(key)
    common, values = _split(asked.launch)
    common, each = _taken_apart(common, asked.each)
    names = _names(each)
    named = common.get("workspace", DEFAULT_WORKSPACE)
    workspace = named if isinstance(named, str) else DEFAULT_WORKSPACE
    audit.note_object(request, {}, workspace=workspace)
    await permit(request, CREATE, workspace)
    launch_request = LaunchRequest(
        body={},
        values=values,
        workspace=workspace if isinstance(named, str) else "",
        user=user_of(request),
        request_id="",
        traceparent=telemetry.current_traceparent(),
    )

    async def one(place: int) -> LaunchResult:
        own_key = key_hash(f"{key}\n{names[place]}") if key else ""
        suffix = parts.random.token_hex(4)
        launched = await parts.launcher.launch(
            launch_request.for_one(merged(common, each[place]), key=own_key, request_id=unique_id(request, suffix))
        )
        parts.lookup.remember(launched.allocation)
        return launched

    async with parts.batches.turn(principal_of(request).name) as turn:
        tried = await turn.each(range(len(names)), one)
    items = [_item(name, each) for name, each in zip(names, tried, strict=True)]
    _tell(request, items, workspace)
    return json_response(LaunchesAnswer(items=items, counts=dict(Counter(item.outcome for item in items))))


def _split(launch: Json) -> tuple[Json, Any]:
    """Return (the common fields, their secret values). Raises InvalidError with pointers into the body."""
    try:
        return split(launch)
    except InvalidError as error:
        raise _refused(*(FieldError(f"/launch{field.pointer}", field.detail) for field in error.fields)) from error


def _taken_apart(common: Json, each: list[Json] | msgspec.UnsetType) -> tuple[Json, list[Json]]:
    """Return (the common fields, the differences of each launch). Raises InvalidError with pointers into the body."""
    if replicas.FIELD not in common:
        if isinstance(each, msgspec.UnsetType):
            raise _refused(
                FieldError("/each", "is missing: write the fields that differ for each launch, or launch.replicas")
            )
        return common, each
    errors = replicas.errors_of(common)
    if not isinstance(each, msgspec.UnsetType):
        errors.append(FieldError("/each", "launch.replicas sets the number of launches too; leave one of them out"))
    if errors:
        raise _refused(*(FieldError(_in_launch(error.pointer), error.detail) for error in errors))
    rest = {name: value for name, value in common.items() if name != replicas.FIELD}
    return rest, replicas.differences_of(common)


def _in_launch(pointer: str) -> str:
    return pointer if pointer == "/each" else f"/launch{pointer}"


def _names(launches: list[Json]) -> list[str]:
    """Return the name of each launch.

    Raises InvalidError for a missing name, for a duplicate name, and for a field that all launches have to share.
    """
    errors: list[FieldError] = []
    names: dict[str, int] = {}
    for place, each in enumerate(launches):
        name = cast(object, each.get("name"))
        if not isinstance(name, str) or not name:
            errors.append(FieldError(f"/each/{place}/name", "is missing: each launch needs a name of its own"))
        elif name in names:
            errors.append(FieldError(f"/each/{place}/name", f"is the name of /each/{names[name]} too; choose another"))
        else:
            names[name] = place
        errors += [
            FieldError(f"/each/{place}/{field}", "must be the same for all launches; write it in launch")
            for field in _OF_ALL
            if field in each
        ]
    if errors:
        raise _refused(*errors)
    return list(names)


def _refused(*errors: FieldError) -> InvalidError:
    return InvalidError(summary("the body", errors), fields=errors)


def _item(name: str, tried: Tried[LaunchResult]) -> LaunchItem:
    match tried:
        case BatchDeadlineError():
            return LaunchItem(name=name, outcome=LaunchOutcome.NOT_REACHED)
        case ControlPlaneError():
            return LaunchItem(name=name, outcome=LaunchOutcome.REFUSED, problem=problem_of(tried))
        case LaunchResult():
            return LaunchItem(
                name=name,
                outcome=LaunchOutcome.LAUNCHED if tried.created else LaunchOutcome.REPLAYED,
                id=id_of(tried.allocation),
                warnings=list(tried.warnings),
            )


def _tell(request: Request, items: list[LaunchItem], workspace: str) -> None:
    """Write a line of the audit log for each launch that was reached."""
    statuses = {LaunchOutcome.LAUNCHED: 201, LaunchOutcome.REPLAYED: 200}
    for item in items:
        if item.outcome is not LaunchOutcome.NOT_REACHED:
            status = statuses.get(item.outcome) or (item.problem.status if item.problem else 500)
            audit.log_item(request, "launch", {"id": item.id, "name": item.name}, workspace, status)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path=PATH,
        handler=launch_batch,
        summary="Launch many similar workloads",
        tag="allocations",
        body=LaunchesRequest,
        answer=LaunchesAnswer,
    ),
)
