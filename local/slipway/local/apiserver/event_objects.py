"""Event objects, which report what happened to an object: the form of the core group and the form of events.k8s.io.

Owns both kinds: they share one storage room, and each form has its own checks. Pure. Invariants: an Event written in
one form can be read in the other without loss; the newer form is checked strictly, and only its series may change.

Source: pkg/apis/core/validation/events.go, pkg/apis/events/v1/conversion.go, pkg/registry/core/event (v1.37).
"""

from typing import Any, ClassVar

from slipway.local.apiserver import columns
from slipway.local.apiserver.admission import Strategy
from slipway.local.apiserver.objects import Json, mapping, metadata
from slipway.local.apiserver.registry import ResourceKind, VersionView
from slipway.local.apiserver.status import FieldCause, bad_value, missing

_GROUP = "events.k8s.io"
_ROOM = "events"
_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_CORE_NAMES = {new: old for old, new in _NAMES.items()}
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_LENGTHS = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
_FIXED = (
    *("involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type"),
    *("action", "related", "reportingComponent", "reportingInstance"),
)


class EventStrategy(Strategy):
    allows_create_on_update = True
    controller_field: ClassVar[str] = "reportingComponent"

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        return _loose_causes(obj, self.controller_field)


class NewEventStrategy(EventStrategy):
    controller_field = "reportingController"

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        core = _to_core(obj)
        causes = super().check(core, None)
        if old is None:
            return causes + _series_causes(core) + _strict_causes(core)
        before = _to_core(old)
        if core.get("series") != before.get("series"):
            causes += _series_causes(core)
        fixed = [field for field in _FIXED if (core.get(field) or None) != (before.get(field) or None)]
        names = {"reportingComponent": "reportingController"}
        return causes + [bad_value(names.get(field, field), core.get(field), "field is immutable") for field in fixed]


def kinds() -> tuple[ResourceKind, ResourceKind]:
    common = {"reason": ("reason",), "type": ("type",)}
    core = {f"involvedObject.{name}": ("involvedObject", name) for name in _REFERENCE}
    new = {f"regarding.{name}": ("involvedObject", name) for name in _REFERENCE}
    return (
        ResourceKind(
            plural="events",
            kind="Event",
            short_names=("ev",),
            strategy=EventStrategy(),
            fields={
                **common,
                **core,
                "reportingComponent": ("reportingComponent",),
                "source": ("source", "component"),
            },
            columns=columns.EVENTS,
        ),
        ResourceKind(
            group=_GROUP,
            plural="events",
            kind="Event",
            short_names=("ev",),
            strategy=NewEventStrategy(),
            fields={**common, **new, "reportingController": ("reportingComponent",)},
            columns=columns.EVENTS,
            is_stored=False,
            room=_ROOM,
            view=VersionView(show=_to_new, keep=_to_core),
        ),
    )


def _to_new(obj: Json) -> Json:
    shown = {_NAMES.get(field, field): value for field, value in obj.items()}
    return {**shown, "apiVersion": f"{_GROUP}/v1"}


def _to_core(obj: Json) -> Json:
    stored = {_CORE_NAMES.get(field, field): value for field, value in obj.items()}
    return {**stored, "apiVersion": "v1"}


def _loose_causes(event: Json, controller_field: str) -> list[FieldCause]:
    own = str(metadata(event).get("namespace") or "")
    involved = str(mapping(event, "involvedObject").get("namespace") or "")
    words = "does not match event.namespace"
    if not event.get("eventTime"):
        agrees = involved == own if involved else own in ("", "default")
        return [] if agrees else [bad_value("involvedObject.namespace", involved, words)]
    causes = list[FieldCause]()
    if not involved and own not in ("default", "kube-system"):
        causes.append(bad_value("involvedObject.namespace", involved, words))
    required = (("reportingComponent", controller_field), ("reportingInstance", "reportingInstance"))
    for field, shown in (*required, ("action", "action"), ("reason", "reason")):
        if not event.get(field):
            causes.append(missing(shown))
    for field, longest in _LENGTHS.items():
        if len(str(event.get(field) or "")) > longest:
            causes.append(bad_value(field, "", f"can have at most {longest} characters"))
    return causes


def _strict_causes(event: Json) -> list[FieldCause]:
    causes = list[FieldCause]()
    if not event.get("eventTime"):
        causes.append(missing("eventTime"))
    if event.get("type") not in ("Normal", "Warning"):
        causes.append(bad_value("type", "", f"has invalid value: {event.get('type', '')}"))
    for field in ("firstTimestamp", "lastTimestamp", "count", "source"):
        if event.get(field):
            causes.append(bad_value(field, "", "needs to be unset"))
    return causes


def _series_causes(event: Json) -> list[FieldCause]:
    series: Any = event.get("series")
    if series is None:
        return []
    causes = list[FieldCause]()
    if int(series.get("count", 0)) < 2:
        causes.append(bad_value("series.count", "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        causes.append(missing("series.lastObservedTime"))
    return causes
