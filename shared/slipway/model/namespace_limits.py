"""What a namespace permits its pods: LimitRanges and ResourceQuotas, as the API server applies them. Pure.

LimitRanges have defaults for containers, and refuse pods. The API server completes a pod in this order: a missing
request becomes the limit of the container. Then each LimitRange of the namespace sets the requests and limits that are
still missing. Then every LimitRange checks every container, including init containers and sidecars, and the pod as a
whole. When several LimitRanges set the same value, Kubernetes promises no order; here the first by name sets it. The
stored object already contains the defaults that a LimitRange derives from itself (max is the default limit, which is
the default request).

Source: k8s.io/kubernetes/plugin/pkg/admission/limitranger, pkg/apis/core/v1/defaults.go, v1.37.

ResourceQuotas count the usage of a pod, if their scopes include it. Amounts are thousandths, with the names that quotas
use: `pods`, `requests.cpu`, `limits.memory`. The names `cpu` and `memory` mean requests. Source: Kubernetes, "Resource
Quotas"; pkg/quota/v1/evaluator/core/pods.go v1.37.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal

import msgspec

from slipway.model.facts import LimitRangeFact, QuotaFact, QuotaScope, RoleFact
from slipway.model.podresources import ContainerResources, PodResources, Quantities
from slipway.model.resources import (
    CPU,
    GPU_MILLI,
    MEMORY,
    MILLI,
    PODS,
    Resources,
    format_quantity,
    parse_quantity,
    scale_of,
)

Ranges = tuple[LimitRangeFact, ...]
"""the LimitRanges of one namespace, sorted by name"""
Amounts = dict[str, int]
"""{resource: base units}; a stated zero is included"""
REFUSALS_MAX = 3
"""A message contains at most this number of refusals."""


def completed(pod: PodResources, ranges: Ranges) -> PodResources:
    """Return the pod with the defaults that `ranges` set for its containers."""
    if not ranges:
        return pod
    return msgspec.structs.replace(
        pod,
        containers=tuple(_given(each, ranges) for each in pod.containers),
        init_containers=tuple(_given(each, ranges) for each in pod.init_containers),
    )


def refusal(pod: PodResources, ranges: Ranges) -> str:
    """Return why the API server refuses the completed `pod`, and what it would accept; empty when it accepts it.

    Raises:
        ValueError: a bad quantity.
    """
    found = list(dict.fromkeys(_refusals(pod, ranges)))
    more = f"; and {len(found) - REFUSALS_MAX} more" if len(found) > REFUSALS_MAX else ""
    return "; ".join(found[:REFUSALS_MAX]) + more


def _given(container: ContainerResources, ranges: Ranges) -> ContainerResources:
    requests, limits = {**container.limits, **container.requests}, dict(container.limits)
    for each in ranges:
        limits = {**each.container.default, **limits}
        requests = {**each.container.default_request, **requests}
    return msgspec.structs.replace(container, requests=requests, limits=limits)


class _Subject(msgspec.Struct, frozen=True):
    """The subject of a check: a container, or the whole pod."""

    words: str
    """its name in messages"""
    kind: str
    requests: Amounts
    limits: Amounts


def _refusals(pod: PodResources, ranges: Ranges) -> Iterable[str]:
    subjects = [
        _Subject(f"{kind} {each.name}", "container", _amounts(each.requests), _amounts(each.limits))
        for kind, group in (("container", pod.containers), ("init container", pod.init_containers))
        for each in group
    ]
    for each in subjects:
        for name in sorted(each.requests.keys() & each.limits.keys()):
            giver = _giver(name, each.limits[name], ranges)
            if each.requests[name] > each.limits[name] and giver is not None:
                yield (
                    f"{each.words} requests {_spelled(name, each.requests[name])} of {name}, and LimitRange "
                    f"{giver.name} of namespace {giver.namespace} gives it a limit of "
                    f"{_spelled(name, each.limits[name])}: state a limit too"
                )
    whole = _Subject("the pod", "pod", _whole(pod, lambda each: each.requests), _whole(pod, lambda each: each.limits))
    for limit_range in ranges:
        where = f"LimitRange {limit_range.name} of namespace {limit_range.namespace}"
        for bounds, group in ((limit_range.container, subjects), (limit_range.pod, [whole])):
            for each in group:
                yield from _too_little(each, bounds.min, where)
                yield from _too_much(each, bounds.max, where)
                yield from _too_far_apart(each, bounds.max_ratio, where)


def _giver(name: str, limit: int, ranges: Ranges) -> LimitRangeFact | None:
    """Return the LimitRange that sets this limit as the default of a container; None when no LimitRange does."""
    first = next((each for each in ranges if name in each.container.default), None)
    return first if first is not None and _amounts(first.container.default)[name] == limit else None


def _too_little(subject: _Subject, least: Mapping[str, str], where: str) -> Iterable[str]:
    for name in sorted(least):
        wanted = parse_quantity(least[name], scale=scale_of(name))
        says = f"{where} requires at least {least[name]} of {name} per {subject.kind}, but {subject.words}"
        if name not in subject.requests:
            yield f"{says} requests none"
        elif subject.requests[name] < wanted:
            yield f"{says} requests {_spelled(name, subject.requests[name])}"
        elif subject.limits.get(name, wanted) < wanted:
            yield f"{says} has a limit of {_spelled(name, subject.limits[name])}"


def _too_much(subject: _Subject, most: Mapping[str, str], where: str) -> Iterable[str]:
    for name in sorted(most):
        allowed = parse_quantity(most[name], scale=scale_of(name))
        says = f"{where} allows at most {most[name]} of {name} per {subject.kind}, but {subject.words}"
        if name not in subject.limits:
            yield f"{says} states no limit"
        elif subject.limits[name] > allowed:
            yield f"{says} has a limit of {_spelled(name, subject.limits[name])}"
        elif subject.requests.get(name, 0) > allowed:
            yield f"{says} requests {_spelled(name, subject.requests[name])}"


def _too_far_apart(subject: _Subject, ratios: Mapping[str, str], where: str) -> Iterable[str]:
    for name in sorted(ratios):
        ratio = Decimal(parse_quantity(ratios[name], scale=MILLI)) / MILLI
        says = f"{where} allows a limit of at most {ratios[name]} times the request of {name} per {subject.kind}, but"
        request, limit = subject.requests.get(name, 0), subject.limits.get(name, 0)
        if not request:
            yield f"{says} {subject.words} requests none"
        elif not limit:
            yield f"{says} {subject.words} states no limit"
        elif limit > ratio * request:
            fits = math.ceil(limit / ratio)
            yield (
                f"{says} {subject.words} requests {_spelled(name, request)} with a limit of {_spelled(name, limit)}: "
                f"request at least {_spelled(name, fits)}, or lower the limit to {_spelled(name, int(ratio * request))}"
            )


def _whole(pod: PodResources, stated: Callable[[ContainerResources], Quantities]) -> Amounts:
    """Return the sum over containers and sidecars, raised to the largest init step; without the overhead of the
    RuntimeClass, which the API server adds later."""
    total, sidecars, peak = Amounts(), Amounts(), Amounts()
    for each in pod.containers:
        _add(total, _amounts(stated(each)))
    for each in pod.init_containers:
        own = _amounts(stated(each))
        if each.sidecar:
            _add(total, own)
            _add(sidecars, own)
            own = sidecars
        else:
            _add(own, sidecars)
        for name, amount in own.items():
            peak[name] = max(peak.get(name, 0), amount)
    return {name: max(total.get(name, 0), peak.get(name, 0)) for name in {**total, **peak}}


def _add(into: Amounts, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        into[name] = into.get(name, 0) + amount


def _amounts(quantities: Quantities) -> Amounts:
    return {name: parse_quantity(value, scale=scale_of(name)) for name, value in quantities.items()}


def _spelled(name: str, amount: int) -> str:
    return format_quantity(amount, scale=scale_of(name))


COUNT_PODS = "count/pods"
_REQUESTS, _LIMITS = "requests.", "limits."
_HUGE_PAGES = "hugepages-"
_SHORT = frozenset({CPU, MEMORY, "ephemeral-storage"})
_OF_CLAIMS = "requests.storage"


def counts_pods(name: str) -> bool:
    """Whether a name in a quota limits pods, and not claims, services or other objects."""
    if name in (PODS, COUNT_PODS) or name in _SHORT or name.startswith((_LIMITS, _HUGE_PAGES)):
        return True
    return name.startswith(_REQUESTS) and name != _OF_CLAIMS


def usage_of(requests: Resources, limits: Resources) -> dict[str, int]:
    """Return {name in a quota: thousandths} of one pod."""
    used = {PODS: MILLI, COUNT_PODS: MILLI}
    for name, amount in requests.amounts.items():
        if name in (PODS, GPU_MILLI):
            continue  # Slipway assigns parts of a GPU itself: the pod requests none.
        thousandths = amount * MILLI // scale_of(name)
        used[_REQUESTS + name] = thousandths
        if name in _SHORT or name.startswith(_HUGE_PAGES):
            used[name] = thousandths
    for name, amount in limits.amounts.items():
        used[_LIMITS + name] = amount * MILLI // scale_of(name)
    return used


def is_counted(role: RoleFact, quota: QuotaFact) -> bool:
    """Whether `quota` counts the pods of `role`."""
    return all(_matches(role, scope) for scope in quota.scopes)


def _matches(role: RoleFact, scope: QuotaScope) -> bool:
    match scope.name:
        case "BestEffort":
            return _is_best_effort(role)
        case "NotBestEffort":
            return not _is_best_effort(role)
        case "Terminating":
            return role.is_terminating
        case "NotTerminating":
            return not role.is_terminating
        case "PriorityClass":
            return _selects(scope, role.priority_class)
        case "CrossNamespacePodAffinity":
            return _looks_elsewhere(role.affinity)
        case _:
            return False  # An unknown scope: the API server decides at the launch.


def _selects(scope: QuotaScope, value: str) -> bool:
    match scope.operator:
        case "In":
            return value in scope.values
        case "NotIn":
            return value not in scope.values
        case "DoesNotExist":
            return not value
        case _:
            return bool(value)


def _is_best_effort(role: RoleFact) -> bool:
    return not any(amounts.get(name) for amounts in (role.requests, role.limits) for name in (CPU, MEMORY))


def _looks_elsewhere(wishes: Mapping[str, object]) -> bool:
    """Whether a pod affinity names other namespaces."""
    for kind in ("podAffinity", "podAntiAffinity"):
        if "'namespaces':" in (text := str(wishes.get(kind) or "")) or "'namespaceSelector':" in text:
            return True
    return False
