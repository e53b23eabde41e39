"""Objects of any kind in the form of the audit: the whole spec and status, and the time of the last change.

This module decides which parts of an object are read, and determines its last change. No IO.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID, ObjectMeta
from slipway.kube.resources import (
    ALLOCATIONS,
    CONFIG_MAPS,
    NODES,
    PODS,
    QUEUES,
    RESOURCE_POOLS,
    SERVICES,
    Resource,
)
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time

Json = dict[str, Any]


class FieldsEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of managedFields, of which only the time is read."""

    time: str = ""


class Metadata(ObjectMeta, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Object metadata with managedFields, which contain the time of the last change."""

    managed_fields: list[FieldsEntry] = []


class ObservedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object. The content of a ConfigMap or a Secret is never read."""

    metadata: Metadata
    spec: Json = {}
    status: Json = {}

    @property
    def body(self) -> Json:
        """The object as evidence, without managedFields."""
        body: Json = msgspec.to_builtins(self)
        body["metadata"].pop("managedFields", None)
        return body


class AuditedResource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource to list and watch."""

    resource: Resource[ObservedObject]
    label_selector: str = ""

    @property
    def name(self) -> str:
        """The name of the resource in versions."""
        return self.resource.plural


def _kind(resource: Resource[Any], label_selector: str = "") -> AuditedResource:
    return AuditedResource(
        resource=Resource(
            group=resource.group,
            version=resource.version,
            plural=resource.plural,
            kind=resource.kind,
            namespaced=resource.namespaced,
            struct=ObservedObject,
        ),
        label_selector=label_selector,
    )


KINDS: tuple[AuditedResource, ...] = (
    _kind(RESOURCE_POOLS),
    _kind(QUEUES),
    _kind(NODES),
    _kind(ALLOCATIONS),
    # Pods of others are read too, because they also use nodes.
    _kind(PODS),
    _kind(CONFIG_MAPS, LABEL_ALLOCATION_UID),
    _kind(SERVICES, LABEL_ALLOCATION_UID),
)


def changed_at(obj: ObservedObject, now: float) -> float:
    """Return the time of the last change (epoch seconds), never earlier than the real one; `now` when it is unknown.

    The time comes from the server's managedFields, to the second. Without them, it is the latest time in the object
    itself.
    """
    noted = [_epoch(entry.time) for entry in obj.metadata.managed_fields]
    if any(noted):
        return min(now, max(noted) + 1.0)
    is_ending = obj.spec.get("desired") == "Stopped" and obj.status.get("phase") != Phase.TERMINATED
    if is_ending:
        return now
    return min(now, max(_times(obj)) or now)


def _times(obj: ObservedObject) -> Iterator[float]:
    meta, status = obj.metadata, obj.status
    yield _epoch(meta.creation_timestamp or "")
    yield _epoch(meta.deletion_timestamp or "")
    for condition in status.get("conditions") or ():
        yield _epoch(str(condition.get("lastTransitionTime") or ""))
    for entry in status.get("transitions") or ():
        yield _epoch(str(entry.get("time") or ""))
    for container in status.get("containerStatuses") or ():
        yield from _state_times(container.get("state") or {})


def _state_times(state: Mapping[str, Any]) -> Iterator[float]:
    for detail in state.values():
        yield _epoch(str(detail.get("startedAt") or ""))
        yield _epoch(str(detail.get("finishedAt") or ""))


def _epoch(text: str) -> float:
    try:
        return parse_time(text) if text else 0.0
    except ValueError:
        return 0.0
