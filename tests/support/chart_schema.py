"""`python -m tests.support.chart_schema FILE`: what the chart's values may be, as JSON Schema.

Owns the shape of the values. The settings of the services come from their own structs, with bounds and descriptions;
the specs of pools and queues from the custom resources. Everything is closed: what is not listed is refused.
It lives among the tests because it may import every service at once, which nothing in the product may.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from slipway.api.settings import Settings as Api
from slipway.crd.schema import crd_manifests
from slipway.model.duration import DURATION_PATTERN
from slipway.podworker.settings import Settings as Podworker
from slipway.runtime.settings import CommonSettings
from slipway.scheduler.settings import Settings as Scheduler
from slipway.watcher.settings import Settings as Watcher

Schema = dict[str, Any]

SERVICES: Mapping[str, type[CommonSettings]] = {
    "api": Api,
    "scheduler": Scheduler,
    "podworker": Podworker,
    "watcher": Watcher,
}
OWNED: Mapping[str, str] = {
    "redis_url": "comes from a Secret: valkey, or externalRedis",
    "namespace": "is the pod's own",
    "kubeconfig": "in a pod there is none: its account is used",
    "identity": "must differ between replicas: the name of the pod and the id of the process",
    "worker_identity": "must differ between replicas: the name of the pod and the id of the process",
}
"""Settings that no value sets, and why."""

_LISTEN = r"^\S*:[0-9]{1,5}$"
_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_KEPT = frozenset({"type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"})


def camel(field: str) -> str:
    """The spelling of a setting among the values: `tick_min_ms` is `tickMinMs`."""
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


def schema() -> Schema:
    """Of all values."""
    closed = _closed(
        {
            "image": _image("The one image of all services, without a registry: nodes know where to look."),
            "nameOverride": _text("Instead of the chart's name, in labels.", pattern=rf"^$|{_NAME}"),
            "fullnameOverride": _text("Instead of the release's name, in names.", pattern=rf"^$|{_NAME}"),
            "labels": _map("More labels on every object."),
            "crds": _closed(
                {
                    "enabled": _flag("Install and upgrade the custom resource definitions."),
                    "keep": _flag("Leave them, and with them every allocation, when the release is uninstalled."),
                },
                "The custom resource definitions.",
            ),
            "userRoles": _closed(
                {"enabled": _flag("Let the built-in roles `view` and `edit` see and launch where they are bound.")},
                "What people may do.",
            ),
            "setup": _setup(),
            "audit": _audit(),
            "valkey": _valkey(),
            "externalRedis": _closed(
                {
                    "url": _text(
                        "redis://, redis+cluster:// or redis+sentinel://, with rediss for TLS; goes into a Secret.",
                        pattern=r"^$|^rediss?(\+(cluster|sentinel))?://",
                    ),
                    "existingSecret": _text("A Secret of the release's namespace that holds the URL."),
                    "existingSecretKey": _text("Its key."),
                },
                "A Redis that is there already.",
            ),
            "podSecurityContext": _security("Of every pod.", _POD_SECURITY),
            "containerSecurityContext": _security("Of every container.", _CONTAINER_SECURITY),
            "settings": _closed(_settings(CommonSettings, ("listen",)), "Settings of all services."),
            **{name: _service(name, struct) for name, struct in SERVICES.items()},
            "global": {"type": "object", "description": "What Helm itself puts there for charts of charts."},
        },
        "",
    )
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the Slipway chart", **closed}


def text() -> str:
    """The file."""
    return json.dumps(schema(), indent=2) + "\n"


def own_fields(struct: type[CommonSettings]) -> list[str]:
    """The settings that a service adds to the common ones, or has another default for, and that values set."""
    common = {info.name: info for info in msgspec.structs.fields(CommonSettings)}
    fields = [info for info in msgspec.structs.fields(struct) if info.name not in OWNED]
    return [info.name for info in fields if info.name not in common or info.default != common[info.name].default]


def common_fields() -> list[str]:
    """The settings that all services share and that values set; where each listens is its own."""
    return [info.name for info in msgspec.structs.fields(CommonSettings) if info.name not in {*OWNED, "listen"}]


# --- the parts --------------------------------------------------------------------------------------------------------


def _service(name: str, struct: type[CommonSettings]) -> Schema:
    parts = {
        "replicas": {"type": "integer", "minimum": 0, "description": "How many pods."},
        "settings": _closed(_settings(struct), f"Settings of slipway-{name}, and its own values of the common ones."),
        "resources": _resources(),
        "podDisruptionBudget": _closed(
            {
                "enabled": _flag("Made only for more than one replica."),
                "maxUnavailable": _count_or_share("How many may be away at once."),
            },
            "How many pods a drain of nodes may take.",
        ),
        "serviceAccountAnnotations": _map("On the account."),
        "podLabels": _map("More labels on its pods."),
        "podAnnotations": _map("On its pods."),
        **_placement(),
        "topologySpreadConstraints": {
            "type": "array",
            "description": "Instead of a soft spread over nodes.",
            "items": _keyed(_SPREAD, required=("maxSkew", "topologyKey", "whenUnsatisfiable")),
        },
        "extraEnv": {
            "type": "array",
            "description": "More environment, such as a proxy; settings belong under settings.",
            "items": _closed(
                {
                    "name": {"type": "string", "not": {"pattern": "^SLIPWAY_"}},
                    "value": {"type": "string"},
                    "valueFrom": {"type": "object"},
                },
                "",
                required=("name",),
            ),
        },
    }
    return _closed(parts, f"The {name} service.")


def _setup() -> Schema:
    specs = {item["spec"]["names"]["kind"]: item for item in crd_manifests()}
    return _closed(
        {
            "enabled": _flag("Make what is missing, by a Job, and change nothing that is there."),
            "pools": _named("ResourcePools: name to spec.", _spec_of(specs["ResourcePool"])),
            "queues": _named("Queues: name to spec.", _spec_of(specs["Queue"])),
            "workspaces": {
                "type": "array",
                "description": "Namespaces to label as workspaces; they must exist.",
                "items": {"type": "string", "pattern": _NAME, "maxLength": 63},
            },
            "resources": _resources(),
            **_placement(),
        },
        "What there must be before anything can be launched.",
    )


def _audit() -> Schema:
    return _closed(
        {
            "enabled": _flag("Run `slipway audit` for ever, as a pod of its own; it writes nothing."),
            "every": _text("Between the end of one audit and the next: 5m.", pattern=DURATION_PATTERN),
            "watch": _text("How long each watches before it judges: 1m; 0s: what is there.", pattern=DURATION_PATTERN),
            "resources": _resources(),
            **_placement(),
        },
        "The invariants, checked over and over, as gauges.",
    )


def _valkey() -> Schema:
    return _closed(
        {
            "enabled": _flag("Run one Valkey, without a disk: what is in it can be made again."),
            "image": _image("", is_ours=False),
            "maxMemory": _text("Its maxmemory.", pattern=r"^[0-9]+(b|k|kb|m|mb|g|gb)?$"),
            "auth": _closed(
                {
                    "password": _text("Empty: made up at the install and kept.", pattern=r'^[^"\\\s]*$'),
                    "existingSecret": _text("A Secret with the keys password and url, instead of one of ours."),
                },
                "How the services authenticate.",
            ),
            "resources": _resources(),
            **_placement(),
        },
        "A Valkey of the release's own.",
    )


def _image(description: str, *, is_ours: bool = True) -> Schema:
    parts: Schema = {
        "repository": {"type": "string", "minLength": 1, "description": "Name, with a registry or without."},
        "tag": _text("Empty: the version of the application.")
        if is_ours
        else {**_text("Its version."), "minLength": 1},
        "digest": _text("Wins over the tag.", pattern=r"^$|^sha256:[0-9a-f]{64}$"),
        "pullPolicy": {"type": "string", "enum": ["Always", "IfNotPresent", "Never"], "description": "When to pull."},
    }
    if is_ours:
        parts["pullSecrets"] = {
            "type": "array",
            "description": "Names of Secrets of the release's namespace.",
            "items": {"type": "string"},
        }
    return _closed(parts, description)


def _settings(struct: type[CommonSettings], without: Sequence[str] = ()) -> Schema:
    """The settings of a struct, with the bounds and words that it gives them."""
    definitions = msgspec.json.schema(struct)["$defs"]
    found = cast(Schema, definitions[struct.__name__]["properties"])
    properties: Schema = {}
    for field, described in found.items():
        if field not in OWNED and field not in without:
            properties[camel(field)] = {key: value for key, value in described.items() if key != "default"}
            if field.endswith("listen"):
                properties[camel(field)]["pattern"] = _LISTEN if field == "listen" else rf"^$|{_LISTEN}"
    return properties


def _placement() -> Schema:
    return {
        "priorityClassName": _text("Of its pods."),
        "nodeSelector": _map("Where its pods may run."),
        "tolerations": {"type": "array", "description": "Which taints they bear.", "items": _keyed(_TOLERATION)},
        "affinity": {**_keyed(_AFFINITY), "description": "Which nodes and neighbours they like."},
    }


_TOLERATION = {"key": "string", "operator": "string", "value": "string", "effect": "string"} | {
    "tolerationSeconds": "integer"
}
_AFFINITY = {"nodeAffinity": "object", "podAffinity": "object", "podAntiAffinity": "object"}
_SPREAD = {
    "maxSkew": "integer",
    "minDomains": "integer",
    "topologyKey": "string",
    "whenUnsatisfiable": "string",
    "labelSelector": "object",
    "matchLabelKeys": "array",
    "nodeAffinityPolicy": "string",
    "nodeTaintsPolicy": "string",
}
_POD_SECURITY = {
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
_CONTAINER_SECURITY = {
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


def _security(description: str, keys: Mapping[str, str]) -> Schema:
    return {**_keyed(keys), "description": description}


def _resources() -> Schema:
    amounts = _named("", {"type": ["string", "number"]})
    return _closed({"requests": amounts, "limits": amounts}, "Requests and limits.")


def _spec_of(definition: Schema) -> Schema:
    return _strict(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])


def _strict(found: Schema) -> Schema:
    """A structural schema of Kubernetes as JSON Schema, closed: a typo would be dropped silently there."""
    strict: Schema = {key: value for key, value in found.items() if key in _KEPT}
    if "properties" in found:
        strict["properties"] = {name: _strict(part) for name, part in found["properties"].items()}
        strict["additionalProperties"] = False
    elif isinstance(found.get("additionalProperties"), dict):
        strict["additionalProperties"] = _strict(found["additionalProperties"])
    if "items" in found:
        strict["items"] = _strict(found["items"])
    return strict


def _closed(properties: Schema, description: str, *, required: Sequence[str] = ()) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if description:
        made["description"] = description
    return made | ({"required": list(required)} if required else {})


def _keyed(keys: Mapping[str, str], *, required: Sequence[str] = ()) -> Schema:
    return _closed({key: {"type": kind} for key, kind in keys.items()}, "", required=required)


def _named(description: str, part: Schema) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": part}
    return made | ({"description": description} if description else {})


def _map(description: str) -> Schema:
    return _named(description, {"type": "string"})


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _text(description: str, pattern: str = "") -> Schema:
    return {"type": "string", "description": description} | ({"pattern": pattern} if pattern else {})


def _count_or_share(description: str) -> Schema:
    return {"type": ["integer", "string"], "pattern": "^[0-9]+%$", "minimum": 0, "description": description}


def main(arguments: Sequence[str]) -> int:
    """Writes the file."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tests.support.chart_schema FILE\n")
        return 2
    Path(arguments[0]).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
