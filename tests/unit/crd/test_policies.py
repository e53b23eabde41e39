"""Which rule decides on a failure, and when enough ranks have succeeded."""

import re
from typing import Any

import msgspec
import pytest

from slipway.crd.policies import (
    FailurePolicy,
    RankEnd,
    SuccessPolicy,
    SuccessState,
    action_of,
    code_range,
    deciding_rule,
    said_by,
    success_state,
)

LOST: dict[str, Any] = {"is_disruption": True}


def a_policy(*rules: dict[str, Any], **more: Any) -> FailurePolicy:
    return msgspec.convert({"rules": list(rules), **more}, FailurePolicy)


def state(ends: dict[str, str], *targets: dict[str, Any], operator: str = "All") -> SuccessState:
    """The state of a policy; `ends` has one character for each rank of a role: `+` succeeded, `-` failed, `.` runs."""
    policy = msgspec.convert({"operator": operator, "targets": list(targets)}, SuccessPolicy)
    known = {"+": True, "-": False, ".": None}
    ranks = [
        RankEnd(role=role, index=index, has_succeeded=known[each], daemon=role == "server")
        for role, text in ends.items()
        for index, each in enumerate(text)
    ]
    return success_state(policy, ranks)


# --- rules on failures


@pytest.mark.parametrize(
    ("rule", "matched", "passed"),
    [
        ({"exitCodes": [42]}, [{"code": 42}], [{"code": 41}, {"code": None}, {"code": 42, **LOST}]),
        ({"exitCodes": [3, "64-78"]}, [{"code": 3}, {"code": 64}, {"code": 78}], [{"code": 63}, {"code": 79}]),
        ({"exitCodes": ["42"]}, [{"code": 42}], [{"code": 4}]),
        ({}, [{"code": 1}, {"code": 255}, {"code": None}], [{"code": None, **LOST}]),
        ({"disruption": True}, [{"code": None, **LOST}, {"code": 137, **LOST}], [{"code": 137}, {"code": None}]),
        ({"roles": ["driver"]}, [], [{"code": 1}]),
        ({"roles": ["driver", "worker"]}, [{"code": 1}], [{"code": 1, **LOST}]),
    ],
)
def test_a_rule_matches_a_role_and_how_the_rank_ended(
    rule: dict[str, Any], matched: list[dict[str, Any]], passed: list[dict[str, Any]]
) -> None:
    """A rule matches a role and the end of its rank: without exit codes every failure of the program; a loss only by
    `disruption`."""
    policy = a_policy({"action": "fail", **rule})
    assert [deciding_rule(policy, role="worker", **each) for each in matched] == [0] * len(matched)
    assert [deciding_rule(policy, role="worker", **each) for each in passed] == [None] * len(passed)


def test_the_first_rule_that_matches_decides() -> None:
    """The first matching rule decides, so a narrow rule is listed before a wide one."""
    policy = a_policy({"action": "retry", "exitCodes": [75]}, {"action": "fail", "exitCodes": ["1-127"]})
    assert [deciding_rule(policy, role="worker", code=code) for code in (75, 1, 137)] == [0, 1, None]
    assert said_by(policy, 1) == "failurePolicy.rules[1] says fail"


def test_without_a_policy_nothing_is_said() -> None:
    """Without a policy, or without the rule, there is no message."""
    assert deciding_rule(None, role="worker", code=1) is None
    assert (action_of(None, 0), action_of(a_policy(), 0), said_by(a_policy(), None)) == (None, None, "")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (0, "0 is no failure; write exit codes from 1 to 255"),
        ("0-5", "0 is no failure; write exit codes from 1 to 255"),
        (256, "256 is no exit code; write 1 to 255"),
        ("9-3", "9-3 is empty; write 3-9"),
        (-1, "-1 is not an exit code; write a number such as 42, or a range such as 64-78"),
        ("3-", "'3-' is not an exit code; write a number such as 42, or a range such as 64-78"),
    ],
)
def test_what_is_no_exit_code_says_what_to_write(entry: int | str, said: str) -> None:
    """An invalid exit code is refused with what to write; in a stored rule it matches nothing."""
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        code_range(entry)
    assert deciding_rule(a_policy({"action": "fail", "exitCodes": [entry]}), role="worker", code=1) is None


# --- success


@pytest.mark.parametrize(
    ("targets", "met", "open_", "lost"),
    [
        ([{"role": "worker"}], "+++", "++.", "++-"),
        ([{"role": "worker", "count": 2}], "+.+", "+..", "-.-"),
        ([{"role": "worker", "count": 2}], "+-+", "-.+", "--+"),
        ([{"role": "worker", "indexes": [0]}], "+..", ".++", "-++"),
        ([{"role": "worker", "indexes": [0, 2], "count": 1}], "..+", ".+.", "-+-"),
        ([{"count": 1}], "..+", "...", "---"),
    ],
)
def test_a_target_names_ranks_and_how_many_of_them(
    targets: list[dict[str, Any]], met: str, open_: str, lost: str
) -> None:
    """A target names ranks and their number; it is met, still open, or impossible."""
    found = [state({"worker": each}, *targets) for each in (met, open_, lost)]
    assert [(each.is_met, each.is_out_of_reach) for each in found] == [(True, False), (False, False), (False, True)]


@pytest.mark.parametrize(
    ("ends", "all_", "any_"),
    [
        ({"driver": "+", "worker": ".."}, "open", "met"),
        ({"driver": "+", "worker": "++"}, "met", "met"),
        ({"driver": "-", "worker": "++"}, "lost", "met"),
        ({"driver": "-", "worker": ".."}, "lost", "open"),
        ({"driver": "-", "worker": "-."}, "lost", "lost"),
    ],
)
def test_all_targets_or_any_of_them(ends: dict[str, str], all_: str, any_: str) -> None:
    """With All one impossible target makes the policy impossible; with Any it does not."""
    targets = [{"role": "driver"}, {"role": "worker"}]
    for operator, expected in (("All", all_), ("Any", any_)):
        found = state(ends, *targets, operator=operator)
        assert (found.is_met, found.is_out_of_reach) == (expected == "met", expected == "lost"), operator


def test_a_target_without_a_role_passes_over_daemons() -> None:
    """A target without a role ignores daemons, because servers do not end by themselves."""
    assert state({"worker": "++", "server": ".."}, {}).is_met
    assert not state({"worker": "+.", "server": "+"}, {"count": 2}).is_met


def test_a_target_asks_for_no_more_ranks_than_are_placed() -> None:
    """A target requires no more ranks than are placed, because an elastic gang may run with fewer; a role without
    placed ranks decides nothing."""
    assert state({"worker": "++"}, {"role": "worker", "count": 4}).is_met
    assert state({"worker": "++"}, {"role": "driver"}) == SuccessState()
    assert state({"worker": "++"}, {"role": "driver"}, {"role": "worker"}).is_met


def test_what_is_met_is_said_with_its_numbers() -> None:
    """The message of a met policy has its numbers, for users; `target` is for programs, when one target alone
    decides."""
    one = state({"driver": "+", "worker": "+-."}, {"role": "driver"}, operator="Any")
    assert (one.target, one.text) == (0, "successPolicy.targets[0]: 1 of 1 rank of driver ended well")
    both = state({"driver": "+", "worker": "+-."}, {"role": "driver"}, {"count": 2})
    assert (both.target, both.text) == (
        None,
        "successPolicy.targets[0], targets[1]: 1 of 1 rank of driver ended well, 2 of 4 ranks ended well",
    )
