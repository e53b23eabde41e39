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
from slipway.model.duration import DURATION_PATTERN
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
    "redis_user": "the account of each service: valkey, or externalRedis.accounts",
    "redis_password": "comes from a Secret",
    "redis_ca_file": "comes from a Secret: valkey, or externalRedis.caSecret",
    "namespace": "is the pod's own",
    "webhook_namespace": "is the release's, with -webhooks behind it",
    "kubeconfig": "in a pod there is none: its account is used",
    "metrics_token_file": "in a cluster a NetworkPolicy says who may read the metrics",
    "workload_token_file": "in a cluster a NetworkPolicy says who reaches a pod",
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
            "nameOverride": shapes.text("Instead of the chart's name, in labels.", pattern=rf"^$|{shapes.NAME}"),
            "fullnameOverride": shapes.text("Instead of the release's name, in names.", pattern=rf"^$|{shapes.NAME}"),
            "labels": shapes.texts("More labels on every object."),
            "crds": shapes.closed(
                {
                    "enabled": shapes.flag("Install and upgrade the custom resource definitions."),
                    "keep": shapes.flag("Leave them, and with them every allocation, when the release is uninstalled."),
                },
                "The custom resource definitions.",
            ),
            "userRoles": shapes.closed(
                {
                    "enabled": shapes.flag(
                        "Let the built-in roles `view` and `edit` see and launch where they are bound."
                    )
                },
                "What people may do.",
            ),
            "setup": _setup(),
            "audit": _audit(),
            "valkey": _valkey(),
            "externalRedis": shapes.closed(
                {
                    "url": shapes.text(
                        "redis://, redis+cluster:// or redis+sentinel://, with rediss for TLS; goes into a Secret.",
                        pattern=r"^$|^rediss?(\+(cluster|sentinel))?://",
                    ),
                    "existingSecret": shapes.text("A Secret of the release's namespace that holds the URL."),
                    "existingSecretKey": shapes.text("Its key."),
                    "caSecret": shapes.text("A Secret with ca.crt, for TLS: who signed the certificate of the server."),
                    "accounts": shapes.closed(
                        {
                            "existingSecret": shapes.text(
                                "A Secret with the keys api, scheduler, podworker and watcher (and audit): the "
                                "password of each one's account. Empty: the URL holds one login for all."
                            ),
                            "userPrefix": shapes.text("The user of a service is this and its name."),
                        },
                        "An account for each service, as docs/reference/redis-accounts.md has them.",
                    ),
                },
                "A Redis that is there already.",
            ),
            "feedKeys": _feed_keys(),
            "podSecurityContext": shapes.security("Of every pod.", shapes.POD_SECURITY),
            "containerSecurityContext": shapes.security("Of every container.", shapes.CONTAINER_SECURITY),
            "settings": shapes.closed(_settings(CommonSettings, ("listen",)), "Settings of all services."),
            **parts.whole(),
            **{name: _service(name, struct) for name, struct in SERVICES.items()},
            "global": {
                "type": "object",
                "description": "What charts of charts share: more may stand there. imageRegistry: the registry of "
                "every image that names none. imagePullSecrets: as above.",
                "patternProperties": {
                    "^imageRegistry$": {"type": "string"},
                    "^imagePullSecrets$": shapes.pull_secrets("Of every pod."),
                },
            },
        },
        "",
    )
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the Slipway chart", **whole}


def _feed_keys() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag(
                "Sign the state of the cluster that watchers write into Redis, and let schedulers refuse what is not "
                "signed."
            ),
            "existingSecret": shapes.text(
                "A Secret with files *.key of 32 bytes in URL-safe base64 each: all are accepted, the last in the "
                "alphabet signs. Without: one that the chart makes at the install and keeps at upgrades; where no "
                "cluster is asked, as by `helm template`, each rendering makes another one."
            ),
        },
        "The keys of the cluster feed, for watchers and schedulers only. Not used without a Redis.",
    )


def text() -> str:
    """Return the text of the file."""
    return json.dumps(schema(), indent=2) + "\n"


def own_fields(struct: type[CommonSettings]) -> list[str]:
    """Return the settings of a service that values set and that are not common, or have their own default."""
    common = {info.name: info for info in msgspec.structs.fields(CommonSettings)}
    fields = [info for info in msgspec.structs.fields(struct) if info.name not in OWNED]
    return [info.name for info in fields if info.name not in common or info.default != common[info.name].default]


def common_fields() -> list[str]:
    """Return the common settings that values set, except `listen`, which differs between the services."""
    return [info.name for info in msgspec.structs.fields(CommonSettings) if info.name not in {*OWNED, "listen"}]


# --- the parts --------------------------------------------------------------------------------------------------------


def _service(name: str, struct: type[CommonSettings]) -> Schema:
    own = {
        "replicas": {"type": "integer", "minimum": 0, "description": "How many pods."},
        "settings": shapes.closed(
            _settings(struct), f"Settings of slipway-{name}, and its own values of the common ones."
        ),
        "resources": shapes.resources("Requests and limits, over those of the size."),
        "podDisruptionBudget": shapes.closed(
            {
                "enabled": shapes.flag("Made only for more than one replica."),
                "maxUnavailable": shapes.count_or_share("How many may be away at once."),
            },
            "How many pods a drain of nodes may take.",
        ),
        "drainDelayS": {
            "type": "integer",
            "minimum": 0,
            "maximum": 600,
            "description": "How long a pod goes on before it is told to end: until nobody is sent to it any more.",
        },
        **parts.scaling(name),
        **parts.pod(),
    }
    return shapes.closed(own, f"The {name} service.")


def _images() -> Schema:
    """Return the schemas of the names of images and of how they are pulled."""
    return {
        "image": shapes.image("The one image of all services. It needs a registry, from which nodes pull it."),
        "imagePullSecrets": shapes.pull_secrets("Of every pod: Secrets of the release's namespace."),
        "pinImages": shapes.flag(
            "Name the images by the digests that the chart has for their tags. false: by tags alone, as for a "
            "mirror that keeps one architecture of an image and so another digest."
        ),
    }


def _setup() -> Schema:
    specs = {item["spec"]["names"]["kind"]: item for item in crd_manifests()}
    return shapes.closed(
        {
            "enabled": shapes.flag("Make what is missing, by a Job, and change nothing that is there."),
            "pools": shapes.named("ResourcePools: name to spec.", _spec_of(specs["ResourcePool"])),
            "queues": shapes.named("Queues: name to spec.", _spec_of(specs["Queue"])),
            "workspaces": {
                "type": "array",
                "description": "Namespaces to label as workspaces; they must exist.",
                "items": {"type": "string", "pattern": shapes.NAME, "maxLength": 63},
            },
            "resources": shapes.resources(),
            **shapes.placement(),
        },
        "What there must be before anything can be launched.",
    )


def _audit() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Run `slipway audit` for ever, as a pod of its own; it writes nothing."),
            "every": shapes.text("Between the end of one audit and the next: 5m.", pattern=DURATION_PATTERN),
            "watch": shapes.text(
                "How long each watches before it judges: 1m; 0s: what is there.", pattern=DURATION_PATTERN
            ),
            "resources": shapes.resources(),
            **shapes.placement(),
        },
        "The invariants, checked over and over, as gauges.",
    )


def _valkey() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Run one Valkey, without a disk: what is in it can be made again."),
            "image": shapes.image("", is_ours=False),
            "maxMemory": shapes.text("Its maxmemory. Empty: of the size.", pattern=r"^$|^[0-9]+(b|k|kb|m|mb|g|gb)?$"),
            "auth": shapes.closed(
                {
                    "password": shapes.text("Empty: made up at the install and kept.", pattern=r'^[^"\\\s]*$'),
                    "existingSecret": shapes.text("A Secret with the key password, instead of one of ours."),
                    "accountsSecret": shapes.text(
                        "A Secret with the keys api, scheduler, podworker, watcher, audit, scaler and reader: the "
                        "password of each one's account, instead of one of ours."
                    ),
                },
                "The passwords: of the administrator, which no service has, and of each service's account.",
            ),
            "tls": shapes.closed(
                {
                    "enabled": shapes.flag("Answer over TLS only."),
                    "existingSecret": shapes.text(
                        "A Secret with ca.crt, tls.crt and tls.key, as cert-manager makes them, instead of one of "
                        "ours, which is valid for ten years."
                    ),
                },
                "Its certificate.",
            ),
            "resources": shapes.resources("Requests and limits, over those of the size."),
            **shapes.placement(),
        },
        "A Valkey of the release's own.",
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
    """Convert a structural schema of Kubernetes to a closed JSON Schema; Kubernetes drops unknown fields silently."""
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
