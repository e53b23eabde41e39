"""Table answers, which `kubectl get` prints.

Owns rows, cells and ages. Pure. Invariant: cells have the order of the column definitions; a missing value is null,
which kubectl prints as `<none>`, and a missing date is `<unknown>`.
"""

from typing import Any

from slipway.local.apiserver import columns
from slipway.local.apiserver.objects import Json, metadata, parse_time
from slipway.local.apiserver.registry import ResourceKind, TableColumn

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


def columns_of(kind: ResourceKind) -> tuple[TableColumn, ...]:
    if not kind.columns:
        return columns.DEFAULT
    return (columns.NAME, *kind.columns) if kind.is_custom else kind.columns


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
