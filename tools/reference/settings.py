"""The settings reference: every variable of every service, from the settings structs."""

import re

import msgspec

from slipway.runtime.settings import ALL_SETTINGS, CommonSettings, SettingRow, all_settings, describe
from tools.reference.markdown import code, phrase, table

HEAD = ("variable", "default", "what", "allowed")
_TYPES = {"str": "", "int": "integer", "float": "number", "bool": "true or false"}
PROSE = """# Settings

Every service reads its `SLIPWAY_*` variables once, at its start. If a variable is unknown, out of bounds or missing,
the service does not start, and prints all such problems together. An empty variable is treated as unset.
`slipway-<service> --help` prints the same rows.

| every service reads | from |
| --- | --- |
| the address of Kubernetes | `KUBECONFIG`, else the pod's service account, else `~/.kube/config` |
| the receiver of spans | `OTEL_EXPORTER_OTLP_ENDPOINT`, else spans are not exported |
"""
COMMON = """## Every service
"""


def page() -> str:
    """Return all settings; the section of a service has only its additional settings and those with another default."""
    common = describe(CommonSettings)
    parts = [PROSE, COMMON, _table(common)]
    for name, struct in sorted(all_settings().items(), key=_in_order):
        rows = _own(struct, common)
        if rows:
            parts += [f"## {_title(name)}\n", _table(rows)]
    return "\n".join(parts)


def _own(struct: type[msgspec.Struct], common: list[SettingRow]) -> list[SettingRow]:
    known = {row.field: row for row in common}
    return [row for row in describe(struct) if row.field not in known or row.default != known[row.field].default]


def _in_order(item: tuple[str, object]) -> int:
    return ALL_SETTINGS.index(item[0].rpartition(".")[0])


def _title(name: str) -> str:
    part = name.split(".")[1]
    return f"`slipway-{part}`" if part not in ("local", "cli") else f"`slipway` ({part})"


def _table(rows: list[SettingRow]) -> str:
    return table(HEAD, [_cells(row) for row in rows])


def _cells(row: SettingRow) -> tuple[str, str, str, str]:
    default = "required" if row.default is None else code(row.default)
    if row.variable == "SLIPWAY_NAMESPACE":
        default = code("slipway-system")  # the default outside a pod: the page must be the same on every machine
    kind = _TYPES.get(row.type, row.type)
    bounds = re.sub(r"matches (\S+?)(?=,|$)", r"matches `\1`", row.bounds)
    allowed = ", ".join(part for part in (row.unit, kind, bounds) if part)
    return code(row.variable), default, phrase(row.description), allowed
