"""Table answers, which `kubectl get` prints: columns, rows, cells and ages. Pure.

Invariant: cells have the order of the column definitions; a missing value is null, which kubectl prints as `<none>`,
and a missing date is `<unknown>`.

Each column of a built-in kind has a reader, which is a pure function of one object. An age is returned as the creation
time, which the Table turns into a duration.
"""

from typing import Any

from slipway.local.apiserver.objects import Json, at_path, listing, mapping, maps, metadata, parse_time
from slipway.local.apiserver.registry import ResourceKind, TableColumn

_NONE = "<none>"


def created(obj: Json) -> Any:
    return metadata(obj).get("creationTimestamp")


def _path(*keys: str, default: Any = _NONE) -> Any:
    def read(obj: Json) -> Any:
        value = at_path(obj, keys)
        return default if value in (None, "") else value

    return read


def _size(*fields: str) -> Any:
    def read(obj: Json) -> int:
        return sum(len(mapping(obj, field)) for field in fields)

    return read


def _ready(pod: Json) -> str:
    statuses = maps(listing(mapping(pod, "status"), "containerStatuses"))
    ready = sum(status.get("ready") is True for status in statuses)
    return f"{ready}/{len(listing(mapping(pod, 'spec'), 'containers'))}"


def _pod_status(pod: Json) -> str:
    status = mapping(pod, "status")
    text = str(status.get("reason") or status.get("phase") or "Unknown")
    for container in maps(listing(status, "containerStatuses")):
        state = mapping(container, "state")
        waiting, ended = mapping(state, "waiting"), mapping(state, "terminated")
        if waiting.get("reason"):
            text = str(waiting["reason"])
        elif ended:
            text = str(ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}")
    if metadata(pod).get("deletionTimestamp"):
        return "Terminating"
    if text == "Pending" and listing(mapping(pod, "spec"), "schedulingGates"):
        return "SchedulingGated"
    return text


def _group_policy(group: Json) -> str:
    return "Gang" if at_path(group, ("spec", "schedulingPolicy", "gang")) else "Basic"


def _group_status(group: Json) -> str:
    told = {str(item.get("type")): item for item in maps(listing(mapping(group, "status"), "conditions"))}
    if "DisruptionTarget" in told:
        return str(told["DisruptionTarget"].get("reason"))
    placed = told.get("PodGroupInitiallyScheduled")
    if placed is None:
        return "Pending"
    return "Scheduled" if placed.get("status") == "True" else "Unschedulable"


def _restarts(pod: Json) -> str:
    statuses = maps(listing(mapping(pod, "status"), "containerStatuses"))
    return str(sum(int(status.get("restartCount", 0)) for status in statuses))


def _node_status(node: Json) -> str:
    conditions = maps(listing(mapping(node, "status"), "conditions"))
    ready = next((item.get("status") for item in conditions if item.get("type") == "Ready"), "Unknown")
    words = ["Ready" if ready == "True" else "NotReady" if ready == "False" else "Unknown"]
    if mapping(node, "spec").get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Json) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [label.removeprefix(prefix) for label in mapping(metadata(node), "labels") if label.startswith(prefix)]
    return ",".join(sorted(roles)) or _NONE


def _node_address(node: Json) -> str:
    addresses = maps(listing(mapping(node, "status"), "addresses"))
    return next((str(item["address"]) for item in addresses if item.get("type") == "InternalIP"), _NONE)


def _service_ports(service: Json) -> str:
    ports = maps(listing(mapping(service, "spec"), "ports"))
    return ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports) or _NONE


def _event_object(event: Json) -> str:
    target = mapping(event, "involvedObject")
    return f"{str(target.get('kind', '')).lower()}/{target.get('name', '')}"


def _event_seen(event: Json) -> Any:
    return event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or created(event)


def _ready_of(field: str) -> Any:
    def read(obj: Json) -> str:
        wanted = at_path(obj, ("spec", "replicas"))
        return f"{at_path(obj, ('status', field)) or 0}/{wanted if wanted is not None else 0}"

    return read


NAME = TableColumn(name="Name", format="name", read=lambda obj: metadata(obj).get("name"))
AGE = TableColumn(name="Age", type="date", read=created)
DEFAULT = (NAME, AGE)
PODS = (
    NAME,
    TableColumn(name="Ready", read=_ready),
    TableColumn(name="Status", read=_pod_status),
    TableColumn(name="Restarts", read=_restarts),
    AGE,
    TableColumn(name="IP", priority=1, read=_path("status", "podIP")),
    TableColumn(name="Node", priority=1, read=_path("spec", "nodeName")),
    TableColumn(name="Nominated Node", priority=1, read=_path("status", "nominatedNodeName")),
    TableColumn(name="Readiness Gates", priority=1, read=lambda _: _NONE),
)
NAMESPACES = (NAME, TableColumn(name="Status", read=_path("status", "phase")), AGE)
NODES = (
    NAME,
    TableColumn(name="Status", read=_node_status),
    TableColumn(name="Roles", read=_node_roles),
    AGE,
    TableColumn(name="Version", read=_path("status", "nodeInfo", "kubeletVersion", default="")),
    TableColumn(name="Internal-IP", priority=1, read=_node_address),
    TableColumn(name="OS-Image", priority=1, read=_path("status", "nodeInfo", "osImage")),
)
CONFIG_MAPS = (NAME, TableColumn(name="Data", type="integer", read=_size("data", "binaryData")), AGE)
SECRETS = (
    NAME,
    TableColumn(name="Type", read=_path("type")),
    TableColumn(name="Data", type="integer", read=_size("data")),
    AGE,
)
SERVICES = (
    NAME,
    TableColumn(name="Type", read=_path("spec", "type")),
    TableColumn(name="Cluster-IP", read=_path("spec", "clusterIP")),
    TableColumn(name="External-IP", read=lambda _: _NONE),
    TableColumn(name="Port(s)", read=_service_ports),
    AGE,
)
EVENTS = (
    TableColumn(name="Last Seen", type="date", read=_event_seen),
    TableColumn(name="Type", read=_path("type", default="")),
    TableColumn(name="Reason", read=_path("reason", default="")),
    TableColumn(name="Object", read=_event_object),
    TableColumn(name="Message", read=_path("message", default="")),
    TableColumn(name="Count", type="integer", priority=1, read=_path("count", default=1)),
    TableColumn(name="Name", format="name", priority=1, read=lambda obj: metadata(obj).get("name")),
)
BUDGETS = (
    NAME,
    TableColumn(name="Min Available", read=_path("spec", "minAvailable", default="N/A")),
    TableColumn(name="Max Unavailable", read=_path("spec", "maxUnavailable", default="N/A")),
    TableColumn(name="Allowed Disruptions", type="integer", read=_path("status", "disruptionsAllowed", default=0)),
    AGE,
)
POD_GROUPS = (
    NAME,
    TableColumn(name="Policy", read=_group_policy),
    TableColumn(name="Workload", read=_path("spec", "workloadRef", "workloadName")),
    TableColumn(name="Status", read=_group_status),
    AGE,
)
ROLES = (NAME, TableColumn(name="Created At", format="date-time", read=created))
BINDINGS = (
    NAME,
    TableColumn(
        name="Role", read=lambda obj: f"{at_path(obj, ('roleRef', 'kind'))}/{at_path(obj, ('roleRef', 'name'))}"
    ),
    AGE,
)
DEPLOYMENTS = (
    NAME,
    TableColumn(name="Ready", read=_ready_of("readyReplicas")),
    TableColumn(name="Up-to-date", type="integer", read=_path("status", "updatedReplicas", default=0)),
    TableColumn(name="Available", type="integer", read=_path("status", "availableReplicas", default=0)),
    AGE,
)
REPLICA_SETS = (
    NAME,
    TableColumn(name="Desired", type="integer", read=_path("spec", "replicas", default=0)),
    TableColumn(name="Current", type="integer", read=_path("status", "replicas", default=0)),
    TableColumn(name="Ready", type="integer", read=_path("status", "readyReplicas", default=0)),
    AGE,
)
STATEFUL_SETS = (NAME, TableColumn(name="Ready", read=_ready_of("readyReplicas")), AGE)
CLAIMS = (NAME, TableColumn(name="Status", read=_path("status", "phase")), AGE)
LEASES = (NAME, TableColumn(name="Holder", read=_path("spec", "holderIdentity", default="")), AGE)
DEFINITIONS = (NAME, TableColumn(name="Created At", format="date-time", read=created))


_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


def columns_of(kind: ResourceKind) -> tuple[TableColumn, ...]:
    if not kind.columns:
        return DEFAULT
    return (NAME, *kind.columns) if kind.is_custom else kind.columns


def render(kind: ResourceKind, objs: list[Json], meta: Json, now: float, include: str = "Metadata") -> Json:
    """Return the Table of `objs`. `include`: the part of its object in each row: Metadata, Object or None."""
    shown = columns_of(kind)
    definitions = [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description or column.name,
            "priority": column.priority,
        }
        for column in shown
    ]
    rows = [{"cells": [_cell(column, obj, now) for column in shown], **_object(obj, include)} for obj in objs]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def partial(obj: Json, kind: str = "PartialObjectMetadata") -> Json:
    return {"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": metadata(obj)}


def age(seconds: float) -> str:
    """Return a duration in kubectl's short form."""
    whole = int(seconds)
    if whole < 0:
        return "0s" if whole > -2 else "<invalid>"
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    minutes, hours, days = whole // _MINUTE, whole // _HOUR, whole // _DAY
    if minutes < 10:
        return _two(minutes, "m", whole % _MINUTE, "s")
    if minutes < 3 * 60:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if whole < 2 * _YEAR:
        return f"{days}d"
    return _two(whole // _YEAR, "y", days % 365, "d")


def _two(first: int, unit: str, second: int, small: str) -> str:
    return f"{first}{unit}{second}{small}" if second else f"{first}{unit}"


def _cell(column: TableColumn, obj: Json, now: float) -> Any:
    value = column.read(obj)
    if column.type == "date":
        moment = parse_time(value)
        return "<unknown>" if moment is None else age(now - moment)
    return value


def _object(obj: Json, include: str) -> Json:
    match include:
        case "None":
            return {}
        case "Object":
            return {"object": obj}
        case _:
            return {"object": partial(obj)}
