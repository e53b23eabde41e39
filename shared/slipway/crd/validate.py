"""Limits and consistency of an allocation's spec that types and schemas cannot express.

Pure. All checks also apply to an object that a user applied: it ends as Invalid where a POST gets 422. Pointers are
relative to the spec, which is also the top level of a launch body.

Failure and success policies are checked too: rules that name unknown roles, or that can never match. Pure. Owns the
texts of the refusals. Pointers are relative to the spec.
"""

import base64
import binascii
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from slipway.crd.bounds import OPAQUE_MAX
from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.kinds import RESERVED_ENV_PREFIX
from slipway.crd.policies import (
    FailureAction,
    FailurePolicy,
    FailureRule,
    RestartUnit,
    SuccessTarget,
    code_range,
    covered,
)
from slipway.crd.roleresources import EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, is_extended, is_nested, object_of
from slipway.crd.v1alpha1 import RANKS_MAX, SPEC_BYTES_MAX, AllocationSpec, FileSpec, RoleSpec, TolerationSpec
from slipway.errors import FieldError
from slipway.model import ids
from slipway.model.mig import slices_in
from slipway.model.numbers import number_in
from slipway.model.resources import CPU, GPU, GPU_MILLI, GPU_NAMES, MEMORY, MILLI, Resources, parse_quantity, scale_of
from slipway.model.times import parse_duration

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


GPU_MILLI_MAX = 1000
MEMORY_PLAIN_MIN = 1 << 20
"""A smaller number of bytes without a unit is refused, because the unit was probably forgotten."""
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = re.compile(rf"({_DNS_LABEL}(\.{_DNS_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_PREFIX_MAX = 253
_LABEL_MAX = 63
_RESOURCE_HINTS = {"gpu": GPU, "gpus": GPU, "mem": MEMORY, "ram": MEMORY, "cpus": CPU, "storage": EPHEMERAL_STORAGE}
_DURATIONS = ("idle_timeout", "max_runtime", "max_runtime_override", "pending_timeout", "preemption_grace")
_MAY_BE_ZERO = ("preemption_grace",)


def check_spec(spec: AllocationSpec, findings: Findings, *, slots_per_pod_max: int | None = None) -> None:
    """Add all errors of `spec`, except those of its pod templates, to `findings`."""
    try:
        size = len(msgspec.json.encode(spec))
    except RecursionError:
        findings.refuse("", "the spec is nested too deeply")
        return
    if size > SPEC_BYTES_MAX:
        findings.refuse("", f"the spec has {size} bytes; at most {SPEC_BYTES_MAX} are allowed; move files to a volume")
    _check_gang(spec, findings)
    for index, role in enumerate(spec.ranks):
        _check_role(role, pointer("ranks", index), findings, slots_per_pod_max)
    for field in _DURATIONS:
        wire = spec.__struct_encode_fields__[spec.__struct_fields__.index(field)]
        _check_duration(getattr(spec, field), pointer(wire), findings, may_be_zero=field in _MAY_BE_ZERO)
    for name, value in spec.env.items():
        check_env_name(name, pointer("env", name), findings)
        if "\0" in value:
            findings.refuse(pointer("env", name), "must not contain a NUL character")
    check_policies(spec, findings)
    if spec.topology is not None:
        _check_label_key(spec.topology.key, pointer("topology", "key"), findings)
    _check_files(spec.files, findings)
    _check_unique(spec.flavors, lambda index: pointer("flavors", index), findings)
    _check_unique([port.name for port in spec.ports], lambda index: pointer("ports", index, "name"), findings)
    _check_unique([port.port for port in spec.ports], lambda index: pointer("ports", index, "port"), findings)
    if spec.service is not None and ids.is_bundle_name(spec.service.name):
        detail = f"{spec.service.name} has the form of a gang's own Service (ID-ATTEMPT); choose another name"
        findings.refuse("/service/name", detail)


def is_mount_path(path: str) -> bool:
    """Whether a volume may be mounted at `path`: an absolute, normalised path below the root."""
    return path.startswith("/") and posixpath.normpath(path) == path and path not in ("/", "//") and ":" not in path


def check_env_name(name: Any, at: str, findings: Findings) -> None:
    """Add an error for an invalid variable name, and a warning for a name that Slipway sets itself."""
    if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
        findings.refuse(at, f"{name!r} cannot name an environment variable; use letters, digits and _")
    elif name.startswith(RESERVED_ENV_PREFIX):
        findings.warn(f"{name}: names that begin with {RESERVED_ENV_PREFIX} are Slipway's own and may be overwritten")


def check_container_resources(resources: Any, at: str, findings: Findings) -> None:
    """Add the errors of a container's {requests, limits}."""
    parts = findings.mapping(resources, at)
    for field in parts:
        if field not in ("requests", "limits", "claims"):
            findings.refuse(at + pointer(field), "a container's resources have requests, limits and claims only")
    _check_requests_and_limits(parts, at, findings)


def check_role_resources(resources: Mapping[str, Any], at: str, findings: Findings) -> None:
    """Add the errors of the resources of a role, in either form."""
    if "claims" in resources:
        findings.refuse(f"{at}/claims", "claims belong to a container of the pod template")
    elif is_nested(resources):
        _check_requests_and_limits(resources, at, findings)
    elif mixed := resources.keys() & {"requests", "limits"}:
        findings.refuse(at + pointer(min(mixed)), "write either a map of quantities, or requests and limits, not both")
    else:
        _check_quantities(resources, at, findings)


def bytes_without_unit(resources: Mapping[str, Any], at: str) -> list[FieldError]:
    """Return errors for memory without a unit, which means bytes: `8` is a mistake, and no container runtime starts
    it."""
    errors: list[FieldError] = []
    parts = [(name, object_of(resources.get(name))) for name in ("requests", "limits")]
    for where, quantities in [(at, resources), *((f"{at}/{name}", part) for name, part in parts)]:
        given = quantities.get("memory")
        text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
        if 0 < (number_in(text) or 0) < MEMORY_PLAIN_MIN:
            detail = f"{text} is {text} bytes; write the unit, such as {text}Gi or {text}Mi"
            errors.append(FieldError(f"{where}/memory", detail))
    return errors


def _check_gang(spec: AllocationSpec, findings: Findings) -> None:
    count = sum(role.count for role in spec.ranks) or 1
    if count > RANKS_MAX:
        findings.refuse("/ranks", f"{count} ranks in all; at most {RANKS_MAX} are allowed")
    if spec.min_available is not None and spec.min_available > count:
        findings.refuse("/minAvailable", f"{spec.min_available} is above the {count} ranks; lower it or raise count")
    if spec.ranks and all(role.daemon for role in spec.ranks):
        detail = "every role is a daemon, so nothing would keep the gang alive; leave one role without daemon"
        findings.refuse("/ranks/0/daemon", detail)
    _check_unique([role.name for role in spec.ranks], lambda index: pointer("ranks", index, "name"), findings)
    _check_start_order(spec.ranks, findings)


def _check_start_order(roles: Sequence[RoleSpec], findings: Findings) -> None:
    """Check that a role depends only on roles above it, so that no two roles can wait for each other."""
    above: list[str] = []
    for index, role in enumerate(roles):
        for number, dependency in enumerate(role.depends_on):
            if dependency.role not in above:
                has = f"above it: {', '.join(above)}" if above else "it is the first one"
                detail = f"there is no role {dependency.role} above role {role.name} ({has}); move that role up"
                findings.refuse(pointer("ranks", index, "dependsOn", number, "role"), detail)
        above.append(role.name)


def _check_unique(values: Sequence[str | int], at: Callable[[int], str], findings: Findings) -> None:
    seen = Counter[str | int]()
    for index, value in enumerate(values):
        if seen[value]:
            findings.refuse(at(index), f"{value} is listed twice; each must be different")
        seen[value] += 1


def _check_role(role: RoleSpec, at: str, findings: Findings, slots_per_pod_max: int | None) -> None:
    if role.min_available is not None and role.min_available > role.count:
        findings.refuse(f"{at}/minAvailable", f"{role.min_available} is above count {role.count}; lower it")
    check_role_resources(role.resources, f"{at}/resources", findings)
    for key, value in role.node_selector.items():
        here = f"{at}/nodeSelector{pointer(key)}"
        _check_label_key(key, here, findings)
        if len(value) > _LABEL_MAX or not _LABEL_VALUE.fullmatch(value):
            findings.refuse(here, f"{value!r} cannot be the value of a node label")
    for index, toleration in enumerate(role.tolerations):
        _check_toleration(toleration, f"{at}/tolerations/{index}", findings)
    if role.topology is not None:
        _check_label_key(role.topology.key, f"{at}/topology/key", findings)
    if slots_per_pod_max is not None and (slots := _slots(role)) > slots_per_pod_max:
        findings.refuse(f"{at}/resources", f"{slots} slots in one rank; the pool allows at most {slots_per_pod_max}")


def _slots(role: RoleSpec) -> int:
    """Return the whole GPUs that one rank requests."""
    requests = {**role.resources.get("limits", {}), **role.resources.get("requests", {})}
    amounts = requests if is_nested(role.resources) else role.resources
    try:
        names = [*slices_in(amounts), *(name for name in (*GPU_NAMES, GPU_MILLI) if name in amounts)]
        return Resources.parse({name: amounts[name] for name in names}).gpus()
    except (ValueError, TypeError):
        return 0


def _check_label_key(key: str, at: str, findings: Findings) -> None:
    prefix, _, name = key.rpartition("/")
    if len(prefix) > _PREFIX_MAX or len(name) > _LABEL_MAX or not _QUALIFIED.fullmatch(key):
        findings.refuse(at, f"{key!r} cannot be the key of a node label")


def _check_toleration(toleration: TolerationSpec, at: str, findings: Findings) -> None:
    if toleration.operator == "Exists" and toleration.value:
        findings.refuse(f"{at}/value", "must be empty when the operator is Exists")
    if not toleration.key and toleration.operator != "Exists":
        findings.refuse(f"{at}/key", "an empty key tolerates every taint: set operator to Exists, or name the key")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        findings.refuse(f"{at}/tolerationSeconds", "works with the effect NoExecute only")
    if toleration.key:
        _check_label_key(toleration.key, f"{at}/key", findings)


def _check_duration(text: str | None, at: str, findings: Findings, *, may_be_zero: bool) -> None:
    if text is None:
        return
    try:
        seconds = parse_duration(text)
    except ValueError as exc:
        findings.refuse(at, str(exc))
        return
    if not seconds and not may_be_zero:
        findings.refuse(at, "must be longer than zero; leave it out for no limit")


def _check_requests_and_limits(parts: Mapping[str, Any], at: str, findings: Findings) -> None:
    amounts = {
        part: _check_quantities(findings.mapping(parts.get(part), f"{at}/{part}"), f"{at}/{part}", findings)
        for part in ("requests", "limits")
    }
    for name, request in amounts["requests"].items():
        here = f"{at}/requests{pointer(name)}"
        limit = amounts["limits"].get(name)
        if limit is not None and request > limit:
            findings.refuse(here, "is above its limit; lower it or raise the limit")
        elif limit is not None and request != limit and is_extended(name):
            findings.refuse(here, "must equal its limit: this resource cannot be overcommitted")


def _check_quantities(quantities: Mapping[str, Any], at: str, findings: Findings) -> dict[str, int]:
    amounts: dict[str, int] = {}
    if len(quantities) > OPAQUE_MAX:
        findings.refuse(at, f"has {len(quantities)} resources; at most {OPAQUE_MAX} are allowed")
        return amounts
    for name, value in quantities.items():
        here = at + pointer(name)
        _check_resource_name(name, here, findings)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            findings.refuse(here, "must be a quantity such as 500m, 2 or 16Gi")
            continue
        try:
            amounts[name] = parse_quantity(value, scale=scale_of(name))
            milli = parse_quantity(value, scale=MILLI)
        except (ValueError, ArithmeticError) as exc:
            findings.refuse(here, str(exc))
            continue
        if is_extended(name) and milli % MILLI:
            findings.refuse(here, f"{value} is not a whole number; for a part of a device ask for {GPU_MILLI}")
        if name == GPU_MILLI and amounts[name] > GPU_MILLI_MAX:
            findings.refuse(here, f"{value} is more than one device ({GPU_MILLI_MAX}); ask for whole devices")
    return amounts


def _check_resource_name(name: str, at: str, findings: Findings) -> None:
    if name in (CPU, MEMORY, EPHEMERAL_STORAGE) or name.startswith(HUGE_PAGES_PREFIX):
        return
    if "/" not in name:
        hint = f"; did you mean {_RESOURCE_HINTS[name.lower()]}?" if name.lower() in _RESOURCE_HINTS else ""
        findings.refuse(at, f"{name!r} is not a resource; use cpu, memory or a full name such as {GPU}{hint}")
        return
    _check_label_key(name, at, findings)


def _check_files(files: Sequence[FileSpec], findings: Findings) -> None:
    for index, file in enumerate(files):
        at = pointer("files", index)
        steps = file.path.split("/")
        if file.path.startswith("/") or ".." in steps or "" in steps or "\0" in file.path:
            findings.refuse(f"{at}/path", "must be a relative path without `..`, such as src/train.py")
        if file.encoding == "base64":
            try:
                base64.b64decode(file.content, validate=True)
            except (binascii.Error, ValueError):
                findings.refuse(f"{at}/content", "is not base64")
    _check_unique([file.path for file in files], lambda index: pointer("files", index, "path"), findings)
