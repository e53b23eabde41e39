"""Settings: `SLIPWAY_*` environment variables as one frozen, checked struct per service.

This module owns how a variable becomes a field, the errors for bad variables, and the settings that every service
shares. It knows no service: `ALL_SETTINGS` names their modules as text. They are imported only to distinguish a typo
from a variable of another process, because `slipway up` starts all processes with one environment.

Invariants: a field `redis_url` is read from `SLIPWAY_REDIS_URL`; an empty variable is treated as unset; all problems
are reported together; no secret is ever printed.

A field is `Annotated[type, Meta(...)]`: bounds and description as msgspec knows them, and `extra` with any of `unit`,
`env` (the variable, when it is not `SLIPWAY_<FIELD>`), `secret` (hide the value) and `check` (raises ValueError).
"""

import difflib
import importlib
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta

from slipway.errors import FieldError, InvalidError
from slipway.runtime.connections import CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX
from slipway.runtime.listen import parse_listen
from slipway.runtime.redaction import HIDDEN, is_secret_key, redact_text
from slipway.runtime.redis_url import whole_url

PREFIX = "SLIPWAY_"
ALL_SETTINGS = (
    "slipway.api.settings",
    "slipway.scheduler.settings",
    "slipway.podworker.settings",
    "slipway.watcher.settings",
    "slipway.ops.setup.settings",
    "slipway.local.settings",
    "slipway.cli.settings",
)
"""Every module with a settings struct: a `msgspec.Struct` whose name ends in `Settings`."""

TASK_NAMES = frozenset(
    {
        "SLIPWAY_ALLOCATION_ID",
        "SLIPWAY_ATTEMPT",
        "SLIPWAY_RANK",
        "SLIPWAY_API",
        "SLIPWAY_TOKEN",
        "SLIPWAY_TOKEN_FILE",
        "SLIPWAY_WORKLOAD_TOKEN",
    }
)
"""Variables that workloads and the command line read. No service reads them, and no service rejects them."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE = "slipway-system"
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")

StructT = TypeVar("StructT", bound=msgspec.Struct)


def in_cluster_namespace() -> str:
    """Return the namespace of the pod that this process runs in, else `slipway-system`."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or _DEFAULT_NAMESPACE
    except OSError:
        return _DEFAULT_NAMESPACE


class CommonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of every service. A service's `Settings` derives from it and may override defaults."""

    redis_url: Annotated[
        str,
        Meta(
            description="Where Redis or Valkey is: redis://, rediss:// (TLS) or unix:// for one server, "
            "redis+cluster:// or redis+sentinel:// (rediss+... with TLS) with comma-separated nodes for many. Empty: "
            "no Redis; everything still works with consistent LISTs every few seconds, but slower."
        ),
    ] = ""
    redis_user: Annotated[
        str,
        Meta(
            description="The Redis account of this service; it replaces the account in the URL. The rights that it "
            "needs: docs/reference/redis-accounts.md."
        ),
    ] = ""
    redis_password: Annotated[
        str,
        Meta(
            description="Password of the Redis account. Without a user: password of the user `default`.",
            extra={"secret": True},
        ),
    ] = ""
    redis_ca_file: Annotated[
        str,
        Meta(
            description="File with the CA certificates that verify the Redis server; for the URLs with TLS. Empty: "
            "the CA certificates of the system."
        ),
    ] = ""
    listen: Annotated[
        str,
        Meta(
            description="host:port of the HTTP server (health, metrics; the API of the api service). Port 0: any free "
            "port. Loopback by default, because the server should not be reachable before it is secured.",
            extra={"check": parse_listen},
        ),
    ] = "127.0.0.1:0"
    namespace: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            max_length=63,
            description="Namespace of leases and of our own objects. Default: the namespace of the pod, else "
            "slipway-system.",
        ),
    ] = msgspec.field(default_factory=in_cluster_namespace)
    kubeconfig: Annotated[
        str,
        Meta(
            description="Path of the kubeconfig. Empty: the service account of the pod, else ~/.kube/config.",
            extra={"env": "KUBECONFIG"},
        ),
    ] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Lowest log level that is written. info: one line per request, message or tick."),
    ] = "info"
    log_format: Annotated[
        Literal["json", "text"],
        Meta(description="json for machines, text for a terminal."),
    ] = "json"
    drain_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Time that a stopping process has to finish its work. Below the 30 s that Kubernetes grants "
            "by default, so that the process ends before it is killed.",
            extra={"unit": "seconds"},
        ),
    ] = 25.0
    otel_endpoint: Annotated[
        str,
        Meta(
            description="Base URL of an OTLP collector, http:// or https://. Empty: spans are not exported; the "
            "waterfall needs no collector. Headers, certificates and compression: OTEL_EXPORTER_OTLP_*, as in "
            "OpenTelemetry.",
            extra={"env": "OTEL_EXPORTER_OTLP_ENDPOINT"},
        ),
    ] = ""
    otel_protocol: Annotated[
        Literal["http/protobuf", "grpc"],
        Meta(
            description="Protocol of the collector; the usual ports are 4318 and 4317.",
            extra={"env": "OTEL_EXPORTER_OTLP_PROTOCOL"},
        ),
    ] = "http/protobuf"
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Maximum of connections to one listener. A further connection is closed at once, before its "
            "TLS handshake.",
        ),
    ] = CONNECTIONS_MAX
    connections_per_address_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Maximum of connections from one IPv4 address, or from one IPv6 network of 64 bits. Behind an "
            "Ingress all users have the addresses of its pods.",
        ),
    ] = CONNECTIONS_PER_ADDRESS_MAX
    trace_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Fraction of new traces that is recorded. 1, because one launch makes only a few dozen spans.",
            extra={"unit": "ratio"},
        ),
    ] = 1.0

    metrics_token_file: Annotated[
        str,
        Meta(
            description="File with the bearer token that /metrics requires, for a machine whose other accounts can "
            "reach it. Empty: no token, as in a cluster, where a NetworkPolicy limits the access."
        ),
    ] = ""

    def whole_redis_url(self) -> str:
        """Return the URL of Redis, with our login. Raises InvalidError when its parts do not fit together."""
        return whole_url(self.redis_url, user=self.redis_user, password=self.redis_password, ca_file=self.redis_ca_file)

    def read_metrics_token(self) -> str:
        """Return the token in that file; empty without a file. Raises InvalidError when it cannot be read or is
        empty.
        """
        return read_token("SLIPWAY_METRICS_TOKEN_FILE", self.metrics_token_file)

    def __repr__(self) -> str:
        shown = ", ".join(f"{row.field}={_shown(row, getattr(self, row.field))}" for row in describe(type(self)))
        return f"{type(self).__name__}({shown})"


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, for the reference page, `--help` and the chart's values."""

    field: str
    variable: str
    type: str
    default: str | None
    """None when the setting is required."""
    unit: str
    bounds: str
    secret: bool
    description: str


def read_token(variable: str, path: str) -> str:
    """Return the token in the file that a variable names; empty when it names none.

    Raises:
        InvalidError: the file cannot be read, or is empty.
    """
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"{variable}: {path} cannot be read: {error}") from error
    if not token:
        raise InvalidError(f"{variable}: {path} is empty; write a token into it")
    return token


def load(cls: type[StructT], env: Mapping[str, str] | None = None) -> StructT:
    """Return the settings in `env` (default: the process environment).

    Raises:
        InvalidError: one field per bad, missing or unknown variable, each with the allowed values.
    """
    env = os.environ if env is None else env
    rows = {row.field: row for row in describe(cls)}
    values: dict[str, object] = {}
    problems = _unknown(cls, env)
    for info in msgspec.structs.fields(cls):
        row = rows[info.name]
        text = env.get(row.variable, "")
        if text:
            try:
                values[info.name] = value = _decode(text, info.type)
                for check in _checks(info.type):
                    check(value)
            except (msgspec.ValidationError, ValueError) as error:
                problems.append(_problem(row, text, str(error)))
        elif info.required:
            problems.append(FieldError(f"/{row.variable}", f"is required: {row.description}"))
    if problems:
        raise _invalid(problems)
    try:
        return cls(**values)
    except ValueError as error:
        raise _invalid([FieldError("", str(error))]) from error


def describe(cls: type[msgspec.Struct]) -> list[SettingRow]:
    """Return one row per field, in order of definition."""
    return [_row(info) for info in msgspec.structs.fields(cls)]


def all_settings() -> dict[str, type[msgspec.Struct]]:
    """Return {`module.Name`: struct} of every part of the product that is installed."""
    found: dict[str, type[msgspec.Struct]] = {}
    for module_name in ALL_SETTINGS:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # An image may contain one service only. A broken import inside an installed service is still an error.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            continue
        for name, value in vars(module).items():
            is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct)
            if is_struct and name.endswith("Settings") and value.__module__ == module_name:
                found[f"{module_name}.{name}"] = value
    return found


def known_names() -> frozenset[str]:
    """Return every variable that some part of the product reads."""
    return TASK_NAMES.union(row.variable for struct in all_settings().values() for row in describe(struct))


def _unknown(cls: type[msgspec.Struct], env: Mapping[str, str]) -> list[FieldError]:
    own = {row.variable for row in describe(cls)}
    strange = sorted(
        name for name in env if name.startswith(PREFIX) and name not in own and not _is_service_link(name, env[name])
    )
    if not strange:
        return []
    known = own | known_names()
    problems: list[FieldError] = []
    for name in strange:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            problems.append(FieldError(f"/{name}", f"is not a setting; did you mean {close[0]}?"))
    return problems


def _is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes set the variable for a Service called slipway-something."""
    return bool(_SERVICE_LINK.search(name)) or (name.endswith("_PORT") and "://" in value)


def _decode(text: str, kind: Any) -> object:
    base = _base(kind)
    origin = typing.get_origin(base)
    if origin is tuple:
        parts = [part.strip() for part in text.split(",")]
        return msgspec.convert([part for part in parts if part], kind, strict=False)
    if origin is Literal:
        text = next((word for word in typing.get_args(base) if str(word).lower() == text.lower()), text)
    if origin is dict or _is_subclass(base, msgspec.Struct):
        return msgspec.json.decode(text, type=kind)
    return msgspec.convert(text, kind, strict=False)


def _checks(kind: Any) -> list[Callable[[Any], object]]:
    """Return the functions of `Meta(extra={"check": ...})`; they raise ValueError."""
    extras = [part.extra or {} for part in typing.get_args(kind)[1:] if isinstance(part, Meta)]
    return [extra["check"] for extra in extras if "check" in extra]


def _base(kind: Any) -> Any:
    """Return the type without `Annotated` and without `| None`."""
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def _row(info: msgspec.structs.FieldInfo) -> SettingRow:
    metas = [part for part in typing.get_args(info.type)[1:] if isinstance(part, Meta)]
    extra: dict[str, Any] = {}
    for meta in metas:
        extra |= meta.extra or {}
    secret = bool(extra.get("secret", is_secret_key(info.name)))
    default: object = info.default
    if info.default_factory is not msgspec.NODEFAULT:
        default = info.default_factory()
    return SettingRow(
        field=info.name,
        variable=str(extra.get("env", PREFIX + info.name.upper())),
        type=_type_name(_base(info.type)),
        default=None if info.required else (HIDDEN if secret and default else _spelled(default)),
        unit=str(extra.get("unit", "")),
        bounds=", ".join(_bounds(meta) for meta in metas if _bounds(meta)),
        secret=secret,
        description=" ".join(meta.description for meta in metas if meta.description),
    )


def _is_subclass(kind: Any, parent: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, parent)


def _type_name(base: Any) -> str:
    if typing.get_origin(base) is Literal:
        return " | ".join(str(word) for word in typing.get_args(base))
    if _is_subclass(base, Enum):
        return " | ".join(str(member.value) for member in base)
    if typing.get_origin(base) is tuple:
        return "comma-separated list"
    return getattr(base, "__name__", str(base))


def _bounds(meta: Meta) -> str:
    bounds = {
        ">= {}": meta.ge,
        "> {}": meta.gt,
        "<= {}": meta.le,
        "< {}": meta.lt,
        "matches {}": meta.pattern,
        "at least {} characters": meta.min_length,
        "at most {} characters": meta.max_length,
    }
    return ", ".join(text.format(value) for text, value in bounds.items() if value is not None)


def _spelled(value: object) -> str:
    """Return the value as written in the environment."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(_spelled(part) for part in cast(tuple[object, ...], value))
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)


def _shown(row: SettingRow, value: object) -> str:
    if row.secret and value:
        return HIDDEN
    return repr(redact_text(value)) if isinstance(value, str) else repr(value)


def _problem(row: SettingRow, text: str, detail: str) -> FieldError:
    shown = HIDDEN if row.secret else redact_text(text)
    allowed = "; ".join(part for part in (row.type, row.bounds, row.unit) if part)
    detail = HIDDEN if row.secret else redact_text(detail)
    return FieldError(f"/{row.variable}", f"is {shown!r}: {detail}. Allowed: {allowed}")


def _invalid(problems: list[FieldError]) -> InvalidError:
    lines = [f"{problem.pointer.removeprefix('/')} {problem.detail}".strip() for problem in problems]
    return InvalidError("bad settings\n  " + "\n  ".join(lines), fields=tuple(problems))
