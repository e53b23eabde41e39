"""Parts of the list of waiting allocations: from a given position, or directly behind the previous part. Pure.

Owns the cursor. The cursor is the sort key of the last item of a part. The next part begins directly behind this key,
whatever was added or removed before it. An allocation that is moved between two reads may appear twice or not at all.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable

import msgspec

from slipway.api.http.endpoint import bad_param
from slipway.api.queues.queue_view import Jobs, LineKey, QueuePlace, gate_of, waiting_view
from slipway.api.schemas import ListMetadata, WaitingList
from slipway.crd.transitions import id_of, user_of

TOKEN = "waits."  # noqa: S105 - the beginning of a page token, not a secret


def waiting_list(
    places: Iterable[QueuePlace],
    jobs: Jobs,
    is_wanted: Callable[[QueuePlace], bool],
    *,
    limit: int,
    first: int = 1,
    continue_: str = "",
) -> WaitingList:
    """Return at most `limit` wanted allocations: those behind the cursor `continue_`, else those from `first` on.

    Raises MalformedError when `continue_` is no cursor of this list.
    """
    after = _read(continue_) if continue_ else None
    found = [place for place in places if is_wanted(place)]
    begin = first - 1 if after is None else next((at for at, each in enumerate(found) if each.key > after), len(found))
    part = found[begin : begin + limit]
    rest = max(0, len(found) - begin - len(part))
    return WaitingList(
        items=[waiting_view(place, jobs) for place in part],
        first=begin + 1,
        count=len(found),
        metadata=ListMetadata(
            continue_=_token(part[-1].key) if part and rest else "", remaining_item_count=rest or None
        ),
    )


def is_called(place: QueuePlace, words: Iterable[str]) -> bool:
    """Whether each word occurs in the id, the name, the user or the reason code; upper and lower case are equal."""
    allocation = place.allocation
    names = (id_of(allocation), allocation.metadata.name, user_of(allocation), gate_of(allocation)[0])
    known = [name.casefold() for name in names]
    return all(any(word.casefold() in name for name in known) for word in words)


def _token(key: LineKey) -> str:
    return TOKEN + base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _read(token: str) -> LineKey:
    refused = bad_param("continue", "does not come from a part of this list; begin again without it")
    text = token.removeprefix(TOKEN)
    if text == token:
        raise refused
    try:
        # A place may have more digits than the decoder of msgspec reads.
        values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return msgspec.convert(values, LineKey)
    except (binascii.Error, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise refused from error
