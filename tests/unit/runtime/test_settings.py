"""Settings are typed, report all errors at once, and never print a secret."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Literal

import pytest
from msgspec import Meta

from slipway.errors import InvalidError
from slipway.runtime import settings
from slipway.runtime.settings import CommonSettings, SettingRow, describe, load


class _Mode(StrEnum):
    FAST = "fast"
    SAFE = "safe"


class _Settings(CommonSettings, frozen=True, kw_only=True):
    listen: Annotated[str, Meta(description="Here.")] = "127.0.0.1:8080"
    batch_count: Annotated[int, Meta(ge=1, le=64, description="Batch.", extra={"unit": "messages"})] = 16
    ratio: Annotated[float, Meta(gt=0, le=1)] = 0.5
    enabled: bool = True
    pools: tuple[str, ...] = ("default",)
    mode: _Mode = _Mode.SAFE
    style: Literal["short", "long"] = "short"
    limits: dict[str, int] = {}
    proxy_url: str | None = None
    signing_secret: str = ""


class _Required(CommonSettings, frozen=True, kw_only=True):
    cluster_name: Annotated[str, Meta(description="The name of the cluster.")]


def _rows(cls: type[CommonSettings]) -> dict[str, SettingRow]:
    return {row.field: row for row in describe(cls)}


def test_defaults_need_no_environment():
    """An empty environment, and empty variables, result in the defaults."""
    assert load(_Settings, {}) == _Settings()
    assert load(_Settings, {"SLIPWAY_BATCH_COUNT": "", "SLIPWAY_REDIS_URL": ""}) == _Settings()


def test_text_becomes_typed_values():
    """Each kind of field is read from text."""
    values = load(
        _Settings,
        {
            "SLIPWAY_BATCH_COUNT": "64",
            "SLIPWAY_RATIO": "1",
            "SLIPWAY_ENABLED": "false",
            "SLIPWAY_POOLS": "gpu, cpu,",
            "SLIPWAY_MODE": "fast",
            "SLIPWAY_STYLE": "LONG",
            "SLIPWAY_LIMITS": '{"a": 1}',
            "SLIPWAY_PROXY_URL": "http://p",
            "SLIPWAY_LOG_LEVEL": "WARNING",
        },
    )
    assert (values.batch_count, values.ratio, values.enabled, values.pools) == (64, 1.0, False, ("gpu", "cpu"))
    assert (values.mode, values.style, values.limits, values.proxy_url) == (_Mode.FAST, "long", {"a": 1}, "http://p")
    assert values.log_level == "warning"


def test_standard_variables_keep_their_names():
    """KUBECONFIG and the OTLP endpoint keep the names that every other tool reads."""
    values = load(CommonSettings, {"KUBECONFIG": "/k", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "PATH": "/bin"})
    assert (values.kubeconfig, values.otel_endpoint) == ("/k", "http://c:4318")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("SLIPWAY_BATCH_COUNT", "many", ">= 1, <= 64; messages"),
        ("SLIPWAY_BATCH_COUNT", "65", "<= 64"),
        ("SLIPWAY_RATIO", "0", "> 0"),
        ("SLIPWAY_RATIO", "nan", "float"),
        ("SLIPWAY_ENABLED", "perhaps", "bool"),
        ("SLIPWAY_MODE", "slow", "fast"),
        ("SLIPWAY_STYLE", "medium", "short | long"),
        ("SLIPWAY_LIMITS", "{", "dict"),
        ("SLIPWAY_NAMESPACE", "No_Good", "matches"),
        ("SLIPWAY_DRAIN_TIMEOUT_S", "-1", ">= 0"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, text: str, complaint: str):
    """The message of a bad value has the variable, its value, and the allowed values."""
    with pytest.raises(InvalidError) as caught:
        load(_Settings, {name: text})
    (field,) = caught.value.fields
    assert field.pointer == f"/{name}"
    assert repr(text) in field.detail
    assert complaint in field.detail
    assert f"{name} is" in str(caught.value)


def test_listen_is_checked_where_the_field_says_so():
    """A `check` in the field's Meta refuses by ValueError."""
    with pytest.raises(InvalidError, match="SLIPWAY_LISTEN is 'nowhere'"):
        load(CommonSettings, {"SLIPWAY_LISTEN": "nowhere"})


def test_every_problem_is_reported_at_once():
    """One start reports every problem."""
    env = {"SLIPWAY_BATCH_COUNT": "0", "SLIPWAY_RATIO": "x", "SLIPWAY_BATCH_CUONT": "3"}
    with pytest.raises(InvalidError) as caught:
        load(_Settings, env)
    assert {field.pointer for field in caught.value.fields} == {f"/{name}" for name in env}


def test_a_typo_is_answered_with_the_nearest_name():
    """An unknown SLIPWAY_ variable stops the start."""
    with pytest.raises(InvalidError, match=r"SLIPWAY_REDIS_ULR is not a setting; did you mean SLIPWAY_REDIS_URL\?"):
        load(_Settings, {"SLIPWAY_REDIS_ULR": "redis://h"})


@pytest.mark.parametrize("name", sorted(settings.TASK_NAMES))
def test_what_tasks_and_the_command_line_read_is_no_typo(name: str):
    """Variables of tasks and of the command line are no typo, because a shared environment contains them too."""
    assert load(_Settings, {name: "x"}) == _Settings()


def test_settings_of_another_service_are_no_typo(monkeypatch: pytest.MonkeyPatch):
    """`slipway up` starts all services with one environment; a missing service is tolerated."""
    monkeypatch.setattr(settings, "ALL_SETTINGS", (__name__, "slipway.no_such_service.settings"))
    monkeypatch.setattr("sys.modules", {**__import__("sys").modules, __name__: _module()})
    assert load(CommonSettings, {"SLIPWAY_BATCH_COUNT": "3"}) == CommonSettings()
    with pytest.raises(InvalidError, match="did you mean SLIPWAY_BATCH_COUNT"):
        load(CommonSettings, {"SLIPWAY_BATCH_COUMT": "3"})


def _module() -> object:
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(_Settings=_Settings, load=load)
    return module


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLIPWAY_API_SERVICE_HOST", "10.0.0.1"),
        ("SLIPWAY_API_SERVICE_PORT_HTTP", "80"),
        ("SLIPWAY_API_PORT", "tcp://10.0.0.1:80"),
        ("SLIPWAY_API_PORT_80_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_kubernetes_service_links_are_no_typo(name: str, value: str):
    """Variables of Kubernetes service links are no typo: a Service called slipway-api must not stop the pods beside
    it."""
    assert load(_Settings, {name: value}) == _Settings()


def test_a_missing_setting_is_named():
    """A missing required setting is named with its purpose."""
    with pytest.raises(InvalidError, match="SLIPWAY_CLUSTER_NAME is required: The name of the cluster"):
        load(_Required, {})
    assert load(_Required, {"SLIPWAY_CLUSTER_NAME": "c"}).cluster_name == "c"


@pytest.mark.parametrize("show", [repr, str])
def test_secrets_are_not_printed(show: Callable[[object], str]):
    """Secret fields and passwords in URLs are not printed; the host is."""
    values = load(
        _Settings, {"SLIPWAY_REDIS_URL": "redis://u:hunter2@h:1/0", "SLIPWAY_SIGNING_SECRET": "correct horse"}
    )
    text = show(values)
    assert "hunter2" not in text
    assert "correct horse" not in text
    assert "redis://u:***@h:1/0" in text


def test_secrets_are_not_printed_in_complaints():
    """A bad secret is refused without being shown."""

    class SecretSettings(CommonSettings, frozen=True, kw_only=True):
        api_token: Annotated[str, Meta(min_length=64)] = ""

    with pytest.raises(InvalidError) as caught:
        load(SecretSettings, {"SLIPWAY_API_TOKEN": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_rows_describe_each_field_for_the_reference_page():
    """Variable, type, default, unit, bounds and description come from the field itself."""
    rows = _rows(_Settings)
    batch = rows["batch_count"]
    assert batch == SettingRow(
        field="batch_count",
        variable="SLIPWAY_BATCH_COUNT",
        type="int",
        default="16",
        unit="messages",
        bounds=">= 1, <= 64",
        secret=False,
        description="Batch.",
    )
    assert rows["pools"].default == "default"
    assert rows["enabled"].default == "true"
    assert rows["style"].type == "short | long"
    assert rows["kubeconfig"].variable == "KUBECONFIG"
    assert rows["signing_secret"].secret
    assert _rows(_Required)["cluster_name"].default is None


def test_every_setting_of_the_product_is_described():
    """The reference page has no empty row; defaults are within their own bounds."""
    for name, struct in {**settings.all_settings(), "common": CommonSettings}.items():
        rows = describe(struct)
        required = {row.variable: "a" for row in rows if row.default is None}
        for row in rows:
            assert row.description, f"{name}.{row.field} has no description"
            if row.default and not row.secret:
                load(struct, {**required, row.variable: row.default})
