"""The roles and priority classes of a new cluster, and aggregated roles, which are the union of other roles.

Owns a table, its bootstrap, and the controller step that updates aggregated roles. Invariant: bootstrap never changes
an existing role.

Source: plugin/pkg/auth/authorizer/rbac/bootstrappolicy (names and permissions, v1.37; the roles of nodes and
controllers are left out, because no user has them here).
"""

from typing import TYPE_CHECKING, Any

from slipway.local.apiserver.admission import SYSTEM_PRIORITIES
from slipway.local.apiserver.identity import AUTHENTICATED, MASTERS, UNAUTHENTICATED
from slipway.local.apiserver.objects import Json, clone, listing, mapping, maps, metadata, name_of
from slipway.local.apiserver.podadmission import PRIORITIES
from slipway.local.apiserver.rbac import CLUSTER_BINDINGS, CLUSTER_ROLES, GROUP, union
from slipway.local.apiserver.selectors import selects

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore

_READ = ("get", "list", "watch")
_WRITE = ("create", "update", "patch", "delete", "deletecollection")
_WORKLOADS = (
    *("daemonsets", "deployments", "deployments/scale", "replicasets", "replicasets/scale"),
    *("statefulsets", "statefulsets/scale"),
)
_HEALTH = ("/livez", "/readyz", "/healthz", "/version", "/version/")
_API = ("/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*")
_LABEL = {"kubernetes.io/bootstrapping": "rbac-defaults"}


def _rule(verbs: tuple[str, ...], group: str, *resources: str) -> Json:
    return {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)}


def _paths(*paths: str, verb: str = "get") -> Json:
    return {"verbs": [verb], "nonResourceURLs": list(paths)}


_PLAIN: dict[str, list[Json]] = {
    "cluster-admin": [_rule(("*",), "*", "*"), _paths("*", verb="*")],
    "system:discovery": [_paths(*_HEALTH, *_API)],
    "system:public-info-viewer": [_paths(*_HEALTH)],
    "system:monitoring": [_paths("/metrics", "/metrics/slis", *_HEALTH[:3], "/livez/*", "/readyz/*", "/healthz/*")],
    "system:basic-user": [
        _rule(("create",), "authorization.k8s.io", "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
        _rule(("create",), "authentication.k8s.io", "selfsubjectreviews"),
    ],
    "system:auth-delegator": [
        _rule(("create",), "authentication.k8s.io", "tokenreviews"),
        _rule(("create",), "authorization.k8s.io", "subjectaccessreviews"),
    ],
}
_PARTS: dict[str, list[Json]] = {
    "admin": [
        _rule(("create",), "authorization.k8s.io", "localsubjectaccessreviews"),
        _rule((*_READ, *_WRITE), GROUP, "roles", "rolebindings"),
    ],
    "edit": [
        _rule(_READ, "", "pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "secrets", "services/proxy"),
        _rule(("impersonate",), "", "serviceaccounts"),
        _rule(_WRITE, "", "pods", "pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "serviceaccounts"),
        _rule(_WRITE, "", "services", "services/proxy", "persistentvolumeclaims", "configmaps", "secrets", "events"),
        _rule(("create",), "", "pods/eviction", "serviceaccounts/token"),
        _rule(_WRITE, "events.k8s.io", "events"),
        _rule(_WRITE, "apps", *_WORKLOADS),
        _rule(_WRITE, "autoscaling", "horizontalpodautoscalers"),
        _rule(_WRITE, "batch", "jobs", "cronjobs"),
        _rule(_WRITE, "policy", "poddisruptionbudgets"),
        _rule(_WRITE, "networking.k8s.io", "networkpolicies", "ingresses"),
        _rule((*_READ, *_WRITE), "coordination.k8s.io", "leases"),
    ],
    "view": [
        _rule(_READ, "", "pods", "serviceaccounts", "services", "services/status", "endpoints", "configmaps", "events"),
        _rule(_READ, "", "persistentvolumeclaims", "persistentvolumeclaims/status", "limitranges", "resourcequotas"),
        _rule(_READ, "", "bindings", "pods/status", "resourcequotas/status", "namespaces/status", "pods/log"),
        _rule(_READ, "", "namespaces"),
        _rule(_READ, "events.k8s.io", "events"),
        _rule(_READ, "discovery.k8s.io", "endpointslices"),
        _rule(_READ, "apps", "controllerrevisions", *_WORKLOADS, "deployments/status", "replicasets/status"),
        _rule(_READ, "autoscaling", "horizontalpodautoscalers", "horizontalpodautoscalers/status"),
        _rule(_READ, "batch", "jobs", "jobs/status", "cronjobs", "cronjobs/status"),
        _rule(_READ, "policy", "poddisruptionbudgets", "poddisruptionbudgets/status"),
        _rule(_READ, "networking.k8s.io", "networkpolicies", "ingresses", "ingresses/status"),
    ],
}
_ABOVE = {"view": "edit", "edit": "admin"}
_BINDINGS = {
    "cluster-admin": (MASTERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:monitoring": ("system:monitoring",),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
}


def bootstrap(core: "ClusterCore") -> None:
    """Create the missing roles, bindings and priority classes."""
    for name, rules in _PLAIN.items():
        _create(core, CLUSTER_ROLES, _role(name, {}, rules=rules))
    for part, rules in _PARTS.items():
        label: Json = {_aggregate_to(part): "true"}
        above: Json = {_aggregate_to(_ABOVE[part]): "true"} if part in _ABOVE else {}
        _create(core, CLUSTER_ROLES, _role(f"system:aggregate-to-{part}", label, rules=rules))
        selection = {"clusterRoleSelectors": [{"matchLabels": label}]}
        _create(core, CLUSTER_ROLES, _role(part, above, rules=[], aggregationRule=selection))
    for _ in _PARTS:
        aggregate(core)
    for name, value in SYSTEM_PRIORITIES.items():
        _create(core, PRIORITIES, {"metadata": {"name": name}, "value": value})
    for name, groups in _BINDINGS.items():
        reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
        subjects = [{"apiGroup": GROUP, "kind": "Group", "name": group} for group in groups]
        meta = {"name": name, "labels": dict(_LABEL)}
        _create(core, CLUSTER_BINDINGS, {"metadata": meta, "roleRef": reference, "subjects": subjects})


def aggregate(core: "ClusterCore") -> None:
    """Set the rules of each aggregated role to the union of the rules of the roles that it selects."""
    roles = [record.obj for record in core.store.scan(CLUSTER_ROLES)]
    for role in roles:
        selectors = maps(listing(mapping(role, "aggregationRule"), "clusterRoleSelectors"))
        if not selectors:
            continue
        chosen = [
            other
            for other in roles
            if other is not role
            and any(selects(selector, mapping(metadata(other), "labels")) for selector in selectors)
        ]
        rules = union(chosen)
        if rules != (role.get("rules") or []):
            core.commit_update(core.kind(CLUSTER_ROLES), {**clone(role), "rules": rules})


def _role(name: str, labels: Json, **content: Any) -> Json:
    return {"metadata": {"name": name, "labels": {**_LABEL, **labels}}, **content}


def _create(core: "ClusterCore", resource: str, obj: Json) -> None:
    if core.store.find(resource, "", name_of(obj)) is None:
        core.create(resource, "", obj)


def _aggregate_to(part: str) -> str:
    return f"{GROUP}/aggregate-to-{part}"
