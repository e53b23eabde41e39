"""The eviction of one pod: checks its budget, marks the pod, deletes it.

Owns the order of these steps. Works through the core's own verbs. Invariants: a refused eviction changes nothing; the
budget's allowance is decreased before the pod is deleted; a dry run checks the budget and changes nothing.

Source: pkg/registry/core/pod/storage/eviction.go (behaviour, v1.37).
"""

from typing import TYPE_CHECKING

import msgspec

from slipway.local.apiserver import disruption, pods
from slipway.local.apiserver.disruption import BUDGETS
from slipway.local.apiserver.objects import (
    Json,
    clone,
    format_time,
    is_deleting,
    mapping,
    metadata,
    name_of,
    uid_of,
)
from slipway.local.apiserver.options import DeleteOptions, read_delete_options
from slipway.local.apiserver.status import StatusError, bad_request, conflict, success

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore

_PODS = "pods"
_MANY = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


def evict(core: "ClusterCore", namespace: str, name: str, eviction: Json, *, dry_run: bool) -> Json:
    """Evict a pod and return a Status. Raises: StatusError 400, 404, 409, 429, 500."""
    if name_of(eviction) != name:
        raise bad_request("name in URL does not match name in Eviction object")
    options = read_delete_options(mapping(eviction, "deleteOptions"))
    options = msgspec.structs.replace(options, dry_run=options.dry_run or dry_run)
    pod = core.get(_PODS, namespace, name)
    if disruption.ignores_budgets(pod):
        settled = mapping(pod, "status").get("phase") in pods.FINISHED_PHASES or is_deleting(pod)
        _let_go(core, pod, options if settled else _fenced(options, pod))
        return success(code=201)
    budgets = [record.obj for record in core.store.scan(BUDGETS, namespace) if disruption.guards(record.obj, pod)]
    if len(budgets) > 1:
        raise StatusError(500, "", _MANY)
    if budgets and disruption.is_unready_and_evictable(budgets[0], pod):
        options = _fenced(options, pod)
    elif budgets:
        status = disruption.spend(budgets[0], pod, core.clock())
        if not options.dry_run:
            _check(pod, options)
            core.commit_update(core.kind(BUDGETS), {**clone(budgets[0]), "status": status})
    _let_go(core, pod, options)
    return success(code=201)


def _let_go(core: "ClusterCore", pod: Json, options: DeleteOptions) -> None:
    if not options.dry_run:
        _check(pod, options)
        marked = disruption.disrupted(pod, "EvictionByEvictionAPI", "Eviction API: evicting", format_time(core.clock()))
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
