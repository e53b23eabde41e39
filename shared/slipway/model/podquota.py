"""The usage of a pod in a ResourceQuota, and which quotas count the pod. Pure.

Amounts are thousandths, with the names that quotas use: `pods`, `requests.cpu`, `limits.memory`. The names `cpu` and
`memory` mean requests. Source: Kubernetes, "Resource Quotas"; pkg/quota/v1/evaluator/core/pods.go v1.37.
"""

from collections.abc import Mapping

from slipway.model.facts import QuotaFact, QuotaScope, RoleFact
from slipway.model.resources import CPU, GPU_MILLI, MEMORY, MILLI, PODS, Resources, scale_of

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
