"""Policies that refer to nothing, or can never match, are refused with what to write."""

import re
from pathlib import Path
from typing import Any

import pytest

from slipway import yaml_reader
from slipway.crd.fielderrors import Findings
from slipway.crd.validate import check_spec
from tests.support.allocations import an_allocation

ROLES: list[dict[str, Any]] = [
    {"name": "driver"},
    {"name": "worker", "count": 3},
    {"name": "server", "count": 2, "daemon": True},
]


def findings_of(**spec: Any) -> Findings:
    findings = Findings()
    whole: dict[str, Any] = {"ranks": ROLES, **spec}
    check_spec(an_allocation(**whole).spec, findings)
    return findings


def refused(**spec: Any) -> list[tuple[str, str]]:
    return [(error.pointer, error.detail) for error in findings_of(**spec).errors]


def test_the_examples_of_the_documentation_pass() -> None:
    """The examples of the documentation are accepted and have an effect."""
    page = (Path(__file__).parents[3] / "docs/launching.md").read_text("utf-8")
    _, _, text = page.partition("## Failure and success policies\n")
    examples = re.findall(r"```yaml\n(.*?)```", text.partition("\n## ")[0], re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        roles = [{"name": "driver"}, {"name": "logger"}, {"name": "worker", "count": 8}]
        found = findings_of(**{"ranks": roles, **yaml_reader.parse(example, yaml_reader.MANIFEST)})
        assert (found.errors, found.warnings) == ((), ())


def test_every_form_of_a_rule_and_a_target_passes() -> None:
    """Every action, and each way to name a failure and a target, is accepted."""
    rules = [
        {"action": "ignore", "roles": ["worker"], "exitCodes": [3]},
        {"action": "notCounted", "exitCodes": [75, "128-255"]},
        {"action": "fail", "exitCodes": ["1-127"]},
        {"action": "retry", "roles": ["driver"]},
        {"action": "fail", "disruption": True, "roles": ["driver"]},
        {"action": "retry", "disruption": True},
    ]
    targets = [{"role": "driver"}, {"role": "worker", "count": 2}, {"role": "worker", "indexes": [0, 2]}, {"count": 4}]
    found = findings_of(
        maxRestarts=2, failurePolicy={"rules": rules}, successPolicy={"operator": "Any", "targets": targets}
    )
    assert (found.errors, found.warnings) == ((), ())


@pytest.mark.parametrize(
    ("rule", "at", "said"),
    [
        (
            {"roles": ["drive"]},
            "roles/0",
            "no role is named 'drive'; write driver or worker or server, or add the role",
        ),
        ({"roles": ["driver", "driver"]}, "roles", "driver is listed twice"),
        ({"exitCodes": [0]}, "exitCodes/0", "0 is no failure; write exit codes from 1 to 255"),
        ({"exitCodes": [1, "300-301"]}, "exitCodes/1", "301 is no exit code; write 1 to 255"),
        ({"disruption": True, "exitCodes": [1]}, "exitCodes", "leave exitCodes out, or write two rules"),
        ({"disruption": True, "action": "ignore"}, "action", "write fail, retry or notCounted, or set minAvailable"),
    ],
)
def test_a_rule_that_is_wrong_by_itself(rule: dict[str, Any], at: str, said: str) -> None:
    """A rule that is invalid by itself is refused with the field, the reason, and what to write."""
    [(pointer, detail)] = refused(failurePolicy={"rules": [{"action": "fail", **rule}]})
    assert (pointer, said in detail) == (f"/failurePolicy/rules/0/{at}", True), detail


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([{}, {"exitCodes": [3]}], "because rules[0] matches everything that this rule matches"),
        (
            [{"exitCodes": ["1-99"]}, {"exitCodes": ["100-255"]}, {"exitCodes": ["90-110"]}],
            "because rules[0] and rules[1] match everything that this rule matches",
        ),
        ([{"roles": ["worker"]}, {"roles": ["driver"]}, {"roles": ["worker"]}], "rules[0] matches"),
        ([{"disruption": True}, {"disruption": True, "roles": ["driver"]}], "rules[0] matches"),
    ],
)
def test_a_rule_that_can_never_match(rules: list[dict[str, Any]], said: str) -> None:
    """A rule that can never match is refused with the earlier rules that decide before it."""
    found = refused(failurePolicy={"rules": [{"action": "fail", **rule} for rule in rules]})
    [(pointer, detail)] = found
    assert pointer == f"/failurePolicy/rules/{len(rules) - 1}"
    assert detail.startswith("can never match, "), detail
    assert said in detail


@pytest.mark.parametrize(
    "rules",
    [
        [{"exitCodes": ["1-255"]}, {}],
        [{"exitCodes": [3]}, {"exitCodes": [3, 4]}],
        [{"roles": ["driver"]}, {}],
        [{}, {"disruption": True}],
    ],
)
def test_a_wider_rule_after_a_narrow_one_is_right(rules: list[dict[str, Any]]) -> None:
    """A wider rule after a narrow one is valid when something is left for it: another code, another role, an end
    without a code, or a lost rank."""
    assert not refused(failurePolicy={"rules": [{"action": "fail", **rule} for rule in rules]})


def test_a_retry_without_retries_is_a_warning() -> None:
    """A retry without retries is a warning: the launch is valid, but its author expects another attempt."""
    [warning] = findings_of(failurePolicy={"rules": [{"action": "retry"}]}).warnings
    assert "maxRestarts is 0" in warning
    assert not findings_of(maxRestarts=1, failurePolicy={"rules": [{"action": "retry"}]}).warnings


@pytest.mark.parametrize(
    ("target", "at", "said"),
    [
        ({"role": "drive"}, "role", "no role is named 'drive'"),
        ({"role": "server"}, "role", "server is a daemon"),
        ({"role": "worker", "count": 4}, "count", "4 is above 3, the number of ranks; lower it"),
        ({"role": "worker", "count": 2, "indexes": [1]}, "count", "2 is above 1, the number of indexes"),
        ({"count": 5}, "count", "5 is above 4, the number of ranks"),
        ({"role": "worker", "indexes": [3]}, "indexes/0", "3 is no rank of the role; write 0 to 2"),
        ({"role": "worker", "indexes": [1, 1]}, "indexes", "1 is listed twice"),
        ({"indexes": [0]}, "indexes", "indexes count within a role; name it, such as role: driver"),
    ],
)
def test_a_target_that_no_ranks_can_meet(target: dict[str, Any], at: str, said: str) -> None:
    """A target that no ranks can meet is refused, such as one on daemons, which never end by themselves."""
    [(pointer, detail)] = refused(successPolicy={"targets": [target]})
    assert (pointer, said in detail) == (f"/successPolicy/targets/0/{at}", True), detail


def test_a_success_policy_names_a_target() -> None:
    """A success policy must have a target, because an empty one would never be met."""
    assert [pointer for pointer, _ in refused(successPolicy={})] == ["/successPolicy/targets"]


def test_the_role_of_a_launch_without_roles_is_worker() -> None:
    """The role of a launch without roles is `worker`, as everywhere else."""
    policies: dict[str, Any] = {
        "failurePolicy": {"rules": [{"action": "fail", "roles": ["worker"]}]},
        "successPolicy": {"targets": [{"role": "worker", "indexes": [0]}]},
    }
    assert not refused(ranks=[], **policies)


@pytest.mark.parametrize(
    ("spec", "at"),
    [
        ({"minAvailable": 5}, "/minAvailable"),
        ({"ranks": [{"name": "a"}, {"name": "b", "count": 3, "minAvailable": 2}]}, "/ranks/1/minAvailable"),
    ],
    ids=["gang", "role"],
)
def test_single_ranks_of_an_elastic_gang_do_not_start_again(spec: dict[str, Any], at: str) -> None:
    """`restart: rank` is refused for elastic gangs, whose ranks leave and return by other rules."""
    detail = "an elastic gang does not start single ranks again; leave minAvailable out, or restart: rank"
    assert refused(restart="rank", maxRestarts=2, **spec) == [(at, detail)]
    assert refused(restart="gang", maxRestarts=2, **spec) == []


def test_a_minimum_of_all_ranks_is_none() -> None:
    """A minimum of all ranks is accepted with `restart: rank`, because such a gang is not elastic."""
    assert refused(restart="rank", maxRestarts=2, minAvailable=6) == []


def test_restarts_of_ranks_need_a_limit_above_zero() -> None:
    """`restart: rank` with a limit of zero is a warning: nothing would start again, which is probably a mistake."""
    (warning,) = findings_of(restart="rank").warnings
    assert warning == "restart: rank starts no rank again while maxRestarts is 0; set maxRestarts"
    rules = [{"action": "notCounted", "exitCodes": [75]}]
    assert findings_of(restart="rank", failurePolicy={"rules": rules}).warnings == ()
