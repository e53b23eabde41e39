"""The reference of the chart's values: descriptions from their schema, defaults from `values.yaml`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import yaml

from slipway.runtime.settings import describe
from tools import chart_schema
from tools.reference.markdown import code, phrase, table

Json = dict[str, Any]

VALUES = Path(__file__).parents[2] / "helm" / "values.yaml"
HEAD = ("value", "default", "what", "allowed")
PROSE = """# Values of the chart

All values of the chart in `helm`. A value that is not listed here or not allowed is refused before anything is
installed. The settings of the services correspond to [the settings page](settings.md) one to one: `tickMinMs` is
`SLIPWAY_TICK_MIN_MS`. These settings have no value:

"""
_SECTIONS = {
    "Image and names": (
        "image",
        "imagePullSecrets",
        "pinImages",
        "global",
        "nameOverride",
        "fullnameOverride",
        "labels",
    ),
    "Size": ("size",),
    "DNS of every pod, and more objects": ("dnsPolicy", "dnsConfig", "hostAliases", "extraObjects"),
    "Custom resources": ("crds",),
    "Permissions of users": ("userRoles",),
    "Objects that the chart creates": ("setup",),
    "Audit": ("audit",),
    "Redis": ("valkey", "externalRedis", "feedKeys"),
    "Security contexts": ("podSecurityContext", "containerSecurityContext"),
    "Access from outside": ("ingress", "httpRoute"),
    "Network and admission policies": ("networkPolicy", "admissionPolicies", "rbac"),
    "Monitoring": ("metrics",),
    "Priority, trial, uninstall": ("priorityClass", "trial", "uninstall"),
    "Settings of all services": ("settings",),
}
"""{heading: the values below it}; a value in no section is listed below "Other values" """
_BOUNDS = {"minimum": ">= {}", "exclusiveMinimum": "> {}", "maximum": "<= {}", "maxLength": "at most {} characters"}


def page() -> str:
    """Return all values."""
    schema = chart_schema.schema()
    values = cast(Json, yaml.safe_load(VALUES.read_text("utf-8")))
    parts = [PROSE + "\n".join(_without_value()) + "\n"]
    placed = {name for names in _SECTIONS.values() for name in names}
    others = tuple(name for name in schema["properties"] if name not in {*placed, *chart_schema.SERVICES})
    for title, names in {**_SECTIONS, **({"Other values": others} if others else {})}.items():
        rows = [row for name in names for row in _rows(name, schema["properties"][name], values[name])]
        parts += [f"## {title}\n", table(HEAD, rows)]
    services = list(chart_schema.SERVICES)
    first = services[0]
    shape = {key: part for key, part in schema["properties"][first]["properties"].items() if key != "settings"}
    rows = [row for key, part in shape.items() for row in _rows(f"SERVICE.{key}", part, values[first][key])]
    names = ", ".join(code(name) for name in services)
    parts += [f"## Each service\n\n`SERVICE` is one of {names}; the defaults are those of `{first}`.\n"]
    parts += [table(HEAD, rows)]
    for name, struct in chart_schema.SERVICES.items():
        own = {chart_schema.camel(field) for field in chart_schema.own_fields(struct)}
        known = schema["properties"][name]["properties"]["settings"]["properties"]
        given = values[name]["settings"]
        rows = [row for key in known if key in own for row in _rows(f"{name}.settings.{key}", known[key], given[key])]
        parts += [f"## Settings of the {name}\n", table(HEAD, rows)]
    return "\n".join(parts)


def _without_value() -> Iterator[str]:
    variables = {row.field: row.variable for struct in chart_schema.SERVICES.values() for row in describe(struct)}
    for field, why in chart_schema.OWNED.items():
        yield f"- `{variables[field]}` {why}"


def _rows(path: str, schema: Json, value: object) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for a leaf, or for each part of a closed object. An object in the form of Kubernetes is one leaf."""
    parts = cast(dict[str, Json], schema.get("properties", {}))
    if parts and isinstance(value, dict) and set(parts) == set(cast(Json, value)):
        for key, part in parts.items():
            yield from _rows(f"{path}.{key}", part, cast(Json, value)[key])
        return
    default = value if isinstance(value, str) else json.dumps(value)
    yield code(path), code(default) if default else "", phrase(str(schema.get("description", ""))), _allowed(schema)


def _allowed(schema: Json) -> str:
    if "enum" in schema:
        return ", ".join(code(str(word)) if word != "" else "empty" for word in schema["enum"])
    kind = schema.get("type", "")
    said = [" or ".join(cast(list[str], kind)) if isinstance(kind, list) else str(kind)]
    said = [] if said == ["string"] else said
    said += [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    if "pattern" in schema:
        said.append(f"matches {code(schema['pattern'])}")
    return ", ".join(said)
