"""OpenAPI v3 documents, which kubectl uses to validate, apply and explain.

Owns one document per group version. A custom kind appears with its own schema. A built-in kind appears with the names
and types of the table of fields, without descriptions. Pure; the registry caches documents until a kind changes.
"""

import hashlib
from typing import Any

import msgspec

from slipway.local.apiserver.discovery import versions_of
from slipway.local.apiserver.fields.shapes import BuiltinShapes, builtin_shapes
from slipway.local.apiserver.objects import Json, clone, mapping
from slipway.local.apiserver.registry import KindRegistry, ResourceKind

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


def index(registry: KindRegistry) -> Json:
    """Return the list of documents. The URL of each document changes with its content."""
    paths: Json = {}
    for group, versions in versions_of(registry).items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(document(registry, group, version)).hexdigest()[:32].upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document(registry: KindRegistry, group: str, version: str) -> bytes:
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
