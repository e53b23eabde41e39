"""Disruption budgets: the status of a budget, its controller, and the eviction of one pod.

Whether an eviction is allowed, and the next status of a budget, are pure functions of budgets, pods and the time.
Invariants: a budget whose status is older than its spec allows no eviction; an evicted pod is treated as gone for
`DELETION_TIMEOUT_S`, even while it still runs.

The controller updates the status of budgets when their pods change. Invariant: at rest it writes nothing.

An eviction checks the budget, marks the pod, and deletes it. Invariants: a refused eviction changes nothing; the
budget's allowance is decreased before the pod is deleted; a dry run checks the budget and changes nothing.

Source: pkg/registry/core/pod/storage/eviction.go, pkg/controller/disruption (behaviour, v1.37).
"""

import re
from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import msgspec

from slipway.local.apiserver import pods
from slipway.local.apiserver.admission import Strategy
from slipway.local.apiserver.objects import (
    Json,
    clone,
    format_time,
    is_deleting,
    listing,
    mapping,
    maps,
    metadata,
    name_of,
    owners_of,
    parse_time,
    uid_of,
)
from slipway.local.apiserver.options import DeleteOptions, WriteOptions, read_delete_options
from slipway.local.apiserver.pods import FINISHED_PHASES
from slipway.local.apiserver.selectors import selects
from slipway.local.apiserver.status import (
    FieldCause,
    StatusError,
    bad_request,
    bad_value,
    conflict,
    success,
    too_many_requests,
    unsupported,
)
from slipway.local.apiserver.store import Commit, ObjectKey, ObjectVersion

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore


BUDGETS = "poddisruptionbudgets.policy"
DELETION_TIMEOUT_S = 120.0
_WAITING_S = 10
_PERCENT = re.compile(r"^[0-9]+%$")
_ALLOWED = "DisruptionAllowed"
_EMPTY: Json = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}

ScaleOf = Callable[[Json, str], int]
"""(controller reference, namespace) -> desired number of pods. Raises: ScaleError; LookupError when it is missing."""


class ScaleError(Exception):
    """The number of pods that a budget must expect cannot be determined."""


class BudgetStrategy(Strategy):
    has_status = True
    allows_unconditional_update = False
    counts_generation = True

    def decode(self, obj: Json, options: WriteOptions) -> None:
        obj.setdefault("spec", {})

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        obj["status"] = dict(_EMPTY)

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        spec = mapping(obj, "spec")
        causes = list[FieldCause]()
        if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
            causes.append(bad_value("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
        for field in ("minAvailable", "maxUnavailable"):
            causes += _count_causes(f"spec.{field}", spec.get(field))
        policy = spec.get("unhealthyPodEvictionPolicy")
        if policy not in (None, "AlwaysAllow", "IfHealthyBudget"):
            causes.append(unsupported("spec.unhealthyPodEvictionPolicy", policy, ["AlwaysAllow", "IfHealthyBudget"]))
        return causes


def disrupted(pod: Json, reason: str, message: str, now_text: str) -> Json:
    """Return the pod with the condition that names the reason of its disruption."""
    marked: Json = clone(pod)
    status = marked.setdefault("status", {})
    conditions = maps(listing(status, "conditions"))
    old = [item for item in conditions if item.get("type") == "DisruptionTarget"]
    since = old[0].get("lastTransitionTime") if old and old[0].get("status") == "True" else now_text
    condition: Json = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    condition |= {"lastProbeTime": None, "lastTransitionTime": since}
    status["conditions"] = [*(item for item in conditions if item not in old), condition]
    return marked


def ignores_budgets(pod: Json) -> bool:
    """Whether budgets do not apply to a pod, because it does not run or is already being deleted."""
    phase = mapping(pod, "status").get("phase")
    return phase in FINISHED_PHASES or phase == "Pending" or is_deleting(pod)


def guards(budget: Json, pod: Json) -> bool:
    return selects(mapping(budget, "spec").get("selector"), mapping(metadata(pod), "labels"))


def is_unready_and_evictable(budget: Json, pod: Json) -> bool:
    """Whether the pod is not ready and the budget allows the eviction of pods that are not ready."""
    if is_ready(pod):
        return False
    if mapping(budget, "spec").get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = mapping(budget, "status")
    desired = int(status.get("desiredHealthy", 0))
    return int(status.get("currentHealthy", 0)) >= desired > 0


def spend(budget: Json, pod: Json, now: float) -> Json:
    """Return the budget's status after the eviction of `pod`. Raises: StatusError 429 when the budget forbids it."""
    status, name = mapping(budget, "status"), name_of(budget)
    if int(status.get("observedGeneration", 0)) < int(metadata(budget).get("generation", 0)):
        raise still_processing(name)
    allowed = int(status.get("disruptionsAllowed", 0))
    if allowed == 0:
        raise _violates(_why_not(name, status))
    left: Json = {**status, "disruptionsAllowed": allowed - 1}
    left["disruptedPods"] = {**mapping(status, "disruptedPods"), name_of(pod): format_time(now)}
    return left if allowed > 1 else _with_condition(left, now)


def still_processing(name: str) -> StatusError:
    """Return the error that asks the client to retry later."""
    return _violates(f"The disruption budget {name} is still being processed by the server.", retry_after_s=_WAITING_S)


def observe(budget: Json, pods: Sequence[Json], scale_of: ScaleOf, now: float) -> tuple[Json, float | None]:
    """Return a budget's new status, and the time of its next check (None when only changes require one)."""
    guarded = [pod for pod in pods if guards(budget, pod)]
    status = mapping(budget, "status")
    try:
        expected, desired = _expected(mapping(budget, "spec"), guarded, scale_of)
    except ScaleError as exc:
        failed: Json = {**status, "disruptionsAllowed": 0}
        return _set_condition(failed, "False", "SyncFailed", str(exc), now), None
    going = _going(mapping(status, "disruptedPods"), guarded, now)
    healthy = sum(is_ready(pod) and not is_deleting(pod) and name_of(pod) not in going for pod in guarded)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    shown: Json = {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
        "expectedPods": expected,
        "observedGeneration": metadata(budget).get("generation", 0),
        "conditions": listing(status, "conditions"),
    }
    if going:
        shown["disruptedPods"] = going
    due = [(parse_time(moment) or now) + DELETION_TIMEOUT_S for moment in going.values()]
    return _with_condition(shown, now), min(due, default=None)


def is_ready(pod: Json) -> bool:
    conditions = maps(listing(mapping(pod, "status"), "conditions"))
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _count_causes(field: str, value: Any) -> list[FieldCause]:
    if value is None:
        return []
    if isinstance(value, str):
        if not _PERCENT.match(value):
            words = "a valid percent string must be a numeric string followed by an ending '%'"
            return [bad_value(field, value, f"{words} (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')")]
        return [bad_value(field, value, "must not be greater than 100%")] if int(value[:-1]) > 100 else []
    return [bad_value(field, value, "must be greater than or equal to 0")] if value < 0 else []


def _expected(spec: Json, pods: list[Json], scale_of: ScaleOf) -> tuple[int, int]:
    """Return (expected number of pods, required number of healthy pods)."""
    most_gone, least = spec.get("maxUnavailable"), spec.get("minAvailable")
    if most_gone is not None:
        expected = _scale(pods, scale_of)
        return expected, max(0, expected - _share(most_gone, expected))
    if isinstance(least, str):
        expected = _scale(pods, scale_of)
        return expected, _share(least, expected)
    return (len(pods), int(least)) if least is not None else (0, 0)


def _scale(pods: list[Json], scale_of: ScaleOf) -> int:
    wanted: dict[str, int] = {}
    for pod in pods:
        controller = next((owner for owner in owners_of(pod) if owner.get("controller") is True), None)
        if controller is None:
            continue
        uid = str(controller.get("uid"))
        if uid not in wanted:
            try:
                wanted[uid] = scale_of(controller, str(metadata(pod)["namespace"]))
            except LookupError as exc:
                raise ScaleError(f'found no controllers for pod "{name_of(pod)}"') from exc
    return sum(wanted.values())


def _share(value: Any, whole: int) -> int:
    return ceil(whole * int(value[:-1]) / 100) if isinstance(value, str) else int(value)


def _going(disrupted: Json, pods: list[Json], now: float) -> Json:
    """Return the evicted pods that are not yet being deleted and whose `DELETION_TIMEOUT_S` has not passed."""
    waiting = {name_of(pod) for pod in pods if not is_deleting(pod)}
    return {
        name: moment
        for name, moment in disrupted.items()
        if name in waiting and (parse_time(moment) or 0.0) + DELETION_TIMEOUT_S > now
    }


def _why_not(name: str, status: Json) -> str:
    condition = next((item for item in maps(listing(status, "conditions")) if item.get("type") == _ALLOWED), None)
    if condition is not None and condition.get("reason") == "SyncFailed":
        words = f"does not allow evicting pods currently because it failed sync: {condition.get('message')}"
        return f"The disruption budget {name} {words}"
    healthy, desired = int(status.get("currentHealthy", 0)), int(status.get("desiredHealthy", 0))
    if healthy <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
    return f"The disruption budget {name} does not allow evicting pods currently"


def _violates(why: str, retry_after_s: int = 0) -> StatusError:
    cause = {"reason": "DisruptionBudget", "message": why}
    words = "Cannot evict pod as it would violate the pod's disruption budget."
    return too_many_requests(words, [cause], retry_after_s)


def _with_condition(status: Json, now: float) -> Json:
    if status["disruptionsAllowed"] > 0:
        return _set_condition(status, "True", "SufficientPods", "", now)
    return _set_condition(status, "False", "InsufficientPods", "", now)


def _set_condition(status: Json, value: str, reason: str, message: str, now: float) -> Json:
    conditions = maps(listing(status, "conditions"))
    old = [item for item in conditions if item.get("type") == _ALLOWED]
    since = old[0].get("lastTransitionTime") if old and old[0].get("status") == value else None
    condition = {
        "type": _ALLOWED,
        "status": value,
        "observedGeneration": status.get("observedGeneration", 0),
        "lastTransitionTime": since or format_time(now),
        "reason": reason,
        "message": message,
    }
    return {**status, "conditions": [*(item for item in conditions if item not in old), condition]}


_PODS = "pods"
_SCALED = frozenset({"replicasets.apps", "deployments.apps", "statefulsets.apps", "replicationcontrollers"})


class Budgets:
    """Stores the namespaces whose budgets may be out of date, and the time at which a budget must be checked again."""

    def __init__(self, core: "ClusterCore") -> None:
        self._core = core
        self._pending: dict[str, None] = {}
        self._due: dict[ObjectKey, float] = {}

    def note(self, change: Commit) -> None:
        if change.resource == BUDGETS or (
            (change.resource == _PODS or change.resource in _SCALED) and self._core.store.count(BUDGETS, change.key[0])
        ):
            self._pending[change.key[0]] = None

    def run(self) -> None:
        now = self._core.clock()
        pending, self._pending = self._pending, {}
        keys = [key for key, due in self._due.items() if due <= now]
        records = [record for namespace in pending for record in self._core.store.scan(BUDGETS, namespace)]
        records += [found for key in keys if (found := self._core.store.find(BUDGETS, *key)) is not None]
        for record in records:
            self._sync(record, now)

    def _sync(self, record: ObjectVersion, now: float) -> None:
        meta = record.obj["metadata"]
        key = (meta["namespace"], meta["name"])
        found = [each.obj for each in self._core.store.scan(_PODS, key[0])]
        status, due = observe(record.obj, found, self._scale_of, now)
        self._due.pop(key, None)
        if due is not None:
            self._due[key] = due
        current = self._core.store.find(BUDGETS, *key)
        if current is not None and mapping(current.obj, "status") != status:
            self._core.commit_update(self._core.kind(BUDGETS), {**clone(current.obj), "status": status})

    def _scale_of(self, controller: Json, namespace: str) -> int:
        """Return the desired replicas of a controller. Raises: ScaleError; LookupError when it does not exist."""
        kind = self._core.registry.of_kind(str(controller.get("apiVersion")), str(controller.get("kind")))
        if kind is None:
            raise LookupError
        if kind.resource not in _SCALED:
            raise ScaleError(f"{kind.resource} does not implement the scale subresource")
        found = self._core.store.find(kind.resource, namespace, str(controller.get("name")))
        if found is None or uid_of(found.obj) != controller.get("uid"):
            raise LookupError
        above = next((owner for owner in owners_of(found.obj) if owner.get("controller") is True), None)
        if above is not None and kind.resource == "replicasets.apps":
            return self._scale_of(above, namespace)
        return int(mapping(found.obj, "spec").get("replicas", 1))


_MANY = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


def evict(core: "ClusterCore", namespace: str, name: str, eviction: Json, *, dry_run: bool) -> Json:
    """Evict a pod and return a Status. Raises: StatusError 400, 404, 409, 429, 500."""
    if name_of(eviction) != name:
        raise bad_request("name in URL does not match name in Eviction object")
    options = read_delete_options(mapping(eviction, "deleteOptions"))
    options = msgspec.structs.replace(options, dry_run=options.dry_run or dry_run)
    pod = core.get(_PODS, namespace, name)
    if ignores_budgets(pod):
        settled = mapping(pod, "status").get("phase") in pods.FINISHED_PHASES or is_deleting(pod)
        _let_go(core, pod, options if settled else _fenced(options, pod))
        return success(code=201)
    budgets = [record.obj for record in core.store.scan(BUDGETS, namespace) if guards(record.obj, pod)]
    if len(budgets) > 1:
        raise StatusError(500, "", _MANY)
    if budgets and is_unready_and_evictable(budgets[0], pod):
        options = _fenced(options, pod)
    elif budgets:
        status = spend(budgets[0], pod, core.clock())
        if not options.dry_run:
            _check(pod, options)
            core.commit_update(core.kind(BUDGETS), {**clone(budgets[0]), "status": status})
    _let_go(core, pod, options)
    return success(code=201)


def _let_go(core: "ClusterCore", pod: Json, options: DeleteOptions) -> None:
    if not options.dry_run:
        _check(pod, options)
        marked = disrupted(pod, "EvictionByEvictionAPI", "Eviction API: evicting", format_time(core.clock()))
        core.commit_update(core.kind(_PODS), marked)
        if options.resource_version:
            options = _fenced(msgspec.structs.replace(options, resource_version=""), marked)
    meta = metadata(pod)
    core.delete(_PODS, meta["namespace"], meta["name"], options)


def _fenced(options: DeleteOptions, pod: Json) -> DeleteOptions:
    """Return options that delete only this version of the pod, unless the caller already named a version."""
    version = options.resource_version or str(metadata(pod)["resourceVersion"])
    return msgspec.structs.replace(options, resource_version=version)


def _check(pod: Json, options: DeleteOptions) -> None:
    """Check the preconditions before the pod is marked. Raises: StatusError 409."""
    words = "the {0} in the precondition ({1}) does not match the {0} in record ({2}). The object might have been {3}"
    if options.uid and options.uid != uid_of(pod):
        raise conflict("Pod", name_of(pod), words.format("UID", options.uid, uid_of(pod), "deleted and then recreated"))
    version = str(metadata(pod)["resourceVersion"])
    if options.resource_version and options.resource_version != version:
        why = words.format("ResourceVersion", options.resource_version, version, "modified")
        raise conflict("Pod", name_of(pod), why)
