"""OpenAPI v3 documents: as much as kubectl needs to validate, apply and explain.

Owns one document per group version. Custom kinds carry their schema; built-in kinds only their outline. Pure.
"""

import hashlib

import msgspec

from slipway.local.apiserver.discovery import versions_of
from slipway.local.apiserver.objects import Json, clone, mapping
from slipway.local.apiserver.registry import Registry, ResourceKind

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_QUERY = ("dryRun", "fieldManager", "fieldValidation", "force")


def index(registry: Registry) -> Json:
    """The list of documents, each under a URL that changes with its content."""
    paths: Json = {}
    for group, versions in versions_of(registry).items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            content = msgspec.json.encode(document(registry, group, version))
            digest = hashlib.sha256(content).hexdigest()[:32].upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document(registry: Registry, group: str, version: str) -> Json:
    schemas: Json = {_META: {"type": "object", "description": "ObjectMeta is metadata that all objects have."}}
    paths: Json = {}
    for kind in registry.kinds():
        if (kind.group, kind.version) == (group, version):
            schemas[_schema_name(kind)] = _schema(kind)
            paths[_path(kind)] = _operations(kind)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schema_name(kind: ResourceKind) -> str:
    prefix = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{prefix}.{kind.version}.{kind.kind}"


def _schema(kind: ResourceKind) -> Json:
    schema: Json = clone(kind.schema) if kind.schema else {"type": "object", "properties": {}}
    properties: Json = schema.setdefault("properties", {})
    properties.setdefault("apiVersion", {"type": "string"})
    properties.setdefault("kind", {"type": "string"})
    properties["metadata"] = {
        "description": mapping(properties, "metadata").get("description", "Standard object's metadata."),
        "allOf": [{"$ref": f"#/components/schemas/{_META}"}],
    }
    schema["x-kubernetes-group-version-kind"] = [_gvk(kind)]
    return schema


def _path(kind: ResourceKind) -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    scope = "/namespaces/{namespace}" if kind.namespaced else ""
    return f"{root}{scope}/{kind.plural}/{{name}}"


def _operations(kind: ResourceKind) -> Json:
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _QUERY]
    reference = {"$ref": f"#/components/schemas/{_schema_name(kind)}"}
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
