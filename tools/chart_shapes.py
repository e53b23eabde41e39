"""The building blocks of the schema of the chart's values. Pure JSON Schema; knows no value of the chart.

Owns the form of a closed object, of a text and of objects in the form of Kubernetes. A key that is not listed is
refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

TOLERATION = {"key": "string", "operator": "string", "value": "string", "effect": "string"} | {
    "tolerationSeconds": "integer"
}
AFFINITY = {"nodeAffinity": "object", "podAffinity": "object", "podAntiAffinity": "object"}
SPREAD = {
    "maxSkew": "integer",
    "minDomains": "integer",
    "topologyKey": "string",
    "whenUnsatisfiable": "string",
    "labelSelector": "object",
    "matchLabelKeys": "array",
    "nodeAffinityPolicy": "string",
    "nodeTaintsPolicy": "string",
}
VOLUME = {
    "name": "string",
    "configMap": "object",
    "secret": "object",
    "projected": "object",
    "emptyDir": "object",
    "csi": "object",
    "persistentVolumeClaim": "object",
}
"""The kinds of volumes that Pod Security "restricted" allows and that are useful here."""
MOUNT = {"name": "string", "mountPath": "string", "subPath": "string", "readOnly": "boolean"}
HOST_ALIAS = {"ip": "string", "hostnames": "array"}
DNS = {"nameservers": "array", "searches": "array", "options": "array"}
PROBE = {
    "httpGet": "object",
    "exec": "object",
    "tcpSocket": "object",
    "grpc": "object",
    "initialDelaySeconds": "integer",
    "periodSeconds": "integer",
    "timeoutSeconds": "integer",
    "failureThreshold": "integer",
    "successThreshold": "integer",
    "terminationGracePeriodSeconds": "integer",
}
PEER = {"podSelector": "object", "namespaceSelector": "object", "ipBlock": "object"}
POD_SECURITY = {
    "runAsNonRoot": "boolean",
    "runAsUser": "integer",
    "runAsGroup": "integer",
    "fsGroup": "integer",
    "fsGroupChangePolicy": "string",
    "supplementalGroups": "array",
    "seccompProfile": "object",
    "seLinuxOptions": "object",
    "appArmorProfile": "object",
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": "boolean",
    "readOnlyRootFilesystem": "boolean",
    "runAsNonRoot": "boolean",
    "runAsUser": "integer",
    "runAsGroup": "integer",
    "capabilities": "object",
    "seccompProfile": "object",
    "seLinuxOptions": "object",
    "appArmorProfile": "object",
}


def image(description: str, *, is_ours: bool = True) -> Schema:
    """Return the schema of an image's name."""
    parts: Schema = {
        "registry": text(
            "Registry host, with a path if needed, in front of the name. Empty: global.imageRegistry, or the registry "
            "in the name."
        ),
        "repository": {
            "type": "string",
            "minLength": 1,
            "description": "Name of the image, with or without a registry.",
        },
        "tag": text("Tag of the image. Empty: the version of the application.")
        if is_ours
        else {**text("Tag of the image."), "minLength": 1},
        "digest": text(
            "Digest of the image; overrides the tag. Empty: the digest that the chart has for the tag (pinImages).",
            pattern=r"^$|^sha256:[0-9a-f]{64}$",
        ),
        "pullPolicy": {
            "type": "string",
            "enum": ["Always", "IfNotPresent", "Never"],
            "description": "When nodes pull the image.",
        },
    }
    if is_ours:
        parts["pullSecrets"] = pull_secrets("Additional imagePullSecrets.")
        parts["allowNoRegistry"] = flag(
            "Allow an install without a registry, because every node already has the image."
        )
    return closed(parts, description)


def pull_secrets(description: str) -> Schema:
    """Return the schema of the Secrets for pulling images: objects as in Kubernetes, or plain names."""
    return {
        "type": "array",
        "description": description,
        "items": {"anyOf": [{"type": "string", "minLength": 1}, keyed({"name": "string"}, required=("name",))]},
    }


def placement() -> Schema:
    """Return the schemas of where pods may run, and of their priority."""
    return {
        "priorityClassName": text("PriorityClass of the pods."),
        "nodeSelector": texts("Labels of the nodes on which the pods may run."),
        "tolerations": {"type": "array", "description": "Taints that the pods tolerate.", "items": keyed(TOLERATION)},
        "affinity": {**keyed(AFFINITY), "description": "Affinity of the pods to nodes and other pods."},
    }


def security(description: str, keys: Mapping[str, str]) -> Schema:
    """Return the schema of a security context."""
    return {**keyed(keys), "description": description}


def resources(description: str = "Requests and limits.") -> Schema:
    """Return the schema of requests and limits."""
    amounts = named("", {"type": ["string", "number"]})
    return closed({"requests": amounts, "limits": amounts}, description)


def closed(properties: Schema, description: str, *, required: Sequence[str] = ()) -> Schema:
    """Return the schema of an object with exactly these properties."""
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if description:
        made["description"] = description
    return made | ({"required": list(required)} if required else {})


def keyed(keys: Mapping[str, str], *, required: Sequence[str] = ()) -> Schema:
    """Return the schema of a closed object from the types of its keys."""
    return closed({key: {"type": kind} for key, kind in keys.items()}, "", required=required)


def named(description: str, part: Schema) -> Schema:
    """Return the schema of a map with any keys."""
    made: Schema = {"type": "object", "additionalProperties": part}
    return made | ({"description": description} if description else {})


def texts(description: str) -> Schema:
    """Return the schema of a map of texts."""
    return named(description, {"type": "string"})


def flag(description: str) -> Schema:
    """Return the schema of a boolean."""
    return {"type": "boolean", "description": description}


def text(description: str, pattern: str = "") -> Schema:
    """Return the schema of a text."""
    return {"type": "string", "description": description} | ({"pattern": pattern} if pattern else {})


def count_or_share(description: str) -> Schema:
    """Return the schema of a number or a percentage."""
    return {"type": ["integer", "string"], "pattern": "^[0-9]+%$", "minimum": 0, "description": description}
