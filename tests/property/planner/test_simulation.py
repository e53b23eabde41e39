"""Whole simulations of random scenarios: the answer accounts for every node, device and second.

Also randomly broken files: they are answered or refused with a path, quickly, and never with a traceback.
"""

import contextlib
import copy
import io
import itertools
import json
import math
from collections.abc import Generator, Iterator
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway.scheduler.simulate.command import main

Json = dict[str, Any]
QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TIMES = st.one_of(st.integers(0, 60), st.sampled_from([0, 0.5, 1e-9, 1e6]))
QUEUES = ("a", "b", "c")


@st.composite
def nodes(draw: st.DrawFn) -> list[Json]:
    return [
        {
            "name": f"n{index}",
            "count": draw(st.integers(1, 3)),
            "cpu": draw(st.sampled_from([2, "4", "3500m"])),
            "memory": draw(st.sampled_from(["8Gi", 16e9])),
            "gpus": draw(st.sampled_from([0, 2, "4"])),
            "pods": draw(st.sampled_from([2, 110])),
            "labels": {"rack": draw(st.sampled_from(["r1", "r2"]))},
            "unschedulable": draw(st.sampled_from([False, False, False, True])),
        }
        for index in range(draw(st.integers(1, 3)))
    ]


@st.composite
def queues(draw: st.DrawFn) -> list[Json]:
    found: list[Json] = []
    for name in QUEUES:
        queue: Json = {"name": name, "ordering": draw(st.sampled_from(["StrictFIFO", "BestEffortFIFO", "Backfill"]))}
        queue["preemption"] = {
            "withinQueue": draw(st.sampled_from(["Never", "LowerPriority", "LowerOrNewerEqual"])),
            "reclaim": draw(st.sampled_from(["Never", "LowerPriority", "Any"])),
        }
        for bound in ("nominal", "borrowingLimit", "lendingLimit", "limit"):
            if draw(st.integers(0, 3)) == 0:
                queue[bound] = {draw(st.sampled_from(["cpu", "gpus"])): draw(st.integers(0, 8))}
        found.append(queue)
    return found


@st.composite
def ranks(draw: st.DrawFn) -> Json:
    role: Json = {"name": draw(st.sampled_from(["w", "ps"])), "count": draw(st.integers(1, 3)), "cpu": draw(CPUS)}
    kind = draw(st.integers(0, 3))
    role |= {} if kind < 2 else {"gpus": draw(st.integers(0, 2))} if kind == 2 else {"gpuMilli": 300}
    if draw(st.integers(0, 3)) == 0:
        role["minAvailable"] = draw(st.integers(0, role["count"]))
    if draw(st.integers(0, 4)) == 0:
        role["topology"] = {"key": "rack", "mode": draw(st.sampled_from(["required", "preferred"]))}
    return role


CPUS = st.sampled_from([0, 1, 2, "500m", 9])


@st.composite
def scenarios(draw: st.DrawFn) -> Json:
    """A valid scenario."""
    allocations: list[Json] = []
    for index in range(draw(st.integers(0, 7))):
        item: Json = {"name": f"a{index}", "queue": draw(st.sampled_from(QUEUES)), "submit": draw(TIMES)}
        item["ranks"] = draw(st.lists(ranks(), min_size=1, max_size=2))
        item["priority"] = draw(st.integers(-1, 2))
        item["preemptible"] = draw(st.booleans())
        for field in ("duration", "maxRuntime"):
            if draw(st.booleans()):
                item[field] = draw(TIMES)
        allocations.append(item)
    document: Json = {"nodes": draw(nodes()), "queues": draw(queues()), "allocations": allocations}
    if draw(st.booleans()):
        document["until"] = draw(st.integers(0, 200))
    return document


def run(text: str, *options: str) -> tuple[int, str, str]:
    """Run it and return (exit code, standard output, standard error)."""
    out, err = io.StringIO(), io.StringIO()
    stdin, said = io.StringIO(text), contextlib.ExitStack()
    with said:
        said.enter_context(contextlib.redirect_stdout(out))
        said.enter_context(contextlib.redirect_stderr(err))
        said.enter_context(_standard_input(stdin))
        code = main(["-", *options])
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def _standard_input(stream: io.StringIO) -> Generator[None]:
    import sys

    before, sys.stdin = sys.stdin, stream
    try:
        yield
    finally:
        sys.stdin = before


def check(document: Json, answer: Json) -> None:
    """Check what must be true of every answer."""
    known = {item["name"]: item for item in document["allocations"]}
    assert set(answer["allocations"]) == set(known)
    for name, said in answer["allocations"].items():
        check_one(known[name], said, document.get("until"))
    check_nodes(document, answer)
    for eviction in answer["evictions"]:
        assert eviction["allocation"] in known
        assert eviction["for"] is None or eviction["for"] in known


def check_one(item: Json, said: Json, until: float | None) -> None:
    assert said["phase"] in ("Pending", "Running", "Terminated")
    assert (said["explain"] is not None) == (said["phase"] == "Pending" and _has_arrived(item, said, until))
    assert said["attempts"] >= 1
    if said["phase"] == "Pending":
        assert said["placements"] == []
        assert (said["start"], said["end"]) == (None, None)
        return
    assert said["start"] >= item["submit"]
    assert said["wait"] >= 0
    assert said["placements"]
    places = said["placements"]
    assert places == sorted(places, key=lambda place: (place["rank"], place["start"]))
    for place, later in itertools.pairwise(places):
        # A rank that was evicted and came back has two places, one after the other.
        assert place["rank"] != later["rank"] or (place["end"] is not None and place["end"] <= later["start"])
    minima = [rank.get("minAvailable", rank["count"]) for rank in item["ranks"]]
    assert len({place["rank"] for place in places}) >= sum(minima)
    ends = [item[field] for field in ("duration", "maxRuntime") if field in item]
    if said["phase"] == "Terminated":
        assert math.isclose(said["end"], said["start"] + min(ends), abs_tol=1e-6)
    for place in places:
        assert place["start"] >= item["submit"]
        assert place["end"] is None or place["end"] >= place["start"]
        assert place["end"] is not None or said["phase"] == "Running"


def _has_arrived(item: Json, said: Json, until: float | None) -> bool:
    return until is None or item["submit"] <= until


def check_nodes(document: Json, answer: Json) -> None:
    """Check that no node is overused and no device used twice at the same time, at any moment of the answer."""
    whole = {
        name: node
        for node in document["nodes"]
        for name in ([node["name"]] if node["count"] == 1 else [f"{node['name']}-{k}" for k in range(node["count"])])
    }
    stays: dict[str, list[tuple[float, float, Json, list[int]]]] = {}
    for name, said in answer["allocations"].items():
        item = next(each for each in document["allocations"] if each["name"] == name)
        roles = [rank for rank in item["ranks"] for _ in range(rank["count"])]
        for place in said["placements"]:
            end = math.inf if place["end"] is None else place["end"]
            stays.setdefault(place["node"], []).append((place["start"], end, roles[place["rank"]], place["device"]))
            gpus = roles[place["rank"]].get("gpus", 0)
            assert len(place["device"]) == (1 if "gpuMilli" in roles[place["rank"]] else gpus)
    for node, held in stays.items():
        for moment in {start for start, _, _, _ in held}:
            there = [(role, device) for start, end, role, device in held if start <= moment < end]
            assert sum(milli(role["cpu"]) for role, _ in there) <= milli(whole[node]["cpu"])
            assert len(there) <= whole[node]["pods"]
            used: dict[int, int] = {}
            for role, device in there:
                for number in device:
                    used[number] = used.get(number, 0) + role.get("gpuMilli", 1000)
                    assert used[number] <= 1000
                    assert 0 <= number < int(whole[node]["gpus"])


def milli(value: int | str) -> int:
    text = str(value)
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000


@QUIET
@given(scenarios())
def test_answers_account_for_every_second(document: Json) -> None:
    """Every valid scenario is answered, and the answer is possible."""
    code, out, err = run(json.dumps(document), "-o", "json", "--explain-scores")
    assert (code, err) == (0, "")
    check(document, json.loads(out))


@QUIET
@given(scenarios(), st.randoms(use_true_random=False))
def test_the_order_of_the_file_changes_nothing(document: Json, random: Any) -> None:
    """Lists and keys in another order give the same answer."""
    other = copy.deepcopy(document)
    for field in ("nodes", "queues", "allocations"):
        random.shuffle(other[field])
    _, first, _ = run(json.dumps(document), "-o", "json")
    _, second, _ = run(json.dumps(other), "-o", "json")
    assert json.loads(first)["allocations"] == json.loads(second)["allocations"]


ODD = st.sampled_from(
    [None, True, -1, 0, 1.5, 1e300, 10**30, "", "x", "-5", "1Gi", [], [None], {}, {"x": 1}, "\x1b[31m", "a/b", "root"]
)


def _spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = cast("Json", value).items()
    elif isinstance(value, list):
        pairs = enumerate(cast("list[Any]", value))
    for key, inner in pairs:
        yield from _spots(inner, (*path, key))


@QUIET
@given(scenarios(), ODD, st.randoms(use_true_random=False), st.sampled_from(["replace", "drop", "add", "double"]))
def test_broken_files_are_refused_with_a_path(document: Json, odd: Any, random: Any, how: str) -> None:
    """One element of a valid file is changed at random: the file is answered, or refused in one line."""
    *way, last = random.choice(list(_spots(document)))
    owner: Any = document
    for step in way:
        owner = owner[step]
    if how == "replace":
        owner[last] = odd
    elif how == "drop":
        del owner[last]
    elif how == "double" and isinstance(owner, list):
        cast("list[Any]", owner).append(copy.deepcopy(cast("list[Any]", owner)[last]))
    elif isinstance(owner, dict):
        cast("Json", owner)["unknown"] = odd
    code, out, err = run(json.dumps(document), "-o", "json")
    assert code in (0, 2)
    if code == 0:
        json.loads(out)
    else:
        assert out == ""
        assert err.count("\n") == 1
        assert ": " in err


@QUIET
@given(scenarios(), st.binary(max_size=8), st.randoms(use_true_random=False))
def test_bytes_at_random_places_are_refused_or_harmless(document: Json, noise: bytes, random: Any) -> None:
    """Random bytes are answered or refused, as after a fault of a disk or an editor."""
    text = json.dumps(document)
    at = random.randrange(len(text))
    code, _, err = run(text[:at] + noise.decode("latin-1") + text[at + len(noise) :], "-o", "json")
    assert code in (0, 2)
    assert code == 0 or ": " in err


@QUIET
@given(st.text(max_size=60))
def test_any_text_is_refused_or_harmless(text: str) -> None:
    """This includes texts that are no scenario."""
    code, _, _ = run(text)
    assert code == 2
