"""Environments as a kubelet makes them."""

from collections.abc import Mapping
from typing import Any

import pytest

from slipway.crd.meta import ObjectMeta
from slipway.local.node.environment import NotConfiguredError, PodPlace, environment_of, expand
from slipway.local.node.podview import NodePod
from slipway.model.resources import Resources

POD = NodePod(
    metadata=ObjectMeta(name="p", namespace="n", uid="u", annotations={"a/b": "x"}), spec={"nodeName": "node-0"}
)
PLACE = PodPlace(pod_ip="127.70.0.1", host_ip="127.0.0.1", allocatable=Resources.parse({"cpu": 4, "memory": "8Gi"}))


class Bundles:
    """ConfigMap `c` and Secret `s`."""

    def values(self, kind: str, name: str) -> Mapping[str, bytes] | None:
        return {("ConfigMap", "c"): {"k": b"1"}, ("Secret", "s"): {"k": b"2"}}.get((kind, name))


def made(*env: dict[str, Any], **more: Any) -> dict[str, str]:
    return environment_of({"env": list(env), **more}, POD, PLACE, Bundles())


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)-$(B)", "1-2"),
        ("$(A", "$(A"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$", "$"),
        ("$A ${A}", "$A ${A}"),
        ("$()", "$()"),
    ],
)
def test_expansion(text: str, result: str):
    """Only known names are expanded; a doubled dollar becomes one."""
    assert expand(text, {"A": "1", "B": "2"}) == result


def test_a_value_sees_what_stands_before_it():
    """A value can use the variables before it; of two variables of one name the later wins."""
    env = made({"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "3"})
    assert env == {"A": "1", "B": "1$(C)", "C": "3"}


@pytest.mark.parametrize(
    ("ref", "value"),
    [
        ({"fieldRef": {"fieldPath": "metadata.annotations['a/b']"}}, "x"),
        ({"fieldRef": {"fieldPath": "metadata.uid"}}, "u"),
        ({"fieldRef": {"fieldPath": "status.hostIP"}}, "127.0.0.1"),
        ({"secretKeyRef": {"name": "s", "key": "k"}}, "2"),
        ({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}, "64"),
        ({"resourceFieldRef": {"resource": "requests.cpu"}}, "1"),
        ({"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}, "250"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "4"),
    ],
)
def test_references(ref: dict[str, Any], value: str):
    """References to fields, secrets and resources are resolved, in the requested units; a missing limit means the whole
    node."""
    resources = {"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}}
    assert made({"name": "A", "valueFrom": ref}, resources=resources) == {"A": value}


@pytest.mark.parametrize(
    "ref",
    [
        {"fieldRef": {"fieldPath": "spec.containers"}},
        {"configMapKeyRef": {"name": "c", "key": "no"}},
        {"configMapKeyRef": {"name": "no", "key": "k"}},
        {"resourceFieldRef": {"resource": "cpu"}},
        {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "x"}},
        {"other": {}},
    ],
)
def test_what_leads_nowhere_is_refused(ref: dict[str, Any]):
    """A reference that cannot be resolved is refused with the message of a kubelet."""
    with pytest.raises(NotConfiguredError) as caught:
        made({"name": "A", "valueFrom": ref})
    assert caught.value.reason == "CreateContainerConfigError"


def test_sources_come_before_variables():
    """envFrom is applied before the variables, with its prefix; a missing optional source is ignored."""
    sources = [{"prefix": "C_", "configMapRef": {"name": "c"}}, {"secretRef": {"name": "no", "optional": True}}]
    assert made({"name": "A", "value": "$(C_k)"}, envFrom=sources) == {"C_k": "1", "A": "1"}
