"""Several allocations of one launch: replicas behind one Service, and arrays.

Replicas are one allocation each, all behind the Service that the launch names. One request makes them, which may be
repeated. The API checks the launch.

Arrays, such as `--array 0-99%10`: one launch per index, all in one job; each launch gets its index in its environment.
The job limits how many launches run. Its limit counts GPUs, so `%10` becomes ten times the GPUs of one launch.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from slipway.cli import equivalents, http, main, output
from slipway.cli.http import new_key
from slipway.cli.verb import CliSession, command_line
from slipway.errors import DeadlineError, FieldError, InvalidError
from slipway.model.numbers import number_in

Json = dict[str, Any]
FIELD = "replicas"
LABEL = "slipway.dev/service"


def launch_all(session: CliSession, body: Json, arguments: argparse.Namespace) -> int:
    """Launch the replicas and print their ids; none is followed."""
    if arguments.wait or arguments.follow or equivalents.asked(arguments):
        raise InvalidError("replicas: cannot be combined with --follow, --wait or --as; leave one of them out")
    try:
        sent = _sent(session, body, arguments.key or new_key(), arguments)
    except InvalidError as error:
        # The body contains the launch as one part. The user wrote the launch only, so pointers are relative to it.
        fields = tuple(FieldError(each.pointer.removeprefix("/launch"), each.detail) for each in error.fields)
        raise InvalidError(str(error), fields=fields) from error
    name = str(cast("Json", body["service"])["name"])
    before = sum(item["outcome"] == "replayed" for item in sent)
    count = f"{len(sent)} replicas" if len(sent) > 1 else "1 replica"
    known = f" ({before} launched before)" if before else ""
    show = command_line("ps", "-l", f"{LABEL}={name}", *(["-n", str(body["workspace"])] if "workspace" in body else []))
    session.terminal.note(f"{count} behind Service {name}{known}; see them with: {show}")
    return main.OK


def _sent(session: CliSession, body: Json, key: str, arguments: argparse.Namespace) -> list[Json]:
    """Return the result of each replica; the request is repeated while each answer launches more of them.

    Raises:
        ControlPlaneError: a replica is refused; it says why. DeadlineError: an answer launched none of the rest.
    """
    told: set[str] = set()
    while True:
        headers = {"Idempotency-Key": key}
        answer = session.api.call("POST", "/allocations/launches", body={"launch": body}, headers=headers).json()
        items = cast("list[Json]", answer["items"])
        launched = [item for item in items if item.get("id")]
        new = [item for item in launched if item["id"] not in told]
        for item in new:
            _tell(session, item, arguments)
            told.add(str(item["id"]))
        refused = [item for item in items if item["outcome"] == "refused"]
        if refused:
            session.terminal.note(f"{refused[0]['name']} is refused; {len(launched)} of {len(items)} are launched")
            raise http.error_of_problem(refused[0]["problem"])
        if len(launched) == len(items):
            return items
        if not new:
            left = len(items) - len(launched)
            raise DeadlineError(
                f"the server launched none of the remaining {left} within its time limit; try again later"
            )


def _tell(session: CliSession, item: Json, arguments: argparse.Namespace) -> None:
    """Print a launched replica in the requested output form."""
    if output.is_for_machines(arguments):
        view = session.api.call("GET", f"/allocations/{item['id']}")
        output.write(session.terminal, arguments.output, view)
    else:
        session.terminal.line(str(item["id"]))


GPU = "nvidia.com/gpu"
INDEX, COUNT = "ARRAY_INDEX", "ARRAY_COUNT"
"""Environment variables of a launch: its index, and the number of launches in the array."""
INDEXES_MAX = 1000
REQUEST_MAX = 100
"""The most launches in one request."""
INDEX_MAX = 999_999
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", re.ASCII)


class Array(NamedTuple):
    """The indexes in order, and how many launches may run at a time (0: no limit)."""

    indexes: tuple[int, ...]
    at_once: int = 0


def array_of(text: str) -> Array:
    """Parse `--array`: `0-99`, `1,3,7-9`, `0-20:5`, each with or without `%10`.

    Raises:
        InvalidError: the text has another form, or names no index or too many.
    """
    listed, has_bound, bound = text.partition("%")
    found: dict[int, None] = {}
    for part in listed.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or (has_bound and not 0 < (number_in(bound) or 0) <= INDEX_MAX):
            raise InvalidError(f"--array: {text[:64]!r} is no list of indexes; write 0-99, 1,3,7-9, 0-20:5 or 0-99%10")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1:
            raise InvalidError(f"--array: {part} is an empty range; write the smaller index first, and a step above 0")
        if len(range(first, last + 1, step)) > INDEXES_MAX - len(found):
            raise InvalidError(f"--array: has more than {INDEXES_MAX} indexes; launch it in several parts")
        found |= dict.fromkeys(range(first, last + 1, step))
    return Array(tuple(sorted(found)), int(bound) if has_bound else 0)


def written(indexes: Sequence[int]) -> str:
    """Format ordered indexes as `array_of` reads them: `0-3,7`."""
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][-1] + 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ",".join("-".join(map(str, run)) for run in runs)


def job_of(body: Json, array: Array) -> Json:
    """Return the job for the launches of the array.

    Raises:
        InvalidError: `%N` is not possible, because the launches have no GPUs.
    """
    job: Json = {"name": body["name"]} | ({"workspace": body["workspace"]} if "workspace" in body else {})
    if array.at_once:
        roles: list[Json] = body.get("ranks") or []
        gpus = sum(int(role.get("resources", {}).get(GPU, 0)) * int(role.get("count", 1)) for role in roles)
        if not gpus:
            raise InvalidError(
                f"--array: %{array.at_once} limits the launches by their GPUs; add --gpus, or leave %{array.at_once} "
                "out"
            )
        job["maxSlots"] = gpus * array.at_once
    return job


def differences_of(body: Json, array: Array) -> list[Json]:
    """Return what differs in each launch of the array: a name and its index. `body` contains the rest."""
    return [{"name": f"{body['name']}-{index}", "env": {INDEX: str(index)}} for index in array.indexes]


def common_of(body: Json, array: Array) -> Json:
    """Return the launch body that all launches of the array share: their job, and the number of launches."""
    # The command for the rest of an array passes ARRAY_COUNT of the whole array with --env, which has precedence.
    return {"job": body["name"], **body, "env": {COUNT: str(len(array.indexes)), **body.get("env", {})}}


def command_for_the_rest(words: Sequence[str], common: Json, *, left: Sequence[int], key: str) -> str:
    """Return the command that launches the remaining indexes, which are `left`, and none of them twice.

    It is `words`, with the values that the first command generated written as options."""
    at = words.index("--") if "--" in words else len(words)
    front = _without(words[:at], "--array", "--name", "--job", "--key")
    count = f"{COUNT}={common['env'][COUNT]}"
    own = [] if count in front else ["--env", count]
    own += ["--name", common["name"], "--job", common["job"], "--key", key, "--array", written(left)]
    return command_line("run", *front, *own, *words[at:])


def _without(words: Sequence[str], *options: str) -> list[str]:
    """Return the words without these options and without their values."""
    found: list[str] = []
    is_value = False
    for word in words:
        if is_value or word in options:
            is_value = not is_value
        elif word.partition("=")[0] not in options:
            found.append(word)
    return found
