"""Paths and queries of the Kubernetes API, parsed into values.

Owns the grammar of URLs. Pure; reads the registry only to distinguish a resource from a wrong path.
"""

from collections.abc import Mapping

import msgspec

from slipway.local.apiserver.options import DeleteOptions, WriteOptions, read_delete_options
from slipway.local.apiserver.paging import ListQuery
from slipway.local.apiserver.registry import KindRegistry, ResourceKind
from slipway.local.apiserver.status import (
    FieldCause,
    bad_request,
    bad_value,
    invalid_options,
    no_such_path,
    not_allowed,
    too_long,
    unsupported,
)

Query = Mapping[str, str]
WRITER_LENGTH_MAX = 128
_TRUE = frozenset({"1", "true", "True", "t", "T", "TRUE"})


class RouteTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The resource or object that a path names; `namespace` is None for a list over all namespaces."""

    kind: ResourceKind
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def place(self) -> str:
        return self.namespace or ""


def resolve(registry: KindRegistry, path: str) -> RouteTarget:
    """Return the target of a path. Raises: StatusError 404."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) >= 3 and not (len(rest) == 3 and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    kind = registry.at(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace is not None and not kind.namespaced):
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    if kind.namespaced and namespace is None and name:
        raise no_such_path()
    return RouteTarget(kind=kind, namespace=namespace, name=name, subresource=rest[2] if len(rest) > 2 else "")


def is_true(query: Query, name: str) -> bool:
    return query.get(name, "") in _TRUE


def number(query: Query, name: str) -> int:
    """Return a whole number of the query, 0 when it is missing. Raises: StatusError 400."""
    text = query.get(name, "")
    if not text:
        return 0
    try:
        value = int(text)
    except ValueError as exc:
        raise bad_request(f'{name}: Invalid value: "{text}": strconv.ParseInt: invalid syntax') from exc
    if value < 0:
        raise bad_request(f'{name}: Invalid value: "{text}": must not be negative')
    return value


def write_options(query: Query, kind: str, agent: str = "", *, is_apply: bool = False) -> WriteOptions:
    """Return the options of a write. Raises: StatusError 422.

    kind: CreateOptions, UpdateOptions or PatchOptions. agent: the user agent.
    """
    causes = list[FieldCause]()
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        causes.append(unsupported("fieldValidation", validation, ["", "Ignore", "Strict", "Warn"]))
    force, writer = query.get("force"), query.get("fieldManager", "")
    if force is not None and kind == "PatchOptions" and not is_apply:
        causes.append(not_allowed("force", "may not be specified for non-apply patch"))
    if len(writer) > WRITER_LENGTH_MAX:
        causes.append(too_long("fieldManager", WRITER_LENGTH_MAX))
    elif not writer.isprintable():
        causes.append(bad_value("fieldManager", writer, "should only contain printable characters"))
    if causes:
        raise invalid_options(kind, causes)
    name = writer if writer or is_apply else _agent_name(agent)
    return WriteOptions(
        dry_run=_dry_run(query, kind), field_validation=validation, writer=name, force=force in _TRUE, warnings=[]
    )


def delete_options(query: Query, body: object) -> DeleteOptions:
    """Return the options of a delete: those of the body, completed by those of the query."""
    given = dict(body) if isinstance(body, dict) else {}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if "gracePeriodSeconds" in query:
        given.setdefault("gracePeriodSeconds", number(query, "gracePeriodSeconds"))  # pyright: ignore[reportUnknownMemberType]
    if "propagationPolicy" in query:
        given.setdefault("propagationPolicy", query["propagationPolicy"])  # pyright: ignore[reportUnknownMemberType]
    if _dry_run(query, "DeleteOptions"):
        given["dryRun"] = ["All"]
    return read_delete_options(given)  # pyright: ignore[reportUnknownArgumentType]


def list_query(query: Query, name: str = "") -> ListQuery:
    """Return the selection of a list or watch. Raises: StatusError 400, 422.

    name: the single object that a watch on the object's path selects.
    """
    _check_match(query)
    fields = query.get("fieldSelector", "")
    if name:
        fields = ",".join(filter(None, (fields, f"metadata.name={name}")))
    return ListQuery(
        labels=query.get("labelSelector", ""),
        fields=fields,
        limit=number(query, "limit"),
        continue_token=query.get("continue", ""),
        version=number(query, "resourceVersion"),
        exact=query.get("resourceVersionMatch") == "Exact",
    )


def _check_match(query: Query) -> None:
    """Check that resourceVersionMatch and sendInitialEvents are a valid combination. Raises: StatusError 422."""
    field, match = "resourceVersionMatch", query.get("resourceVersionMatch", "")
    sends_initial = query.get("sendInitialEvents") is not None
    causes = list[FieldCause]()
    if is_true(query, "watch"):
        if sends_initial and match != "NotOlderThan":
            causes.append(not_allowed(field, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
        elif match and not sends_initial:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            causes.append(not_allowed(field, why))
        if match not in ("", "NotOlderThan"):
            causes.append(unsupported(field, match, ["NotOlderThan"]))
    elif match:
        if not query.get("resourceVersion"):
            why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            causes.append(not_allowed(field, why))
        if match not in ("Exact", "NotOlderThan"):
            causes.append(unsupported(field, match, ["Exact", "NotOlderThan", ""]))
        elif match == "Exact" and query.get("resourceVersion") == "0":
            causes.append(not_allowed(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    if causes:
        raise invalid_options("ListOptions", causes)


def _dry_run(query: Query, kind: str) -> bool:
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        raise invalid_options(kind, [unsupported("dryRun", [value], ["All"])])
    return value == "All"


def _agent_name(agent: str) -> str:
    """Return the field manager of a caller that names none: the first part of its user agent."""
    return "".join(char for char in agent.partition("/")[0] if char.isprintable())[:WRITER_LENGTH_MAX]
