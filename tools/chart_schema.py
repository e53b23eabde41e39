"""`python -m tools.chart_schema FILE`: writes the JSON Schema of the chart's values.

Owns the shape of the values. The settings of the services come from their own structs, with bounds and descriptions.
The specs of pools and queues come from the custom resources. Every object is closed: a value that is not listed is
refused. The module is part of `tools`, because it imports every service at once, which no product code may do.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from slipway.api.settings import Settings as Api
from slipway.crd.schema import crd_manifests
from slipway.model.times import DURATION_PATTERN
from slipway.podworker.settings import Settings as Podworker
from slipway.runtime.settings import CommonSettings
from slipway.scheduler.settings import Settings as Scheduler
from slipway.watcher.settings import Settings as Watcher
from tools import chart_parts as parts
from tools import chart_shapes as shapes

Schema = dict[str, Any]

SERVICES: Mapping[str, type[CommonSettings]] = {
    "api": Api,
    "scheduler": Scheduler,
    "podworker": Podworker,
    "watcher": Watcher,
}
OWNED: Mapping[str, str] = {
    "redis_url": "comes from a Secret: valkey, or externalRedis",
    "redis_user": "is the account of each service: see valkey or externalRedis.accounts",
    "redis_password": "comes from a Secret",
    "redis_ca_file": "comes from a Secret: valkey, or externalRedis.caSecret",
    "namespace": "is the namespace of the pod",
    "webhook_namespace": "is named as the release's namespace, with -webhooks",
    "kubeconfig": "is not used: a pod uses its service account",
    "metrics_token_file": "is not used: in a cluster, a NetworkPolicy limits who can read the metrics",
    "workload_token_file": "is not used: in a cluster, a NetworkPolicy limits who can reach a pod",
    "identity": "must differ between replicas: the name of the pod and the id of the process",
    "worker_identity": "must differ between replicas: the name of the pod and the id of the process",
}
"""{setting that no value sets: why}"""

_LISTEN = r"^\S*:[0-9]{1,5}$"
_KEPT = frozenset({"type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"})


def camel(field: str) -> str:
    """Return the name of a setting in the values: `tick_min_ms` becomes `tickMinMs`."""
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


def schema() -> Schema:
    """Return the schema of all values."""
    whole = shapes.closed(
        {
            **_images(),
            "nameOverride": shapes.text("Name in labels, instead of the chart's name.", pattern=rf"^$|{shapes.NAME}"),
            "fullnameOverride": shapes.text(
                "Prefix of the names of objects, instead of the release's name.", pattern=rf"^$|{shapes.NAME}"
            ),
            "labels": shapes.texts("Additional labels on every object."),
            "crds": shapes.closed(
                {
                    "enabled": shapes.flag("Install and upgrade the custom resource definitions."),
                    "keep": shapes.flag("Keep them, and with them every allocation, when the release is uninstalled."),
                },
                "The custom resource definitions.",
            ),
            "userRoles": shapes.closed(
                {
                    "enabled": shapes.flag(
                        "Allow the built-in roles `view` and `edit` to see and launch allocations where they are bound."
                    )
                },
                "Permissions of users.",
            ),
            "setup": _setup(),
            "audit": _audit(),
            "valkey": _valkey(),
            "externalRedis": _external_redis(),
            "feedKeys": _feed_keys(),
            "podSecurityContext": shapes.security("Security context of every pod.", shapes.POD_SECURITY),
            "containerSecurityContext": shapes.security(
                "Security context of every container.", shapes.CONTAINER_SECURITY
            ),
            "settings": shapes.closed(_settings(CommonSettings, ("listen",)), "Settings of all services."),
            **parts.whole(),
            **{name: _service(name, struct) for name, struct in SERVICES.items()},
            "global": {
                "type": "object",
                "description": "Values that an umbrella chart shares with its charts; other keys are allowed. "
                "imageRegistry: the registry of every image without a registry in its name. imagePullSecrets: as "
                "above.",
                "patternProperties": {
                    "^imageRegistry$": {"type": "string"},
                    "^imagePullSecrets$": shapes.pull_secrets("Secrets with which every pod pulls its images."),
                },
            },
        },
        "",
    )
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the Slipway chart", **whole}


def _external_redis() -> Schema:
    return shapes.closed(
        {
            "url": shapes.text(
                "redis://, redis+cluster:// or redis+sentinel://, with rediss for TLS. The chart stores it in "
                "a Secret.",
                pattern=r"^$|^rediss?(\+(cluster|sentinel))?://",
            ),
            "existingSecret": shapes.text("A Secret in the release's namespace with the URL."),
            "existingSecretKey": shapes.text("Key of the URL in that Secret."),
            "caSecret": shapes.text(
                "A Secret with ca.crt, for TLS: the CA certificates that verify the server's certificate."
            ),
            "accounts": shapes.closed(
                {
                    "existingSecret": shapes.text(
                        "A Secret with the keys api, scheduler, podworker and watcher (and audit): the "
                        "password of each account. Empty: all services use the login in the URL."
                    ),
                    "userPrefix": shapes.text(
                        "Prefix of the users: the user of a service is this prefix and the service's name."
                    ),
                },
                "An account for each service; see docs/reference/redis-accounts.md.",
            ),
        },
        "An existing Redis.",
    )


def _feed_keys() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag(
                "Watchers sign the state of the cluster that they write into Redis, and schedulers reject entries "
                "without a signature."
            ),
            "existingSecret": shapes.text(
                "A Secret with files *.key of 32 bytes in URL-safe base64 each: all are accepted, the last in "
                "alphabetical order signs. Empty: the chart makes one at the install and keeps it at upgrades. `helm "
                "template` cannot read the cluster, so each rendering makes a new one."
            ),
        },
        "The keys of the cluster feed, for watchers and schedulers only. Not used without Redis.",
    )


def text() -> str:
    """Return the text of the file."""
    return json.dumps(schema(), indent=2) + "\n"


def own_fields(struct: type[CommonSettings]) -> list[str]:
    """Return the settings of a service that values set: its own ones, and common ones with another default."""
    common = {info.name: info for info in msgspec.structs.fields(CommonSettings)}
    fields = [info for info in msgspec.structs.fields(struct) if info.name not in OWNED]
    return [info.name for info in fields if info.name not in common or info.default != common[info.name].default]


def common_fields() -> list[str]:
    """Return the common settings that values set, except `listen`, which differs between the services."""
    return [info.name for info in msgspec.structs.fields(CommonSettings) if info.name not in {*OWNED, "listen"}]


# --- the parts --------------------------------------------------------------------------------------------------------


def _service(name: str, struct: type[CommonSettings]) -> Schema:
    own = {
        "replicas": {"type": "integer", "minimum": 0, "description": "Number of pods."},
        "settings": shapes.closed(
            _settings(struct), f"Settings of slipway-{name}, and its own values of the common ones."
        ),
        "resources": shapes.resources("Requests and limits; they override those of the size."),
        "podDisruptionBudget": shapes.closed(
            {
                "enabled": shapes.flag("Create a PodDisruptionBudget; only for more than one replica."),
                "maxUnavailable": shapes.count_or_share("Maximum number or share of pods that may be unavailable."),
            },
            "Limit on the pods that a drain of nodes may evict.",
        ),
        "drainDelayS": {
            "type": "integer",
            "minimum": 0,
            "maximum": 600,
            "description": "How long a pod continues before it receives the signal to end, until no new requests are "
            "sent to it.",
        },
        **parts.scaling(name),
        **parts.pod(),
    }
    return shapes.closed(own, f"The {name} service.")


def _images() -> Schema:
    """Return the schemas of the names of images and of how they are pulled."""
    return {
        "image": shapes.image("The image of all services. It needs a registry, from which nodes pull it."),
        "imagePullSecrets": shapes.pull_secrets(
            "Secrets in the release's namespace with which every pod pulls its images."
        ),
        "pinImages": shapes.flag(
            "Use the digests that the chart has for the tags of images. false: use only tags, for example with a "
            "mirror that stores one architecture of an image, whose digest therefore differs."
        ),
    }


def _setup() -> Schema:
    specs = {item["spec"]["names"]["kind"]: item for item in crd_manifests()}
    return shapes.closed(
        {
            "enabled": shapes.flag("Create the missing objects by a Job. It does not change existing objects."),
            "pools": shapes.named("ResourcePools to create: a map from name to spec.", _spec_of(specs["ResourcePool"])),
            "queues": shapes.named("Queues to create: a map from name to spec.", _spec_of(specs["Queue"])),
            "workspaces": {
                "type": "array",
                "description": "Namespaces to label as workspaces; they must exist.",
                "items": {"type": "string", "pattern": shapes.NAME, "maxLength": 63},
            },
            "resources": shapes.resources(),
            **shapes.placement(),
        },
        "Objects that a launch needs.",
    )


def _audit() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Run `slipway audit` all the time, in its own pod; it writes nothing."),
            "every": shapes.text(
                "Time between the end of one audit and the start of the next, such as 5m.", pattern=DURATION_PATTERN
            ),
            "watch": shapes.text(
                "How long an audit watches before it checks, such as 1m. 0s: it checks the current objects.",
                pattern=DURATION_PATTERN,
            ),
            "resources": shapes.resources(),
            **shapes.placement(),
        },
        "Checks of the invariants, again and again, with gauges as results.",
    )


def _valkey() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Run one Valkey, without a disk, because all of its data can be rebuilt."),
            "image": shapes.image("", is_ours=False),
            "maxMemory": shapes.text("Its maxmemory. Empty: by size.", pattern=r"^$|^[0-9]+(b|k|kb|m|mb|g|gb)?$"),
            "auth": shapes.closed(
                {
                    "password": shapes.text(
                        "Password of the administrator. Empty: generated at the install and kept.",
                        pattern=r'^[^"\\\s]*$',
                    ),
                    "existingSecret": shapes.text("A Secret with the key password, instead of the chart's."),
                    "accountsSecret": shapes.text(
                        "A Secret with the keys api, scheduler, podworker, watcher, audit, scaler and reader: the "
                        "password of each account, instead of the chart's."
                    ),
                },
                "The passwords of the administrator, which no service has, and of each service's account.",
            ),
            "tls": shapes.closed(
                {
                    "enabled": shapes.flag("Accept only connections with TLS."),
                    "existingSecret": shapes.text(
                        "A Secret with ca.crt, tls.crt and tls.key, as cert-manager makes them, instead of the "
                        "chart's certificate, which is valid for ten years."
                    ),
                },
                "TLS of the Valkey.",
            ),
            "resources": shapes.resources("Requests and limits; they override those of the size."),
            **shapes.placement(),
        },
        "The chart's own Valkey.",
    )


def _settings(struct: type[CommonSettings], without: Sequence[str] = ()) -> Schema:
    """Return the settings of a struct, with its bounds and descriptions."""
    definitions = msgspec.json.schema(struct)["$defs"]
    found = cast(Schema, definitions[struct.__name__]["properties"])
    properties: Schema = {}
    for field, described in found.items():
        if field not in OWNED and field not in without:
            properties[camel(field)] = {key: value for key, value in described.items() if key != "default"}
            if field.endswith("listen"):
                properties[camel(field)]["pattern"] = _LISTEN if field == "listen" else rf"^$|{_LISTEN}"
    return properties


def _spec_of(definition: Schema) -> Schema:
    return _strict(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])


def _strict(found: Schema) -> Schema:
    """Convert a structural schema to a closed JSON Schema, because Kubernetes would drop unknown fields silently."""
    strict: Schema = {key: value for key, value in found.items() if key in _KEPT}
    if "properties" in found:
        strict["properties"] = {name: _strict(part) for name, part in found["properties"].items()}
        strict["additionalProperties"] = False
    elif isinstance(found.get("additionalProperties"), dict):
        strict["additionalProperties"] = _strict(found["additionalProperties"])
    if "items" in found:
        strict["items"] = _strict(found["items"])
    return strict


def main(arguments: Sequence[str]) -> int:
    """Write the file."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tools.chart_schema FILE\n")
        return 2
    Path(arguments[0]).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
