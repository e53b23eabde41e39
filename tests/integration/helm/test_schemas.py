"""Every object of every value set matches the schema of its API, and the check notices mistakes."""

import json
from typing import Any

import pytest

from tests.integration.helm.matrix import MATRIX, rendered
from tests.support import chart, kubernetes_schema

Json = dict[str, Any]


def test_every_object_matches_its_api_schema() -> None:
    """By the schemas of Kubernetes and the other projects no object has an unknown field or a wrong type."""
    complaints: dict[str, list[str]] = {}
    seen: set[str] = set()
    for name in MATRIX:
        for item in rendered(name):
            text = json.dumps(item, sort_keys=True)
            if text not in seen:
                seen.add(text)
                complaints[f"{name}: {item['kind']} {item['metadata']['name']}"] = kubernetes_schema.complaints(item)
    assert {what: said for what, said in complaints.items() if said} == {}


def _changed(item: Json, *path: str | int, value: object) -> Json:
    changed = json.loads(json.dumps(item))
    found = changed
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("name", "kind", "part", "path", "value"),
    [
        ("defaults", "Deployment", "api", ("spec", "replica"), 2),
        ("defaults", "Deployment", "api", ("spec", "replicas"), "two"),
        ("defaults", "Deployment", "api", ("spec", "template", "spec", "containers", 0, "imagePullpolicy"), "Always"),
        ("defaults", "ValidatingAdmissionPolicy", "policy-nodes", ("spec", "validation"), []),
        ("scaled by lag", "ScaledObject", "podworker", ("spec", "triggers", 0, "metadata", "lag"), "3"),
        ("scaled by lag", "ScaledObject", "podworker", ("spec", "triggers", 0, "metadata", "lagCount"), 3),
        ("pods monitored", "PodMonitor", "metrics", ("spec", "podMetricsEndpoints", 0, "interval"), "often"),
    ],
)
def test_a_mistake_is_noticed(name: str, kind: str, part: str, path: tuple[str | int, ...], value: object) -> None:
    """A typo and a wrong type are noticed, in Kubernetes' kinds and in others."""
    item = chart.find(rendered(name), kind, part)
    assert kubernetes_schema.complaints(item) == []
    assert kubernetes_schema.complaints(_changed(item, *path, value=value)) != []


def test_an_unknown_kind_is_no_success() -> None:
    """An object of an unknown kind does not pass the check."""
    with pytest.raises(LookupError, match="frobnicator"):
        kubernetes_schema.complaints({"apiVersion": "apps/v1", "kind": "Frobnicator"})
