"""GPUs that the scheduler chose: how a pod gets exactly those, and requests none from the node's device plugin.

On a node with GPU sharing the scheduler assigns GPUs device by device. A pod that also requested one from the device
plugin would get another device, perhaps one of which other ranks use parts. So the requests are removed from the
containers, and `NVIDIA_VISIBLE_DEVICES` states to the container runtime which devices they see. Pure.

Source: NVIDIA container toolkit, "Environment variables (OCI spec)".
"""

from collections.abc import Mapping
from typing import Any

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import object_of
from slipway.model.resources import GPU, GPU_MILLI

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
FORCED = (VISIBLE,)
"""Environment variables that a user's own value does not override."""
_GROUPS = ("initContainers", "containers")


def base_of(spec: RawObject, devices: tuple[int, ...]) -> RawObject:
    """Return the pod spec without the GPU requests that the chosen `devices` fulfil.

    Requests for parts of a GPU are always removed: they are never requested from a node.
    """
    gone = (GPU, GPU_MILLI) if devices else (GPU_MILLI,)
    if not any(_asks(container, gone) for group in _GROUPS for container in spec.get(group) or ()):
        return spec
    return spec | {group: [_without(item, gone) for item in spec[group]] for group in _GROUPS if group in spec}


def milli_of(spec: RawObject) -> str:
    """Return the part of a GPU that the pod spec requests; empty when it requests none."""
    for container in spec.get("containers") or ():
        asked = object_of(object_of(object_of(container).get("resources")).get("requests")).get(GPU_MILLI)
        if asked:
            return str(asked)
    return ""


def _asks(container: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    resources = object_of(container.get("resources"))
    return any(name in object_of(resources.get(part)) for part in ("requests", "limits") for name in names)


def _without(container: RawObject, names: tuple[str, ...]) -> RawObject:
    resources: RawObject = dict(object_of(container.get("resources")))
    for part in ("requests", "limits"):
        amounts = {name: value for name, value in object_of(resources.get(part)).items() if name not in names}
        if amounts:
            resources[part] = amounts
        else:
            resources.pop(part, None)
    others = {name: value for name, value in container.items() if name != "resources"}
    return others | {"resources": resources} if resources else others
