"""Converts failure and success rules of other systems to `failurePolicy` and `successPolicy` of a launch.

Owns the meaning of the actions of a Kubernetes Job and of a JobSet. Pure.

Source: Kubernetes API reference, PodFailurePolicy and SuccessPolicy (batch/v1); JobSet, jobset_types.go (v1alpha2).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from slipway.cli.importing.foreign import ForeignField, Json
from slipway.cli.importing.outcome import ImportedLaunch
from slipway.model.numbers import number_in

RESTARTS = 1000
"""The limit of restarts here, when the other system has no limit."""
_CODES = range(1, 256)
_INDEXES_MAX = 256
_LIMITLESS = f"as often as needed, at most {RESTARTS} times; all ranks start again, as one"
_POD_ACTIONS = {"FailJob": "fail", "Count": "retry", "Ignore": "notCounted"}
_SET_ACTIONS = {
    "FailJobSet": "fail",
    "RestartJobSet": "retry",
    "RestartJobSetAndIgnoreMaxRestarts": "notCounted",
    "RestartJob": "retry",
    "RestartJobAndIgnoreMaxRestarts": "notCounted",
}
_OF_A_POD = frozenset({"PodFailurePolicy"})
_OF_ANY_POD = frozenset({"BackoffLimitExceeded"})


def add_rule(launch: ImportedLaunch, source: ForeignField, action: str, **of: Any) -> None:
    """Add a rule to the launch; empty values in `of` are left out."""
    policy = cast("Json", launch.body.setdefault("failurePolicy", {"rules": []}))
    rule = launch.trace({"action": action, **{name: value for name, value in of.items() if value}}, source)
    cast("list[Json]", policy["rules"]).append(rule)
    if action == "notCounted":
        policy["maxUncountedRestarts"] = RESTARTS


def add_target(launch: ImportedLaunch, source: ForeignField, **of: Any) -> None:
    """Add a target to the success policy; empty values in `of` are left out."""
    policy = cast("Json", launch.body.setdefault("successPolicy", {"targets": []}))
    target = launch.trace({name: value for name, value in of.items() if value}, source)
    cast("list[Json]", policy["targets"]).append(target)


def exit_codes(codes: Iterable[int]) -> list[int | str]:
    """Return the codes in the form of a rule: numbers, and ranges of three or more codes."""
    made: list[int | str] = []
    for _, group in groupby(enumerate(sorted(set(codes))), key=lambda item: item[1] - item[0]):
        run = [code for _, code in group]
        made += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else run
    return made


def pod_failures(
    launch: ImportedLaunch, policy: ForeignField, *, main: str, role: str = "", failing: str = "fail"
) -> None:
    """Convert the `podFailurePolicy` of a Job whose main container is `main`.

    `failing` is the action for FailJob. `role` is the role of the Job's ranks, when the launch has other roles."""
    roles = [role] if role else []
    for rule in policy.get("rules").items():
        name = rule.get("action").text()
        action = failing if name == "FailJob" else _POD_ACTIONS.get(name, "")
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        types = {item.get("type").text() for item in conditions.items()}
        if not action:
            rule.lost(f"{name} at a failure of a pod", "a rank has no retries of its own")
        elif types == {"DisruptionTarget"} and not codes.is_set:
            if action == "notCounted":
                rule.unneeded("an eviction never counts against maxRestarts")
            else:
                add_rule(launch, rule, action, roles=roles, disruption=True)
                rule.changed(f"{name} when a pod is evicted", f"failurePolicy: {action}, disruption; all ranks end")
        elif codes.is_set and not types:
            _on_exit_codes(launch, rule, action, main=main, roles=roles)
        else:
            rule.lost(f"{name} at a condition of a pod", "rules are about exit codes and disruptions")


def _on_exit_codes(launch: ImportedLaunch, rule: ForeignField, action: str, *, main: str, roles: list[str]) -> None:
    codes, name = rule.get("onExitCodes"), rule.get("action").text()
    container = codes.get("containerName")
    if container.is_set and container.text() != main:
        rule.lost(f"{name} at an exit code of {container.text()}", f"only {main}, the main container, decides")
        return
    values = {item.whole(least=0, most=2**31 - 1) for item in codes.get("values").items()}
    operator = codes.get("operator").text("In")
    if operator not in ("In", "NotIn"):
        codes.get("operator").refuse("must be In or NotIn")
    meant = [code for code in _CODES if (code in values) is (operator == "In")]
    if not meant:
        rule.lost(f"{name} at exit codes that no container has", "write exit codes from 1 to 255")
        return
    add_rule(launch, rule, action, roles=roles, exitCodes=exit_codes(meant))
    if action == "fail":
        rule.carried("failurePolicy: fail")
    elif action == "notCounted":
        rule.changed(
            f"{name}: the pod starts again, and this is not counted", f"failurePolicy: notCounted, {_LIMITLESS}"
        )
    else:
        rule.changed(f"{name}: the pod starts again", "failurePolicy: retry; all ranks start again, as one")


def job_success(launch: ImportedLaunch, policy: ForeignField, *, role: str = "") -> None:
    """Convert the `successPolicy` of an indexed Job: one of its rules is enough."""
    rules = policy.get("rules").items()
    for rule in rules:
        text = rule.get("succeededIndexes").text()
        indexes = _indexes(rule.get("succeededIndexes")) if text else []
        if len(indexes) > _INDEXES_MAX:
            rule.lost(f"success by {len(indexes)} indexes", f"a target names at most {_INDEXES_MAX}; write a count")
            continue
        count = rule.get("succeededCount").whole()
        add_target(launch, rule, role=role, indexes=indexes, count=count)
        rule.carried("successPolicy.targets")
    if len(rules) > 1 and "successPolicy" in launch.body:
        cast("Json", launch.body["successPolicy"])["operator"] = "Any"


def _indexes(field: ForeignField) -> list[int]:
    """Parse indexes such as `0,2-4`."""
    made: list[int] = []
    for part in field.text().split(","):
        first, is_range, last = part.strip().partition("-")
        low = number_in(first)
        high = number_in(last) if is_range else low
        if low is None or high is None:
            field.refuse("must be indexes such as 0,2-4")
        made += range(low, min(high, low + _INDEXES_MAX) + 1)
    return made


def set_success(
    launch: ImportedLaunch, policy: ForeignField, jobs: Mapping[str, str], *, replicated: Sequence[str]
) -> None:
    """Convert the `successPolicy` of a JobSet with these jobs, {name: role}; `replicated` are roles of several Jobs."""
    if not policy.is_set:
        return
    named, operator = policy.get("targetReplicatedJobs"), policy.get("operator")
    targets = named.words()
    unknown = [name for name in targets if name not in jobs]
    if unknown:
        named.refuse(f"names no job of this set: {unknown[0]}")
    meant = [role for name, role in jobs.items() if name in targets or not targets]
    is_any = operator.text("All") == "Any"
    if is_any or len(meant) < len(jobs):
        for name in meant:
            add_target(launch, named if named.is_set else policy, role=name)
    if is_any and len(meant) > 1:
        cast("Json", launch.body["successPolicy"])["operator"] = "Any"
    several = [name for name in meant if name in replicated]
    if is_any and several:
        operator.changed("one Job of those is enough", f"successPolicy: all ranks of {' or '.join(several)}")
    elif operator.is_set:
        operator.carried("successPolicy.operator")
    named.carried("successPolicy.targets")


def failing_of(policy: ForeignField, job: str) -> str:
    """Return the action of a JobSet when the `podFailurePolicy` of a job fails that job."""
    for rule in policy.get("rules").items():
        if _is_about(rule, job) and _reasons(rule) & _OF_A_POD and not rule.get("onJobFailureMessagePatterns").items():
            return _SET_ACTIONS.get(rule.get("action").text(), "retry")
    return "retry"


def set_failures(
    launch: ImportedLaunch, policy: ForeignField, jobs: Mapping[str, str], *, is_part: bool = False
) -> None:
    """Convert the rules of a JobSet on failed jobs, {name: role}; they follow the exit code rules of its jobs.

    With `is_part` the launch is one of several, and a rule may be about jobs of another launch."""
    for rule in policy.get("rules").items():
        name = rule.get("action").text()
        action = _SET_ACTIONS.get(name)
        meant = [role for job, role in jobs.items() if _is_about(rule, job)]
        if is_part and not meant:
            continue
        if action is None or rule.get("onJobFailureMessagePatterns").items() or not meant:
            rule.lost(f"what a failed Job means ({name})", "write rules of failurePolicy, by role and exit code")
        elif _reasons(rule) & _OF_ANY_POD:
            add_rule(launch, rule, action, roles=meant if len(meant) < len(jobs) else [])
            here = {"notCounted": f", {_LIMITLESS}", "retry": "; all ranks start again, as one"}.get(action, "")
            rule.changed(f"{name} when a Job has failed", f"failurePolicy: {action}, when a rank has failed{here}")
        elif _reasons(rule) & _OF_A_POD:
            rule.changed(f"{name} when a podFailurePolicy has failed a Job", f"its rules with FailJob mean {action}")
        else:
            reasons = ", ".join(rule.get("onJobFailureReasons").words())
            rule.lost(f"{name} at {reasons}", "rules are about exit codes and disruptions of ranks")


def _is_about(rule: ForeignField, job: str) -> bool:
    targets = rule.get("targetReplicatedJobs").words()
    return not targets or job in targets


def _reasons(rule: ForeignField) -> frozenset[str]:
    return frozenset(rule.get("onJobFailureReasons").words()) or _OF_A_POD | _OF_ANY_POD
