"""What clients launch, and how each launch must end: drawn from a seed. Pure."""

import random
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from tests.conformance.system.system import a_body

KEPT_MAX = 5
"""The number of launches that run to the end of the run."""
GRACE_S = 2
SECRET = "canary-6f1d0c2b9e"
"""A value in the environment of every container, which must be nowhere else."""


class Part(StrEnum):
    """The client's action on a launch."""

    FOLLOW = "follow"
    """reads its stream to the end"""
    TWICE = "twice"
    """launches it again under the same key, and another body under that key too"""
    KILL = "kill"
    PREEMPT = "preempt"
    FAIL = "fail"
    """its ranks fail; one restart is allowed"""
    LEAVE = "leave"
    """does nothing more with it"""
    KEEP = "keep"
    """leaves it running until the end"""


_WEIGHTS: Mapping[Part, int] = {
    Part.FOLLOW: 8,
    Part.TWICE: 2,
    Part.KILL: 4,
    Part.PREEMPT: 2,
    Part.FAIL: 1,
    Part.LEAVE: 2,
    Part.KEEP: 2,
}
_RANKS = (1, 1, 1, 1, 2, 2, 3, 4, 6)


FLOOD_LINES = 20_000
FLOODS = 5
"""One launch of this many is a flood: each of its ranks prints that many lines at once."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One launch. `after_s`: seconds between its acknowledgement and the client's action."""

    part: Part
    ranks: int
    body: dict[str, Any]
    results: tuple[str, ...]
    """the results with which it may end"""
    after_s: float = 0.0


def draw(chance: random.Random, *, may_keep: bool) -> Plan:
    """The next launch of a client."""
    parts = [part for part in _WEIGHTS if may_keep or part is not Part.KEEP]
    part = chance.choices(parts, [_WEIGHTS[each] for each in parts])[0]
    ranks = chance.choice(_RANKS)
    runs_s = round(chance.uniform(0.2, 3.0), 2)
    script: dict[str, Any] = {"runsS": runs_s, "startsS": 0.05}
    more: dict[str, Any] = {}
    results = ("Succeeded",)
    if part in (Part.KILL, Part.PREEMPT, Part.KEEP):
        script = {"startsS": 0.05, "termS": round(chance.uniform(0.0, 0.5), 2)}
        results = ("Canceled",) if part is not Part.PREEMPT else ("Preempted", "Canceled")
    if part is Part.PREEMPT:
        more = {"preemptionGrace": f"{GRACE_S}s", "preemptible": True}
    if part is Part.FAIL:
        script |= {"exit": 3}
        more, results = {"maxRestarts": chance.choice((0, 1))}, ("Failed",)
    script["bursts"] = bursts(is_flood=chance.randrange(FLOODS) == 0)
    body = a_body("training" if ranks > 1 else "command", ranks, script, **more)
    body["template"]["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": SECRET}]
    return Plan(part=part, ranks=ranks, body=body, results=results, after_s=chance.uniform(0.0, 2.0))


def bursts(*, is_flood: bool) -> list[dict[str, Any]]:
    """The output of each rank: some lines at its start, a burst while it runs, and its last words."""
    middle = {"afterS": 0.15, "lines": FLOOD_LINES if is_flood else 200, "width": 64}
    return [{"afterS": 0.0, "lines": 5}, middle, {"afterS": 1.2, "lines": 20}, {"afterS": -1.0, "lines": 2}]
