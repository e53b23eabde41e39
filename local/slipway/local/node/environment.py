"""The environment, command and arguments of a container, as a kubelet would work them out.

Owns `$(NAME)` expansion, `valueFrom` and `envFrom`. Pure: what it needs of ConfigMaps and Secrets is given to it.

Source: k8s.io/kubernetes third_party/forked/golang/expansion, kubelet makeEnvironmentVariables (behaviour, v1.36).
"""

import base64
import binascii
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Protocol

import msgspec

from slipway.crd.roleresources import JsonMap, object_of, objects_of
from slipway.errors import PermanentError
from slipway.local.node.podview import NodePod
from slipway.model.quantity import parse_quantity
from slipway.model.resources import Resources, scale_of

CONFIG_ERROR = "CreateContainerConfigError"
AUDIENCE = "Audience"
"""The kind of bundle in which the tokens of a pod's account are found: one for each audience, with one value."""

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")


class NotConfiguredError(PermanentError):
    """A container cannot be made from what is there now; `reason` is what its status says."""

    def __init__(self, message: str, *, reason: str = CONFIG_ERROR) -> None:
        super().__init__(message)
        self.reason = reason


class ConfigSources(Protocol):
    """The ConfigMaps and Secrets of the pod's namespace that it names."""

    def values(self, kind: str, name: str) -> Mapping[str, bytes] | None:
        """The keys of the `ConfigMap`, `Secret` or account token of that name; None when there is none."""
        ...


class PodPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pod runs."""

    pod_ip: str
    host_ip: str
    allocatable: Resources


def environment_of(container: JsonMap, pod: NodePod, place: PodPlace, bundles: ConfigSources) -> dict[str, str]:
    """What the container's spec says of its environment, expanded.

    Raises:
        NotConfiguredError: a reference that leads nowhere and is not optional.
    """
    env: dict[str, str] = {}
    for source in objects_of(container.get("envFrom")):
        env |= _imported(source, bundles)
    for variable in objects_of(container.get("env")):
        name = str(variable.get("name") or "")
        source = object_of(variable.get("valueFrom"))
        if not source:
            env[name] = expand(str(variable.get("value") or ""), env)
            continue
        value = _value_from(source, container, pod, place, bundles)
        if value is not None:
            env[name] = value
    return env


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by its value, or left when there is none; `$$` is a literal `$`."""

    def value_of(match: re.Match[str]) -> str:
        return "$" if match.group(1) == "$" else env.get(match.group(2), match.group())

    return _REFERENCE.sub(value_of, text)


def field_of(path: str, pod: NodePod, place: PodPlace) -> str:
    """The value of a fieldRef.

    Raises:
        NotConfiguredError: a field that containers cannot be told.
    """
    subscript = _SUBSCRIPT.match(path)
    if subscript is not None:
        words = pod.metadata.labels if subscript[1] == "labels" else pod.metadata.annotations
        return words.get(subscript[2], "")
    fields = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.node,
        "spec.serviceAccountName": str(pod.spec.get("serviceAccountName") or "default"),
        "status.podIP": place.pod_ip,
        "status.podIPs": place.pod_ip,
        "status.hostIP": place.host_ip,
        "status.hostIPs": place.host_ip,
    }
    if path not in fields:
        raise NotConfiguredError(f"field label not supported: {path}")
    return fields[path]


def resource_of(ref: JsonMap, container: JsonMap, place: PodPlace) -> str:
    """The value of a resourceFieldRef, in units of its divisor, rounded up.

    Raises:
        NotConfiguredError: not a resource.
    """
    kind, _, name = str(ref.get("resource") or "").partition(".")
    if kind not in ("limits", "requests") or not name:
        raise NotConfiguredError(f"unsupported container resource: {ref.get('resource')}")
    said = object_of(object_of(container.get("resources")).get(kind)).get(name)
    scale = scale_of(name)
    try:
        amount = place.allocatable.get(name) if said is None else parse_quantity(said, scale=scale)
        divisor = parse_quantity(ref.get("divisor") or "1", scale=scale) or scale
    except ValueError as error:
        raise NotConfiguredError(str(error)) from error
    return str(math.ceil(Decimal(amount) / Decimal(divisor)))


def decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    """Base64 values as they are; what is none is empty."""
    plain: dict[str, bytes] = {}
    for key, text in data.items():
        try:
            plain[key] = base64.b64decode(text)
        except binascii.Error:
            plain[key] = b""
    return plain


def _imported(source: JsonMap, bundles: ConfigSources) -> dict[str, str]:
    prefix = str(source.get("prefix") or "")
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        ref = object_of(source.get(field))
        if ref:
            values = _values(kind, ref, bundles)
            return {f"{prefix}{key}": value.decode(errors="replace") for key, value in (values or {}).items()}
    return {}


def _value_from(
    source: JsonMap, container: JsonMap, pod: NodePod, place: PodPlace, bundles: ConfigSources
) -> str | None:
    field = object_of(source.get("fieldRef"))
    if field:
        return field_of(str(field.get("fieldPath") or ""), pod, place)
    resource = object_of(source.get("resourceFieldRef"))
    if resource:
        return resource_of(resource, container, place)
    for name, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        ref = object_of(source.get(name))
        if ref:
            values = _values(kind, ref, bundles)
            key = str(ref.get("key") or "")
            if values is not None and key in values:
                return values[key].decode(errors="replace")
            if ref.get("optional"):
                return None
            raise NotConfiguredError(f"couldn't find key {key} in {kind} {pod.metadata.namespace}/{ref.get('name')}")
    raise NotConfiguredError(f"unsupported valueFrom: {', '.join(source)}")


def _values(kind: str, ref: JsonMap, bundles: ConfigSources) -> Mapping[str, bytes] | None:
    name = str(ref.get("name") or "")
    found = bundles.values(kind, name)
    if found is None and not ref.get("optional"):
        raise NotConfiguredError(f'{kind.lower()} "{name}" not found')
    return found
