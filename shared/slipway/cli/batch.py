"""Applies one verb to many allocations: sends as few requests as possible, and prints the outcome of each.

Owns how a batch is split into requests, what is sent again, and what is printed. No allocation is changed twice,
because all requests of a batch have one Idempotency-Key. Each failure is printed on a line. Successes are printed one
per line while they are few.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from slipway.cli import main
from slipway.cli.http import in_our_words
from slipway.cli.verb import CliSession, known_names
from slipway.errors import DeadlineError

Json = dict[str, Any]

REQUEST_MAX = 1000
MOVES_MAX = 100
SHOWN_MAX = 20
"""The most successes that are printed one per line; a larger number is printed as one line."""


def send(
    session: CliSession,
    verb: str,
    ids: Sequence[str],
    values: Json | None = None,
    *,
    done: Callable[[Json], str],
    done_to_all: str,
    refused: Callable[[Json], str] = lambda _: "",
    may_be_gone: bool = False,
) -> int:
    """Apply the verb to each allocation, also after failures; return the exit code.

    `done` returns what was done to one allocation (`is held`), `done_to_all` is the text for many (`are held`).
    `refused` returns why one was refused, when the verb has better words than the server, else an empty text. With
    `may_be_gone`, an allocation that does not exist is no failure.
    """
    items = _sent(session, verb, ids, values or {})
    fine = ("done", "notFound") if may_be_gone else ("done",)
    failed = [item for item in items if item["outcome"] not in fine]
    succeeded = [item for item in items if item["outcome"] == "done"]
    if len(succeeded) > SHOWN_MAX:
        session.terminal.line(f"{len(succeeded)} allocations {done_to_all}")
    else:
        for item in succeeded:
            session.terminal.line(f"{item['id']}{done(item)}")
    known = known_names(session) if any(item["outcome"] == "notFound" for item in failed) else []
    for item in failed:
        meant = main.close_to(item["id"], known) if item["outcome"] == "notFound" else ""
        why = refused(item) or f": {in_our_words(item['problem']['detail'])}{meant}"
        session.terminal.note(f"{item['id']}{why}")
    if failed and len(items) > 1:
        session.terminal.note(f"{len(failed)} of {len(items)} failed")
    return _exit_code(failed)


def _sent(session: CliSession, verb: str, ids: Sequence[str], values: Json) -> list[Json]:
    """Return the outcome of each allocation, in the order of `ids`."""
    key = f"cli-{uuid.uuid4().hex}"
    parts = parts_of(ids, MOVES_MAX if verb == "move" else REQUEST_MAX)
    if "behind" in values:
        # The server puts each allocation directly behind the same one, so the last part must be moved first.
        parts.reverse()
    answered = [_sent_part(session, {"verb": verb, **values}, part, key) for part in parts]
    if "behind" in values:
        answered.reverse()
    return [item for part in answered for item in part]


def parts_of(ids: Sequence[str], size: int = REQUEST_MAX) -> list[list[str]]:
    """Split the ids into parts of at most `size`, the limit of one request."""
    return [list(ids[start : start + size]) for start in range(0, len(ids), size)]


def _sent_part(session: CliSession, body: Json, ids: list[str], key: str) -> list[Json]:
    """Repeat the request while each answer reaches more allocations. Raises DeadlineError when one reaches none."""
    found: dict[str, Json] = {}
    left = list(dict.fromkeys(ids))
    while left:
        answer = session.api.call(
            "POST", "/allocations/batch", body={**body, "ids": left}, headers={"Idempotency-Key": key}
        ).json()
        items = cast("list[Json]", answer["items"])
        found |= {text: item for text, item in zip(left, items, strict=True) if item["outcome"] != "notReached"}
        rest = [text for text in left if text not in found]
        if len(rest) == len(left):
            raise DeadlineError(
                f"the server processed none of {len(left)} allocations within its time limit; try again later"
            )
        left = rest
    return [found[text] for text in dict.fromkeys(ids)]


def _exit_code(failed: Sequence[Json]) -> int:
    """Return the exit code of one failure when all failures have the same status, else FAILED."""
    if not failed:
        return main.OK
    sorts = Counter(int(item["problem"]["status"]) for item in failed)
    if len(sorts) > 1:
        return main.FAILED
    return {404: main.NOT_FOUND, 403: main.NOT_ALLOWED}.get(next(iter(sorts)), main.FAILED)
