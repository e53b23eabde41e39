"""Manifests as a container sees them: the objects of an admitted allocation, and the environment that it starts
with."""

from typing import Any

from slipway.crd.resolve import resolve
from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.local.node.environment import expand
from slipway.pods.manifest import Manifests, build
from slipway.pods.podspec import TaskOptions


def objects_of(allocation: Allocation, pool: ResourcePool) -> Manifests:
    """The objects of the allocation's current attempt."""
    resolved = resolve(allocation, pool)
    assert resolved.errors == ()
    return build(allocation, resolved.spec, pool, options=TaskOptions())


def container_of(manifests: Manifests, rank: int, container: int = 0) -> dict[str, Any]:
    """One container of a rank's pod."""
    return manifests.pods[rank].manifest["spec"]["containers"][container]


def environment_of(manifests: Manifests, rank: int = 0, container: int = 0) -> dict[str, str]:
    """The environment as a kubelet makes it: in the listed order, with `$(NAME)` replaced by the variables above."""
    env: dict[str, str] = {}
    for item in container_of(manifests, rank, container)["env"]:
        if "value" in item:
            env[item["name"]] = expand(item["value"], env)
    return env
