"""Checks the failure and success policies of a spec: rules that name unknown roles, or that can never match.

Pure. Owns the texts of the refusals. Pointers are relative to the spec.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.policies import (
    FailureAction,
    FailurePolicy,
    FailureRule,
    RestartUnit,
    SuccessTarget,
    code_range,
    covered,
)
from slipway.crd.v1alpha1 import AllocationSpec, RoleSpec

_RULES = ("failurePolicy", "rules")
_TARGETS = ("successPolicy", "targets")
T = TypeVar("T", str, int)


def check_policies(spec: AllocationSpec, findings: Findings) -> None:
    """Add all errors of the two policies of `spec` to `findings`."""
    roles = {role.name: role for role in spec.ranks} or {"worker": RoleSpec()}
    if spec.failure_policy is not None:
        _check_failures(spec.failure_policy, roles, findings)
        _check_retries(spec.failure_policy, spec.max_restarts, findings)
    if spec.restart is RestartUnit.RANK:
        _check_restart(spec, findings)
    if spec.success_policy is not None:
        if not spec.success_policy.targets:
            findings.refuse(pointer(*_TARGETS), "is empty; name at least one target, such as {role: worker}")
        for index, target in enumerate(spec.success_policy.targets):
            _check_target(target, pointer(*_TARGETS, index), roles, findings)


def _check_failures(policy: FailurePolicy, roles: Mapping[str, RoleSpec], findings: Findings) -> None:
    before: list[tuple[int, frozenset[tuple[str, int]]]] = []
    for index, rule in enumerate(policy.rules):
        at = pointer(*_RULES, index)
        if not _check_rule(rule, at, roles, findings):
            continue
        matched = covered(rule, roles)
        taken = [position for position, earlier in before if earlier & matched]
        if not matched.difference(*(earlier for _, earlier in before)):
            names = " and ".join(f"rules[{position}]" for position in taken)
            match = "match" if len(taken) > 1 else "matches"
            findings.refuse(
                at,
                f"can never match, because {names} {match} everything that this rule matches; move it up, or leave it "
                "out",
            )
        before.append((index, matched))


def _check_rule(rule: FailureRule, at: str, roles: Mapping[str, RoleSpec], findings: Findings) -> bool:
    """Add the errors of a rule by itself; return whether it can be compared with the other rules."""
    is_right = True
    for position, name in enumerate(rule.roles):
        if name not in roles:
            findings.refuse(f"{at}/roles/{position}", _no_role(name, roles))
            is_right = False
    for name in _twice(rule.roles):
        findings.refuse(f"{at}/roles", f"{name} is listed twice; each must be different")
    for position, entry in enumerate(rule.exit_codes):
        try:
            code_range(entry)
        except ValueError as exc:
            findings.refuse(f"{at}/exitCodes/{position}", str(exc))
            is_right = False
    if rule.disruption and rule.exit_codes:
        detail = "a rank that was lost has no exit code of its own; leave exitCodes out, or write two rules"
        findings.refuse(f"{at}/exitCodes", detail)
        is_right = False
    if rule.disruption and rule.action is FailureAction.IGNORE:
        detail = "a rank that was lost has not done its work; write fail, retry or notCounted, or set minAvailable"
        findings.refuse(f"{at}/action", detail)
        is_right = False
    return is_right


def _check_retries(policy: FailurePolicy, max_restarts: int, findings: Findings) -> None:
    retried = [index for index, rule in enumerate(policy.rules) if rule.action is FailureAction.RETRY]
    if retried and not max_restarts:
        findings.warn(
            f"failurePolicy.rules[{retried[0]}] says retry, and maxRestarts is 0: the allocation fails there. "
            "Set maxRestarts, or write action: fail"
        )


def _check_restart(spec: AllocationSpec, findings: Findings) -> None:
    """Refuse `restart: rank` for elastic gangs: a restarted rank keeps its place, but an elastic gang may lose
    places."""
    count = sum(role.count for role in spec.ranks) or 1
    elastic = [pointer("minAvailable")] if spec.min_available is not None and spec.min_available < count else []
    elastic += [
        pointer("ranks", index, "minAvailable")
        for index, role in enumerate(spec.ranks)
        if role.min_available is not None and role.min_available < role.count
    ]
    if elastic:
        detail = "an elastic gang does not start single ranks again; leave minAvailable out, or restart: rank"
        findings.refuse(elastic[0], detail)
    is_spared = spec.failure_policy is not None and any(
        rule.action is FailureAction.NOT_COUNTED for rule in spec.failure_policy.rules
    )
    if not spec.max_restarts and not is_spared:
        findings.warn("restart: rank starts no rank again while maxRestarts is 0; set maxRestarts")


def _check_target(target: SuccessTarget, at: str, roles: Mapping[str, RoleSpec], findings: Findings) -> None:
    role = roles.get(target.role) if target.role is not None else None
    if target.role is not None and role is None:
        findings.refuse(f"{at}/role", _no_role(target.role, roles))
        return
    if role is not None and role.daemon:
        detail = f"{target.role} is a daemon, which is ended when the others have; leave out daemon, or this target"
        findings.refuse(f"{at}/role", detail)
    if target.indexes and role is None and len(roles) > 1:
        detail = f"indexes count within a role; name it, such as role: {next(iter(roles))}"
        findings.refuse(f"{at}/indexes", detail)
        return
    workers = [each.count for each in roles.values() if not each.daemon] if role is None else [role.count]
    count = sum(workers)
    for position, index in enumerate(target.indexes):
        if index >= count:
            findings.refuse(f"{at}/indexes/{position}", f"{index} is no rank of the role; write 0 to {count - 1}")
    for index in _twice(target.indexes):
        findings.refuse(f"{at}/indexes", f"{index} is listed twice; each must be different")
    most = len(target.indexes) or count
    if target.count is not None and target.count > most:
        which = "indexes" if target.indexes else "ranks"
        findings.refuse(f"{at}/count", f"{target.count} is above {most}, the number of {which}; lower it")


def _no_role(name: str, roles: Mapping[str, RoleSpec]) -> str:
    return f"no role is named {name!r}; write {' or '.join(roles)}, or add the role to ranks"


def _twice(values: Iterable[T]) -> list[T]:
    return [value for value, times in Counter(values).items() if times > 1]
