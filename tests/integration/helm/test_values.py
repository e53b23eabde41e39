"""Values and settings agree one to one, and a misspelt or out-of-bounds value is refused before any change."""

import json
from typing import Any, cast

import pytest
import yaml

from slipway.ops.setup.settings import Settings as Setup
from slipway.runtime.settings import SettingRow, describe, load
from tests.integration.helm.matrix import MATRIX, REFUSED, SECRETS, rendered
from tests.support import chart
from tools import chart_schema
from tools.chart_schema import OWNED, SERVICES, camel, common_fields, own_fields

VALUES: dict[str, Any] = yaml.safe_load((chart.CHART / "values.yaml").read_text("utf-8"))
LISTENS = {"listen", "health_listen", "task_listen"}


def test_common_settings_are_values() -> None:
    """Every setting of all services is a common value once, with its default."""
    rows = {row.field: row for row in describe(next(iter(SERVICES.values())))}
    assert set(VALUES["settings"]) == {camel(field) for field in common_fields()}
    for field in common_fields():
        assert _spelled(VALUES["settings"][camel(field)]) == rows[field].default, field


@pytest.mark.parametrize("service", SERVICES)
def test_settings_of_a_service_are_values(service: str) -> None:
    """Every setting of a service is a value of that service, with its default; except where it listens in a pod."""
    fields = own_fields(SERVICES[service])
    given = VALUES[service]["settings"]
    rows = {row.field: row for row in describe(SERVICES[service])}
    assert set(given) == {camel(field) for field in fields}
    for field in set(fields) - LISTENS:
        assert _spelled(given[camel(field)]) == rows[field].default, field


SHARED = {"taskAudience": ("api", "podworker"), "logArchiveUrl": ("api", "watcher")}
"""Settings that two services must have in common."""


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_has_its_variable(service: str) -> None:
    """A value changes the variable that the settings page names, and every setting has one."""
    rows = [row for row in describe(SERVICES[service]) if row.field not in OWNED]
    settings = {camel(row.field): _another(row) for row in rows}
    both: dict[str, Any] = {}
    for key, names in SHARED.items():
        for name in names if key in settings else ():
            both.setdefault(name, {"settings": {}})["settings"][key] = settings[key]
    values = {**both, service: {"settings": settings}}
    environment = chart.service_environment(chart.render(values), service)
    assert {row.variable: environment[row.variable] for row in rows} == {
        row.variable: _spelled(_another(row)) for row in rows
    }


@pytest.mark.parametrize("name", MATRIX)
def test_services_accept_their_environment(name: str) -> None:
    """The rendered environment loads as the settings of the service: no unknown variable, and none refused."""
    documents = rendered(name)
    for service, struct in SERVICES.items():
        settings = load(struct, chart.service_environment(documents, service, secrets=SECRETS))
        assert settings.namespace == chart.NAMESPACE
    if MATRIX[name].get("setup", {}).get("enabled", True):
        load(Setup, chart.service_environment(documents, chart.SETUP))


def test_an_own_setting_wins_over_the_common_one() -> None:
    """A service may override a common setting."""
    documents = chart.render({"settings": {"logLevel": "warning"}, "watcher": {"settings": {"logLevel": "debug"}}})
    levels = {name: chart.service_environment(documents, name)["SLIPWAY_LOG_LEVEL"] for name in SERVICES}
    assert levels == {name: "debug" if name == "watcher" else "warning" for name in SERVICES}


def test_numbers_keep_their_digits() -> None:
    """A large number is written without an exponent, which no service would read."""
    documents = chart.render(MATRIX["large numbers"])
    assert chart.service_environment(documents, "watcher")["SLIPWAY_RETENTION_COUNT_MAX"] == "5000000"


@pytest.mark.parametrize("mistake", REFUSED)
def test_mistakes_are_refused(mistake: str) -> None:
    """The refusal names the value."""
    values, word = REFUSED[mistake]
    with pytest.raises(chart.HelmError, match=word):
        chart.render(values)


def test_the_schema_is_closed() -> None:
    """Unknown names are refused where names are listed, except in values with the form of a Kubernetes object."""

    def walk(part: dict[str, Any], at: str) -> None:
        if "properties" in part:
            assert part.get("additionalProperties") is False, at
        for key, inner in part.items():
            if isinstance(inner, dict):
                walk(cast(dict[str, Any], inner), f"{at}/{key}")

    walk(chart_schema.schema(), "")


def test_no_default_is_undocumented() -> None:
    """Each value has a description in the schema, from which the values page is made."""
    text = (chart.ROOT / "docs" / "reference" / "values.md").read_text("utf-8")
    for key in VALUES:
        assert f"`{key}" in text or f"`SERVICE.{key}" in text or key in SERVICES, key


def _another(row: SettingRow) -> Any:
    """An allowed value that is not the default."""
    match row.field, row.type:
        case ("listen" | "health_listen" | "task_listen") as field, _:
            return "127.0.0.1:9999" if field == "listen" else "0.0.0.0:9998"
        case "trace_ratio", _:
            return 0.25
        case "oidc_signing_algs", _:
            return ["RS384", "ES256"]
        case "oidc_roles", _:
            return {"group:one": {"two": "viewer"}}
        case _, "dict":
            return {"one": "two"}
        case _, "int":
            return int(row.default or 0) + 1
        case _, "float":
            return float(row.default or 0) + 1
        case _, "bool":
            return row.default != "true"
        case _, "comma-separated list":
            return ["one", "two"]
        case _ if " | " in row.type:
            return row.type.split(" | ")[-1]
        case _:
            return "http://other"


def _spelled(value: Any) -> str:
    """A value as written in the environment."""
    if isinstance(value, list):
        return ",".join(str(part) for part in value)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    return f"{value:g}" if isinstance(value, float) else str(value)
