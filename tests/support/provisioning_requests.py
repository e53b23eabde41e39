"""The definition of ProvisioningRequest for tests: the fields that Slipway uses, with their published names and checks.

Written from the documented API of autoscaling.x-k8s.io/v1. Fields that Slipway neither writes nor reads are left out.
"""

from typing import Any

_NAME = {
    "type": "string",
    "maxLength": 253,
    "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
_CONDITION: dict[str, Any] = {
    "type": "object",
    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    "properties": {
        "type": {"type": "string", "maxLength": 316},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
        "message": {"type": "string", "maxLength": 32768},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
    },
}
_POD_SET: dict[str, Any] = {
    "type": "object",
    "required": ["count", "podTemplateRef"],
    "properties": {
        "count": {"type": "integer", "format": "int32", "minimum": 1},
        "podTemplateRef": {"type": "object", "required": ["name"], "properties": {"name": _NAME}},
    },
}
_SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["podSets", "provisioningClassName"],
    "properties": {
        "provisioningClassName": _NAME,
        "parameters": {
            "type": "object",
            "maxProperties": 100,
            "additionalProperties": {"type": "string", "maxLength": 255},
        },
        "podSets": {"type": "array", "minItems": 1, "maxItems": 32, "items": _POD_SET},
    },
}
_STATUS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "conditions": {
            "type": "array",
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        }
    },
}
IMMUTABLE = {"rule": "self == oldSelf", "message": "Value is immutable"}


def definition(*, with_rules: bool) -> dict[str, Any]:
    """The CustomResourceDefinition; `with_rules`: with the rules that only a real API server can evaluate."""
    spec = _SPEC
    if with_rules:
        fields = {
            name: {**field, "x-kubernetes-validations": [IMMUTABLE]} for name, field in _SPEC["properties"].items()
        }
        spec = {**_SPEC, "properties": fields}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "provisioningrequests.autoscaling.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
        },
        "spec": {
            "group": "autoscaling.x-k8s.io",
            "scope": "Namespaced",
            "names": {
                "kind": "ProvisioningRequest",
                "listKind": "ProvisioningRequestList",
                "plural": "provisioningrequests",
                "singular": "provisioningrequest",
                "shortNames": ["provreq", "provreqs"],
            },
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": spec,
                                "status": _STATUS,
                            },
                        }
                    },
                }
            ],
        },
    }


def a_condition(type_: str, status: str, reason: str, message: str, at: str) -> dict[str, Any]:
    """A condition as the Cluster Autoscaler sets it."""
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}
