"""Discovery documents: the groups, versions and resources that the server serves.

Owns both forms: the old form (one document per group version) and the aggregated form. Pure functions of the registry.
"""

from slipway.local.apiserver.objects import Json
from slipway.local.apiserver.registry import KindRegistry, ResourceKind

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_REVIEWS = {
    "authorization.k8s.io": (
        ("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        ("subjectaccessreviews", "SubjectAccessReview"),
        ("localsubjectaccessreviews", "LocalSubjectAccessReview"),
        ("selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    ),
    "authentication.k8s.io": (("tokenreviews", "TokenReview"), ("selfsubjectreviews", "SelfSubjectReview")),
}
CREATED_ONLY = frozenset({"binding", "eviction", "token"})
_SUBRESOURCES = {
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "exec": ("", "v1", "PodExecOptions"),
    "scale": ("autoscaling", "v1", "Scale"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
"""{subresource: (group, version, kind) of its body}, for subresources whose body is not the object itself."""


def versions_of(registry: KindRegistry) -> dict[str, list[str]]:
    """Return {group: its versions}; the name of the core group is empty."""
    groups: dict[str, list[str]] = {"": ["v1"]}
    for group in _REVIEWS:
        groups[group] = ["v1"]
    for kind in registry.kinds():
        found = groups.setdefault(kind.group, [])
        if kind.version not in found:
            found.append(kind.version)
    return groups


def core_versions() -> Json:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(registry: KindRegistry) -> Json:
    groups = [_group(name, versions) for name, versions in versions_of(registry).items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: KindRegistry, name: str) -> Json | None:
    versions = versions_of(registry).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions else None


def resource_list(registry: KindRegistry, group: str, version: str) -> Json | None:
    if version not in versions_of(registry).get(group, ()):
        return None
    found: list[Json] = []
    for kind in _kinds(registry, group, version):
        found.append(
            {
                "name": kind.plural,
                "singularName": kind.singular or kind.kind.lower(),
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": list(kind.verbs),
                "shortNames": list(kind.short_names),
                "categories": list(kind.categories),
            }
        )
        found += [
            {
                "name": f"{kind.plural}/{name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                **_taken(kind, name),
                "verbs": _subresource_verbs(name),
            }
            for name in subresources_of(kind)
        ]
    for plural, name in _REVIEWS.get(group, ()):
        local = plural.startswith("local")
        found.append({"name": plural, "singularName": "", "namespaced": local, "kind": name, "verbs": ["create"]})
    text = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": text, "resources": found}


def aggregated(registry: KindRegistry, *, is_core: bool) -> Json:
    items: list[Json] = []
    for name, versions in versions_of(registry).items():
        if (not name) is is_core:
            entries = [
                {
                    "version": version,
                    "resources": _aggregated_resources(registry, name, version),
                    "freshness": "Current",
                }
                for version in versions
            ]
            items.append({"metadata": {"name": name, "creationTimestamp": None}, "versions": entries})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def subresources_of(kind: ResourceKind) -> tuple[str, ...]:
    if kind.subresources:
        return kind.subresources
    return ("status",) if kind.strategy.has_status else ()


def _aggregated_resources(registry: KindRegistry, group: str, version: str) -> list[Json]:
    found: list[Json] = []
    for kind in _kinds(registry, group, version):
        own = {"group": group, "version": version, "kind": kind.kind}
        found.append(
            {
                "resource": kind.plural,
                "responseKind": own,
                "scope": "Namespaced" if kind.namespaced else "Cluster",
                "singularResource": kind.singular or kind.kind.lower(),
                "verbs": list(kind.verbs),
                "shortNames": list(kind.short_names),
                "categories": list(kind.categories),
                "subresources": [
                    {
                        "subresource": name,
                        "responseKind": {**own, **_taken(kind, name)},
                        "verbs": _subresource_verbs(name),
                    }
                    for name in subresources_of(kind)
                ],
            }
        )
    for plural, name in _REVIEWS.get(group, ()):
        response = {"group": group, "version": version, "kind": name}
        scope = "Namespaced" if plural.startswith("local") else "Cluster"
        found.append({"resource": plural, "responseKind": response, "scope": scope, "verbs": ["create"]})
    return found


def _kinds(registry: KindRegistry, group: str, version: str) -> list[ResourceKind]:
    return [kind for kind in registry.kinds() if (kind.group, kind.version) == (group, version)]


def _taken(kind: ResourceKind, subresource: str) -> Json:
    """Return the kind of a subresource's body, with group and version where they differ from the object's."""
    group, version, name = _SUBRESOURCES.get(subresource, ("", "", kind.kind))
    return {"group": group, "version": version, "kind": name} if group else {"kind": name}


def _subresource_verbs(name: str) -> list[str]:
    match name:
        case "status" | "scale":
            return ["get", "patch", "update"]
        case "log":
            return ["get"]
        case "exec":
            return ["create", "get"]
        case "finalize":
            return ["update"]
        case _:
            return ["create"]


def _group(name: str, versions: list[str]) -> Json:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}
