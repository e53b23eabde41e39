"""A replay may look at an allocation more or less often than recorded: a planner does not repeat a look that it
remembers."""

from typing import Any

import msgspec
import pytest

from slipway.scheduler.decisions.record import DecisionRecord, RecordedDecisions
from slipway.scheduler.decisions.replay import differences


@pytest.mark.parametrize(
    ("recorded", "replayed", "is_same"),
    [
        ("ab", "ab", True),
        ("ab", "bab", True),
        ("ba", "bab", True),
        ("bab", "ab", True),
        ("ab", "abc", True),
        ("ab", "ba", False),
        ("abb", "bab", False),
    ],
)
def test_looks_are_compared_in_their_order(recorded: str, replayed: str, is_same: bool) -> None:
    """Either side may lack some of several looks at one allocation; the other looks must be in the same order."""
    told: dict[str, Any] = {
        "format": 1,
        "pool": "p",
        "chain": "c",
        "inputHash": "i",
        "policyHash": "h",
        "facts": {},
        "ledger": {},
    }
    told |= dict.fromkeys(("epoch", "tick", "number", "at", "seed"), 1) | {"decided": {"looked": list(recorded)}}
    record = msgspec.convert(told, DecisionRecord)
    found = differences(record, RecordedDecisions(looked=tuple(replayed)), "h")
    assert [each.what for each in found] == ([] if is_same else ["looked"])
