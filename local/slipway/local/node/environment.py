"""The environment, command and arguments of a container, computed as a kubelet does.

Owns `$(NAME)` expansion, `valueFrom` and `envFrom`. Pure: callers pass the ConfigMaps and Secrets that it needs.

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
from slipway.model.resources import Resources, parse_quantity, scale_of

CONFIG_ERROR = "CreateContainerConfigError"
AUDIENCE = "Audience"
"""The kind under which `ConfigSources` has the tokens of a pod's account: one entry per audience, with one value."""

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")


class NotConfiguredError(PermanentError):
    """A container cannot be created from the objects that exist now. `reason` is the reason in its status."""

    def __init__(self, message: str, *, reason: str = CONFIG_ERROR) -> None:
        super().__init__(message)
        self.reason = reason


class ConfigSources(Protocol):
    """The ConfigMaps and Secrets that the pod names, in the pod's namespace."""

    def values(self, kind: str, name: str) -> Mapping[str, bytes] | None:
        """Return {key: value} of the `ConfigMap`, `Secret` or account token with that name; None when it is missing."""
        ...


class PodPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the pod and its node, and the node's allocatable resources."""

    pod_ip: str
    host_ip: str
    allocatable: Resources


def environment_of(container: JsonMap, pod: NodePod, place: PodPlace, bundles: ConfigSources) -> dict[str, str]:
    """Return the environment that the container's spec describes, expanded.

    Raises:
        NotConfiguredError: the target of a required reference does not exist.
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
    """Replace each `$(NAME)` by its value, or leave it when NAME is unset; `$$` is a literal `$`."""

    def value_of(match: re.Match[str]) -> str:
        return "$" if match.group(1) == "$" else env.get(match.group(2), match.group())

    return _REFERENCE.sub(value_of, text)


def field_of(path: str, pod: NodePod, place: PodPlace) -> str:
    """Return the value of a fieldRef.

    Raises:
        NotConfiguredError: the field is not available to containers.
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
    """Return the value of a resourceFieldRef, in units of its divisor, rounded up.

    Raises:
        NotConfiguredError: the reference names no resource, or a quantity is invalid.
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
    """Return the decoded base64 values; an invalid value becomes empty."""
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
