"""Checks whether the API accepts an object: Kubernetes' own kinds by the published schemas, other kinds by shapes of
our own.

Owns where schemas come from. Kubernetes' schemas are the strict ones of one version (from `kubernetes-validate`): an
unknown field is an error, as on a server that validates strictly. For kinds of other projects, the shapes list the
fields that the chart uses; a field that is not listed here was never looked up in their reference.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema_rs
import msgspec

Json = dict[str, Any]

VERSION = "v1.37.0-local-strict"
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_FLAG: Json = {"type": "boolean"}
_SPAN: Json = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h))+$"}


def complaints(item: Json) -> list[str]:
    """Return the errors of an object, each with its path.

    Raises:
        LookupError: there is no schema for its kind.
    """
    validator = _validator(item["apiVersion"], item["kind"])
    return [f"{'.'.join(map(str, error.instance_path))}: {error.message}" for error in validator.iter_errors(item)]


@cache
def _validator(api_version: str, kind: str) -> jsonschema_rs.Draft202012Validator:
    foreign = _FOREIGN.get((api_version, kind))
    if foreign is not None:
        return jsonschema_rs.Draft202012Validator(foreign)
    group, slash, version = api_version.partition("/")
    short = f"{group.partition('.')[0]}-{version}" if slash else group
    schema = _read(f"{kind.lower()}-{short}.json")
    return jsonschema_rs.Draft202012Validator(schema, registry=_definitions())


@cache
def _definitions() -> jsonschema_rs.Registry:
    """The definitions that all kinds refer to: one large file; its address is never requested."""
    found = _read("_definitions.json")
    return jsonschema_rs.Registry([(found["$id"], found)])


def _read(name: str) -> Json:
    path = files("kubernetes_validate") / "kubernetes-json-schema" / VERSION / name
    if not path.is_file():
        raise LookupError(f"no schema says what {name.removesuffix('.json')} is")
    return msgspec.json.decode(path.read_bytes())


def _closed(required: Json, optional: Json | None = None) -> Json:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": sorted(required),
        "properties": {**required, **(optional or {})},
    }


def _listed(part: Json, least: int = 1) -> Json:
    return {"type": "array", "minItems": least, "items": part}


def _map(part: Json) -> Json:
    return {"type": "object", "additionalProperties": part}


def _object(api_version: str, kind: str, spec: Json) -> Json:
    meta = _closed({"name": _TEXT, "namespace": _TEXT, "labels": _map(_TEXT)}, {"annotations": _map(_TEXT)})
    return _closed({"apiVersion": {"const": api_version}, "kind": {"const": kind}, "metadata": meta, "spec": spec})


def _triggers() -> Json:
    """Source: keda.sh, scalers redis-streams, redis-cluster-streams and redis-sentinel-streams."""
    known = {"stream": _TEXT, "consumerGroup": _TEXT, "lagCount": {"type": "string", "pattern": "^[1-9][0-9]*$"}}
    more = {
        "address": {"type": "string", "pattern": r"^\S+:[0-9]+$"},
        "addresses": {"type": "string", "pattern": r"^\S+:[0-9]+$"},
        "activationLagCount": {"type": "string", "pattern": "^[0-9]+$"},
        "enableTLS": {"enum": ["true", "false"]},
        "sentinelMaster": _TEXT,
    }
    type_ = {"enum": ["redis-streams", "redis-cluster-streams", "redis-sentinel-streams"]}
    return _listed(
        _closed({"type": type_, "metadata": _closed(known, more)}, {"authenticationRef": _closed({"name": _TEXT})})
    )


def _endpoints() -> Json:
    return _listed(_closed({"port": _TEXT, "path": _TEXT, "interval": _SPAN, "scrapeTimeout": _SPAN}))


def _rules() -> Json:
    rule = _closed({"alert": _TEXT, "expr": _TEXT, "labels": _map(_TEXT), "annotations": _map(_TEXT)}, {"for": _SPAN})
    return _closed({"groups": _listed(_closed({"name": _TEXT, "rules": _listed(rule)}, {"interval": _SPAN}))})


def _kinds() -> Iterator[tuple[str, str, Json]]:
    target = _closed({"apiVersion": _TEXT, "kind": _TEXT, "name": _TEXT})
    scaled = {"minReplicaCount": _COUNT, "maxReplicaCount": _COUNT, "pollingInterval": _COUNT, "cooldownPeriod": _COUNT}
    fallback = _closed({"failureThreshold": _COUNT, "replicas": _COUNT})
    job = _closed({"template": {"type": "object"}}, {"backoffLimit": _COUNT, "activeDeadlineSeconds": _COUNT})
    limits = {"successfulJobsHistoryLimit": _COUNT, "failedJobsHistoryLimit": _COUNT}
    secrets = _listed(
        _closed({"parameter": {"enum": ["ca", "password", "tls", "username"]}, "name": _TEXT, "key": _TEXT})
    )
    selector = _closed({"matchLabels": _map(_TEXT)})
    yield (
        "keda.sh/v1alpha1",
        "ScaledObject",
        _closed({"scaleTargetRef": target, "triggers": _triggers(), **scaled}, {"fallback": fallback}),
    )
    yield (
        "keda.sh/v1alpha1",
        "ScaledJob",
        _closed(
            {"jobTargetRef": job, "triggers": _triggers(), "maxReplicaCount": _COUNT, "pollingInterval": _COUNT}, limits
        ),
    )
    yield "keda.sh/v1alpha1", "TriggerAuthentication", _closed({"secretTargetRef": secrets})
    yield (
        "monitoring.coreos.com/v1",
        "PodMonitor",
        _closed({"selector": selector, "podMetricsEndpoints": _endpoints()}, {"jobLabel": _TEXT}),
    )
    yield (
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        _closed({"selector": selector, "endpoints": _endpoints()}, {"podTargetLabels": _listed(_TEXT)}),
    )
    yield "monitoring.coreos.com/v1", "PrometheusRule", _rules()
    parent = _closed({"name": _TEXT}, {"namespace": _TEXT, "sectionName": _TEXT, "port": _COUNT})
    match = _closed({"path": _closed({"type": {"enum": ["PathPrefix"]}, "value": _TEXT})})
    rule = _closed(
        {"matches": _listed(match), "backendRefs": _listed(_closed({"name": _TEXT, "port": _COUNT}))},
        {"timeouts": _closed({"request": {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}})},
    )
    yield (
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        _closed({"parentRefs": _listed(parent), "hostnames": _listed(_TEXT), "rules": _listed(rule)}),
    )


_FOREIGN = {(version, kind): _object(version, kind, spec) for version, kind, spec in _kinds()}
