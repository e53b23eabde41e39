"""The objects that the suite creates: a pod, a config map, and a custom kind with its definition."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

Json = dict[str, Any]

GROWS = "self.size >= oldSelf.size"
TWINS: Mapping[str, Callable[[Any, Any], bool]] = {
    GROWS: lambda now, old: now["size"] >= old["size"],
    "self.low <= self.high": lambda now, _: now["low"] <= now["high"],
    "size(self.metadata.name) <= 40": lambda now, _: len(now["metadata"]["name"]) <= 40,
}
GROUP, VERSION, PLURAL = "contract.slipway.dev", "v1", "widgets"
API_VERSION = f"{GROUP}/{VERSION}"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_SPEC: Json = {
    "type": "object",
    "required": ["size"],
    "x-kubernetes-validations": [{"rule": GROWS, "message": "a widget never shrinks"}],
    "properties": {
        "size": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 100},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8},
        "parts": {"type": "array", "maxItems": 3, "items": {"type": "string"}},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 9, "items": {"type": "string"}},
        "doors": {
            "type": "array",
            "maxItems": 9,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "wide": {"type": "boolean", "default": False}},
            },
        },
        "frame": {
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {
                "bars": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}, "length": {"type": "integer"}},
                    },
                },
                "height": {"type": "integer"},
            },
        },
        "port": {"x-kubernetes-int-or-string": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "note": {"type": "string", "nullable": True},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "range": {
            "type": "object",
            "required": ["low", "high"],
            "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.low <= self.high", "message": "low is above high"}],
        },
    },
}
_STATUS: Json = {
    "type": "object",
    "default": {"phase": "New"},
    "properties": {"phase": {"type": "string"}, "seen": {"type": "integer"}},
}


def definition(plural: str = PLURAL, kind: str = "Widget") -> Json:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "shortNames": [plural[:3]]},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "selectableFields": [{"jsonPath": ".status.phase"}, {"jsonPath": ".spec.color"}],
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {"spec": deepcopy(_SPEC), "status": deepcopy(_STATUS)},
                        }
                    },
                }
            ],
        },
    }


def a_widget(name: str = "w", **spec: Any) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": 1, **spec},
    }


def a_config(name: str = "c", data: dict[str, str] | None = None, **meta: Any) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": data or {}}


def a_pod(name: str = "p", meta: Json | None = None, **spec: Any) -> Json:
    """A pod that no scheduler of the cluster touches."""
    container = {"name": "main", "image": "example.invalid/none:1"}
    fixed: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "schedulerName": "nobody",
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **(meta or {})}, "spec": {**fixed, **spec}}


def owned_by(owner: Json, **extra: Any) -> Json:
    """An owner reference."""
    identity = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    return {**identity, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], **extra}
