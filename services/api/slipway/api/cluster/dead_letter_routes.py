"""Dead letters: messages that could not be processed. An operator can read, replay or drop them."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, Query, json_response, number_param
from slipway.api.http.errors import ConflictError, needs_redis
from slipway.api.schemas import Items, LetterView, ReplayAllBody, ReplayedView
from slipway.errors import InvalidError, NotFoundError
from slipway.streams import keys
from slipway.streams.ports import DeadLetter

TAG = "admin"
ROOT = "/api/v1/dead"
PAGE_MAX = 500
REFUSED_SHOWN_MAX = 20


async def dead_letters(request: Request) -> Response:
    """Return a page of dead letters, oldest first."""
    limit = number_param(request, "limit", default=100, least=1, most=PAGE_MAX)
    source = request.query_params.get("source", "")
    with needs_redis("dead letters"):
        page = await parts_of(request).dead.page(after=request.query_params.get("after") or None, limit=limit)
    views = [_view(letter) for letter in page if _is_of(letter, source)]
    return json_response({"items": views, "metadata": {"continue": page[-1].id if len(page) == limit else ""}})


async def show(request: Request) -> Response:
    """Return one dead letter with its fields."""
    with needs_redis("dead letters"):
        letter = await parts_of(request).dead.find(_id_of(request))
    if letter is None:
        raise _missing(request)
    return json_response(_view(letter))


async def replay(request: Request) -> Response:
    """Send a dead letter to its source again."""
    parts = parts_of(request)
    with needs_redis("dead letters"):
        letter = await parts.dead.find(_id_of(request))
        if letter is None:
            raise _missing(request)
        await _check(parts, letter)
        if not await parts.dead.replay(letter.id):
            raise _missing(request)
    return Response(status_code=202)


async def replay_all(request: Request) -> Response:
    """Send every present dead letter again, of one source or of all."""
    parts = parts_of(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), ReplayAllBody)
    count, refused = 0, list[str]()
    with needs_redis("dead letters"):
        # All letters are listed before the first is sent, so that a letter that fails again is not sent twice.
        letters = [letter for letter in await _all(parts) if _is_of(letter, body.source)]
        for letter in letters:
            try:
                await _check(parts, letter)
                count += await parts.dead.replay(letter.id)
            except (ConflictError, InvalidError) as error:
                refused.append(f"{letter.id}: {error}")
    view = ReplayedView(replayed=count, refused=len(refused), reasons=refused[:REFUSED_SHOWN_MAX])
    return json_response(view, status=202)


async def drop(request: Request) -> Response:
    """Remove a dead letter without sending it again."""
    with needs_redis("dead letters"):
        is_gone = await parts_of(request).dead.drop(_id_of(request))
    if not is_gone:
        raise _missing(request)
    return Response(status_code=204)


async def _all(parts: ApiDeps) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    while len(found) < keys.DEAD.length_max:
        page = await parts.dead.page(after=found[-1].id if found else None, limit=PAGE_MAX)
        found += page
        if len(page) < PAGE_MAX:
            break
    return found


async def _check(parts: ApiDeps, letter: DeadLetter) -> None:
    """Check that the receiver of a dead letter still exists. Raises ConflictError."""
    if letter.source != keys.DEAD_DELIVERY:
        return
    name = letter.fields.get("webhook", "")
    if name not in await parts.webhooks.known():
        raise ConflictError(
            f"webhook {name[:64]} was deleted, so the letter has no receiver; DELETE {ROOT}/{letter.id} drops it"
        )


def _id_of(request: Request) -> str:
    """Return the id in the path. Raises InvalidError when its form is wrong."""
    text = str(request.path_params["letter"])
    try:
        msgspec.convert(text, keys.CursorText)
    except msgspec.ValidationError:
        raise InvalidError(
            f"{text[:64]!r} is not the id of a dead letter, such as 1700000000000-0; GET {ROOT} lists them"
        ) from None
    return text


def _missing(request: Request) -> NotFoundError:
    return NotFoundError(f"there is no dead letter {_id_of(request)}; GET {ROOT} lists them")


def _is_of(letter: DeadLetter, source: str) -> bool:
    """Whether the letter came from `source`; `work` means any shard of the work queue."""
    return not source or letter.source == source or letter.source.startswith(f"slipway:{source}:")


def _view(letter: DeadLetter) -> LetterView:
    return LetterView(
        id=letter.id,
        source=letter.source,
        entry_id=letter.entry_id,
        cause=letter.cause,
        deliveries=letter.deliveries,
        fields=dict(letter.fields),
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=ROOT,
        handler=dead_letters,
        summary="List the dead letters",
        tag=TAG,
        query=(
            Query("after", "continue after this id"),
            Query("limit", f"number of letters in a page, at most {PAGE_MAX}", "integer"),
            Query("source", "only letters of this source: work (hints for the pod workers) or webhook"),
        ),
        answer=Items[LetterView],
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/replay",
        handler=replay_all,
        summary="Send all dead letters again",
        tag=TAG,
        body=ReplayAllBody,
        answer=ReplayedView,
        status=202,
    ),
    Endpoint(
        method="GET", path=f"{ROOT}/{{letter}}", handler=show, summary="Show a dead letter", tag=TAG, answer=LetterView
    ),
    Endpoint(
        method="DELETE", path=f"{ROOT}/{{letter}}", handler=drop, summary="Drop a dead letter", tag=TAG, status=204
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/{{letter}}/replay",
        handler=replay,
        summary="Send a dead letter again",
        tag=TAG,
        status=202,
    ),
)
