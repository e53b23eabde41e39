"""`--array 0-99%10`: one launch per index, all in one job; each launch gets its index in its environment.

Owns the syntax of the indexes and the fields that differ between the launches. The job limits how many launches run.
Its limit counts GPUs, so `%10` becomes ten times the GPUs of one launch.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from slipway.cli.verb import command_line
from slipway.errors import InvalidError
from slipway.model.numbers import number_in

Json = dict[str, Any]

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
