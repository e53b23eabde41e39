"""Args of scores, as a pool gives them: which are permitted, and what is wrong with given ones.

The entry of a score in the registry names the args that it accepts. If one arg of a score is wrong, all args of that
score are ignored, so that a bad policy changes nothing but that score.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from slipway.model.resources import CPU, MILLI, parse_quantity
from slipway.scheduler.plan.placement.scores import SCORES
from slipway.scheduler.plan.placement.scores.base import DEFAULTING, HARD_WEIGHT, MIX, RESOURCES, SHAPE

_KNOWN: Mapping[str, frozenset[str]] = {name: entry.args for name, entry in SCORES.items() if entry.args}
WEIGHT_MAX = 100
_SORT = {CPU: 0, "gpus": 1024, "gpuMilli": MILLI, "weight": 1_000_000}
"""The fields of a sort of ranks, and the maximum of each (cpu has none)."""
Fault = tuple[str, str]
"""(path below the args, what is wrong)"""


def faults(args: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield everything that is wrong with {score: args}."""
    for score, given in args.items():
        if score not in _KNOWN:
            yield score, f"has no args; the scores with args are {', '.join(sorted(_KNOWN))}"
        elif not isinstance(given, Mapping):
            yield score, "is not a map"
        else:
            for path, text in _faults_of(_KNOWN[score], cast("Mapping[str, Any]", given)):
                yield f"{score}.{path}", text


def sound_args(args: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the args of those scores in which nothing is wrong."""
    return {score: dict(given) for score, given in args.items() if next(faults({score: given}), None) is None}


def _faults_of(known: frozenset[str], given: Mapping[str, Any]) -> Iterator[Fault]:
    for field, value in given.items():
        if field not in known:
            yield field, f"unknown arg; known are {', '.join(sorted(known))}"
        elif field == RESOURCES:
            yield from _resources(value)
        elif field == SHAPE:
            yield from _shape(value)
        elif field == MIX:
            yield from _mix(value)
        elif field == HARD_WEIGHT and not _is_whole(value, 0, WEIGHT_MAX):
            yield field, f"must be a whole number from 0 to {WEIGHT_MAX}"
        elif field == DEFAULTING and value not in ("System", "List"):
            yield field, "must be System or List"


def _resources(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Mapping) or not value:
        yield RESOURCES, "must be a map of weights by resource, not empty"
        return
    for name, weight in cast("Mapping[str, Any]", value).items():
        if not _is_whole(weight, 1, WEIGHT_MAX):
            yield f"{RESOURCES}.{name}", f"must be a whole number from 1 to {WEIGHT_MAX}"


def _shape(value: Any) -> Iterator[Fault]:
    if not isinstance(value, list) or not value:
        yield SHAPE, "must be a list of points, not empty"
        return
    last = -1
    for index, point in enumerate(cast("list[Any]", value)):
        at = f"{SHAPE}[{index}]"
        if not isinstance(point, Mapping) or set(cast("Mapping[str, Any]", point)) != {"utilization", "score"}:
            yield at, "must have utilization and score"
            return
        data = cast("Mapping[str, Any]", point)
        if not _is_whole(data["utilization"], 0, 100) or data["utilization"] <= last:
            yield f"{at}.utilization", "must be a whole number from 0 to 100, and increase from point to point"
            return
        if not _is_whole(data["score"], 0, 10):
            yield f"{at}.score", "must be a whole number from 0 to 10"
        last = data["utilization"]


def _mix(value: Any) -> Iterator[Fault]:
    if not isinstance(value, list) or not value:
        yield MIX, "must be a list of kinds of ranks, not empty"
        return
    for index, item in enumerate(cast("list[Any]", value)):
        at = f"{MIX}[{index}]"
        if not isinstance(item, Mapping) or not set(cast("Mapping[str, Any]", item)) <= set(_SORT):
            yield at, f"must be a map of {', '.join(_SORT)}"
            continue
        data = cast("Mapping[str, Any]", item)
        for name, most in _SORT.items():
            if name != CPU and name in data and not _is_whole(data[name], 0, most):
                yield f"{at}.{name}", f"must be a whole number from 0 to {most}"
        if data.get("gpus") and data.get("gpuMilli"):
            yield f"{at}.gpuMilli", "is a part of one GPU; it cannot be combined with whole GPUs"
        cpu = data.get(CPU, 0)
        if not isinstance(cpu, str | int | float) or isinstance(cpu, bool):
            yield f"{at}.{CPU}", "must be a quantity"
            continue
        try:
            parse_quantity(cpu)
        except ValueError as exc:
            yield f"{at}.{CPU}", str(exc)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
