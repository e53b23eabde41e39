"""Every reader of ours accepts every text that the API server accepts for a field with a pattern.

An object that is applied with kubectl passes the schema and its rules, and no check of the api. A stricter reader would
stop a service at that object, and with it the work on all others.
"""

import copy
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipway.api.allocations.explain import limits
from slipway.crd.meta import ObjectMeta
from slipway.crd.resolve import grace_max_s
from slipway.crd.schema import DEFINITIONS, crd_manifests
from slipway.crd.v1alpha1 import Allocation, Job, Queue, ResourcePool
from slipway.facts.custom_resources import allocation_fact, job_fact, pool_fact, queue_fact, run_limit
from slipway.model.position import POSITION_PATTERN, work_key
from slipway.model.times import DURATION_MAX_S, DURATION_PATTERN, parse_duration, stored_duration
from slipway.watcher import ends
from slipway.watcher.reduce import DEFAULT_POLICY, reduce
from tests.support.builders import T0, AllocationStory, an_allocation

Json = dict[str, Any]
LEAST = ("a", "1", "1h", "2026-01-02T03:04:05Z", "http://a", "UTC")
"""Texts of which at least one matches each pattern."""
LONGEST = ("9" * 31 + "h", "99999999h", "0." + "9" * 29 + "d", "0ms")


def read_allocation(found: Allocation) -> None:
    """Read it as the scheduler, the watcher and the api do: while it waits, while it starts, while it runs."""
    waits = AllocationStory(found)
    starts = waits.assigned().released()
    for story in (waits, starts, starts.running(), starts.running().stopped("Preempted", requeue=True)):
        it = story.it
        if found.status.admission is not None and it.status.admission is not None:
            admission = msgspec.structs.replace(it.status.admission, max_runtime=found.status.admission.max_runtime)
            it = story.with_status(admission=admission).it
        fact = allocation_fact(it, ResourcePool(metadata=ObjectMeta(name="default")))
        work_key(fact.priority, fact.position, created=fact.created, weight=1, own=0, uid=fact.uid)
        run_limit(it)
        ends.start_limit_s(it, DEFAULT_POLICY)
        ends.preemption_grace_s(it, DEFAULT_POLICY)
        reduce(it, [], now=T0 + 10, consistent=True)
        limits(it, {}, T0 + 10)


def read_pool(found: ResourcePool) -> None:
    pool_fact(found)
    grace_max_s(found.spec)
    allocation_fact(an_allocation().it, found)


READERS: Mapping[type[msgspec.Struct], Callable[[Any], object]] = {
    Allocation: read_allocation,
    ResourcePool: read_pool,
    Queue: queue_fact,
    Job: job_fact,
}
BASES: Mapping[type[msgspec.Struct], Json] = {
    Allocation: {
        "spec": {
            "kind": "command",
            "template": {"spec": {"containers": [{"name": "main", "image": "a", "command": ["true"]}]}},
            "ranks": [{"name": "worker", "count": 1, "dependsOn": [{"role": "server"}]}],
            "failurePolicy": {"rules": [{"action": "retry", "roles": ["worker"], "exitCodes": [1, "2-3"]}]},
            "successPolicy": {"targets": [{"role": "worker"}]},
            "after": [{"allocation": "prep"}],
            "files": [{"path": "a", "content": "YQ=="}],
            "ports": [{"name": "http", "port": 80}],
            "flavors": ["a"],
            "service": {"name": "llm", "port": 80},
            "topology": {"key": "block"},
        },
        "status": {"admission": {"decisionId": "d", "epoch": 1, "attempt": 1, "at": "2026-01-02T03:04:05Z"}},
    },
    ResourcePool: {
        "spec": {
            "extenders": [{"urlPrefix": "http://a"}],
            "workspaces": ["w"],
            "allowedImages": ["a"],
            "allowedPrivileges": ["root"],
            "allowedUsers": ["1"],
            "allowedGroups": ["1"],
            "shadow": {},
            "evictionLimit": {"count": 1, "per": "1h"},
            "autoscaling": {"parameters": {"a": "b"}},
            "flavors": [{"name": "a", "nodeLabels": {"gpu": "a"}}],
            "windows": [
                {
                    "name": "a",
                    "start": "2026-12-05T22:00:00+01:00",
                    "duration": "4h",
                    "repeat": {"every": "Weekly", "until": "2027-12-05T22:00:00+01:00"},
                    "timeZone": "Europe/Berlin",
                    "queues": ["a"],
                    "nodeNames": ["a"],
                }
            ],
        }
    },
    Queue: {
        "spec": {
            "pool": "default",
            "budgets": [{"gpuHours": 1, "window": "1d"}],
            "flavors": [{"name": "a"}],
            "evictionLimit": {"count": 1, "per": "1h"},
        },
    },
    Job: {"spec": {}},
}
"""{kind: a typical object}. A missing list gets an item when a field of its items is tested."""


def fields(schema: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, int]]:
    """(path, pattern, greatest length) of each text field with a pattern; `*` steps into items and values."""
    if "pattern" in schema:
        yield path, schema["pattern"], schema.get("maxLength", 64)
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, (*path, name))
    for name in ("items", "additionalProperties"):
        inner: Any = schema.get(name)
        if isinstance(inner, dict):
            yield from fields(cast("Json", inner), (*path, "*"))


def cases() -> list[Any]:
    found: list[Any] = []
    for definition, manifest in zip(DEFINITIONS, crd_manifests(), strict=True):
        (version,) = manifest["spec"]["versions"]
        schema: Json = version["schema"]["openAPIV3Schema"]
        for path, pattern, longest in fields(schema):
            name = f"{definition.kind}.{'.'.join(path)}"
            base = completed(BASES[definition.struct], schema, path)
            found.append(pytest.param(definition.struct, base, path, pattern, longest, id=name))
    return found


def completed(base: Json, schema: Json, path: tuple[str, ...]) -> Json:
    """`base` with an item in each list of the path: the least that the schema accepts."""
    body = copy.deepcopy(base)
    place: Any = body
    for step, following in itertools.pairwise(path):
        if step == "*":
            schema, place = schema.get("items") or schema["additionalProperties"], place[0] if place else {}
            continue
        schema = schema["properties"][step]
        is_list = following == "*" and "items" in schema
        if not place.get(step):
            place[step] = [least(schema["items"])] if is_list else least(schema)
        place = place[step]
    return body


def least(schema: Json) -> Any:
    """A value with its required fields only."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            named = {name: least(schema["properties"][name]) for name in schema.get("required", ())}
            return named or ({"a": least(schema["additionalProperties"])} if schema.get("minProperties") else {})
        case "array":
            return []
        case "boolean":
            return False
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case _:
            # An item that is itself the text with the pattern gets its value later.
            return next((text for text in LEAST if re.search(schema.get("pattern", ""), text)), "")


def texts(pattern: str, longest: int) -> st.SearchStrategy[str]:
    """The texts that the server's own matcher accepts (`\\d` is ASCII there, `$` is the end of the text)."""
    any_ = st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True).filter(lambda text: len(text) <= longest)
    if pattern == DURATION_PATTERN:
        return st.one_of(st.sampled_from(LONGEST), any_)
    if pattern == POSITION_PATTERN:
        return st.one_of(st.sampled_from(["", "9" * 20 + "." + "9" * 40]), any_)
    return any_


def stored(base: Json, path: tuple[str, ...], value: str) -> Json:
    """`base` with `value` at `path`."""
    body = copy.deepcopy({"metadata": {"name": "a", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z"}, **base})
    place: Any = body
    for step, following in itertools.pairwise(path):
        empty: Json = {}
        place = place[0] if step == "*" else place.setdefault(step, empty)
        if following == "*" and place == {}:
            place["nvidia.com/gpu" if "flavors" in path else "cpu"] = value
            return body
    if path[-1] == "*":
        place[0] = value
    else:
        place[path[-1]] = value
    return body


@pytest.mark.parametrize(("struct", "base", "path", "pattern", "longest"), cases())
def test_what_the_schema_lets_through_is_read(
    struct: type[msgspec.Struct], base: Json, path: tuple[str, ...], pattern: str, longest: int
) -> None:
    """A condition may refuse the value, but reading it raises nothing."""

    @settings(max_examples=12, deadline=None)
    @given(texts(pattern, longest))
    def check(text: str) -> None:
        READERS[struct](msgspec.convert(stored(base, path, text), struct))

    check()


@given(st.from_regex(re.compile(DURATION_PATTERN, re.ASCII), fullmatch=True).filter(lambda text: len(text) <= 32))
@example("99999999h")
def test_a_stored_duration_is_the_duration_or_ten_years(text: str) -> None:
    """Both readers give the same duration when the strict one accepts it."""
    seconds = stored_duration(text)
    try:
        assert seconds == parse_duration(text)
    except ValueError:
        assert seconds == DURATION_MAX_S


def test_what_is_longer_than_ten_years_is_told_to_its_owner() -> None:
    """The fact has the reason with the field: the scheduler writes it into the condition, and places nothing."""
    fact = allocation_fact(
        an_allocation(maxRuntime="99999999h", pendingTimeout="99999999h").it,
        ResourcePool(metadata=ObjectMeta(name="default")),
    )
    assert fact.invalid == "/maxRuntime: '99999999h' is longer than ten years"
    assert fact.deadlines["pending"] == T0 + DURATION_MAX_S


def test_a_time_of_a_checkpoint_that_is_no_time_is_no_checkpoint() -> None:
    """The schema accepts any text in this field."""
    story = an_allocation(signals={"checkpointAt": "soon", "attempt": 1}).assigned()
    assert allocation_fact(story.it, ResourcePool(metadata=ObjectMeta(name="default"))).checkpoint_at == 0.0
