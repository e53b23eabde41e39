"""The server's documents that belong to no object: health, version, discovery, OpenAPI. Pure functions of the registry.

Discovery lists the groups, versions and resources that the server serves, in the old form (one document per group
version) and the aggregated form.

OpenAPI v3 documents, one per group version, are what kubectl uses to validate, apply and explain. A custom kind appears
with its own schema. A built-in kind appears with the names and types of the table of fields, without descriptions. The
registry caches documents until a kind changes.
"""

import hashlib
from typing import Any

import msgspec

from slipway.local.apiserver import answers
from slipway.local.apiserver.answers import Call, HttpAnswer
from slipway.local.apiserver.fields.shapes import BuiltinShapes, builtin_shapes
from slipway.local.apiserver.objects import Json, clone, mapping
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


def group_document(registry: KindRegistry, name: str) -> Json | None:
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


_META = "meta.ObjectMeta"
_QUERY = ("dryRun", "fieldManager", "fieldValidation", "force")
_PREFIX = "#/components/schemas/"
_PACKAGES = {
    "meta": "io.k8s.apimachinery.pkg.apis.meta.v1",
    "apiextensions": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
    "autoscaling": "io.k8s.api.autoscaling.v2",
    "scaling": "io.k8s.api.autoscaling.v1",
}
_SCALARS: dict[str, Json] = {
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "int": {"type": "integer", "format": "int64"},
    "bytes": {"type": "string", "format": "byte"},
    "Time": {"type": "string", "format": "date-time"},
    "MicroTime": {"type": "string", "format": "date-time"},
    "Quantity": {"type": "string"},
    "IntOrString": {"type": "string", "format": "int-or-string"},
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


def openapi_index(registry: KindRegistry) -> Json:
    """Return the list of documents. The URL of each document changes with its content."""
    paths: Json = {}
    for group, versions in versions_of(registry).items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(openapi_document(registry, group, version)).hexdigest()[:32].upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def openapi_document(registry: KindRegistry, group: str, version: str) -> bytes:
    """Return the encoded document of one group version."""
    path = f"{group}/{version}"
    if path not in registry.documents:
        registry.documents[path] = msgspec.json.encode(_document(registry, group, version))
    return registry.documents[path]


def _document(registry: KindRegistry, group: str, version: str) -> Json:
    table = builtin_shapes()
    schemas: Json = {}
    paths: Json = {}
    _describe(table, _META, schemas)
    for kind in registry.kinds():
        if (kind.group, kind.version) == (group, version):
            schemas[_schema_name(kind)] = _custom(kind) if kind.is_custom else _builtin(table, kind, schemas)
            paths[_path(kind)] = _operations(kind)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.37.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schema_name(kind: ResourceKind) -> str:
    struct = "" if kind.is_custom else builtin_shapes().struct_of_kind(kind.api_version, kind.kind)
    if struct:
        return _public_name(struct)
    prefix = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{prefix}.{kind.version}.{kind.kind}"


def _builtin(table: BuiltinShapes, kind: ResourceKind, schemas: Json) -> Json:
    struct = table.struct_of_kind(kind.api_version, kind.kind)
    if struct:
        _describe(table, struct, schemas)
    schema: Json = schemas.get(_public_name(struct), {"type": "object", "properties": {}})
    return {**schema, "x-kubernetes-group-version-kind": [_gvk(kind)]}


def _describe(table: BuiltinShapes, struct: str, schemas: Json) -> None:
    """Add the schema of a struct, and of all structs that it refers to."""
    name = _public_name(struct)
    if name in schemas:
        return
    properties: Json = {}
    schemas[name] = {"type": "object", "properties": properties}
    for field, entry in table.entries(struct).items():
        text: str = entry[0]
        marks: dict[str, Any] = entry[1] if len(entry) > 1 else {}
        schema = _type(table, text, schemas)
        if marks.get("list"):
            schema["x-kubernetes-list-type"] = marks["list"]
            if marks["list"] == "map":
                schema["x-kubernetes-list-map-keys"] = marks.get("keys", [])
        if marks.get("patch"):
            schema["x-kubernetes-patch-strategy"] = marks["patch"]
        if marks.get("key"):
            schema["x-kubernetes-patch-merge-key"] = marks["key"]
        properties[field] = schema


def _type(table: BuiltinShapes, text: str, schemas: Json) -> Json:
    bare = text.lstrip("*")
    if bare.startswith("[]"):
        return {"type": "array", "items": _type(table, bare[2:], schemas)}
    if bare.startswith("map[string]"):
        return {"type": "object", "additionalProperties": _type(table, bare.removeprefix("map[string]"), schemas)}
    base = table.scalar(bare)
    if base in _SCALARS:
        return dict(_SCALARS[base])
    if base == "string" or "." not in base or base.startswith("types."):
        return {"type": "string"}
    _describe(table, base, schemas)
    return {"allOf": [{"$ref": _PREFIX + _public_name(base)}]}


def _public_name(struct: str) -> str:
    package, _, name = struct.partition(".")
    return f"{_PACKAGES.get(package, f'io.k8s.api.{package}.v1')}.{name}"


def _custom(kind: ResourceKind) -> Json:
    schema: Json = clone(kind.schema) if kind.schema else {"type": "object", "properties": {}}
    properties: Json = schema.setdefault("properties", {})
    properties.setdefault("apiVersion", {"type": "string"})
    properties.setdefault("kind", {"type": "string"})
    properties["metadata"] = {
        "description": mapping(properties, "metadata").get("description", "Standard object's metadata."),
        "allOf": [{"$ref": _PREFIX + _public_name(_META)}],
    }
    schema["x-kubernetes-group-version-kind"] = [_gvk(kind)]
    return schema


def _path(kind: ResourceKind) -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    scope = "/namespaces/{namespace}" if kind.namespaced else ""
    return f"{root}{scope}/{kind.plural}/{{name}}"


def _operations(kind: ResourceKind) -> Json:
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _QUERY]
    reference = {"$ref": _PREFIX + _schema_name(kind)}
    content = {"application/json": {"schema": reference}}
    operations: Json = {}
    for method, action in (("get", "get"), ("put", "put"), ("patch", "patch"), ("delete", "delete")):
        operations[method] = {
            "operationId": f"{method}{kind.kind}",
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _gvk(kind),
            "parameters": parameters,
            "responses": {"200": {"description": "OK", "content": content}},
        }
    return operations


def _gvk(kind: ResourceKind) -> Json:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


HEALTH = frozenset({"/livez", "/readyz", "/healthz"})
_VERSION: Json = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.0+slipway",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "local",
}


def find(registry: KindRegistry, call: Call) -> HttpAnswer | None:
    """Return the document at the call's path, or None when no document has this path."""
    path = call.path.rstrip("/")
    if path in HEALTH:
        return answers.text("ok")
    if call.method != "GET":
        return None
    if path == "/version":
        return answers.json(_VERSION)
    if path in ("/api", "/apis"):
        if "as=APIGroupDiscoveryList" in call.accept and "v=v2" in call.accept:
            document = aggregated(registry, is_core=path == "/api")
            return answers.json(document, content_type=AGGREGATED)
        return answers.json(core_versions() if path == "/api" else group_list(registry))
    if path == "/openapi/v3":
        return answers.json(openapi_index(registry))
    parts = path.strip("/").split("/")
    if path.startswith("/openapi/v3/"):
        group, version = ("", parts[-1]) if parts[2] == "api" else (parts[-2], parts[-1])
        if version not in versions_of(registry).get(group, ()):
            return None
        return HttpAnswer(200, openapi_document(registry, group, version))
    document = None
    if parts[0] == "api" and len(parts) == 2:
        document = resource_list(registry, "", parts[1])
    elif parts[0] == "apis" and len(parts) == 2:
        document = group_document(registry, parts[1])
    elif parts[0] == "apis" and len(parts) == 3:
        document = resource_list(registry, parts[1], parts[2])
    return answers.json(document) if document is not None else None
