"""The calls of the SDK as values: the request, and the type of the answer. Pure: nothing is sent.

Owns the paths, parameters and bodies of the calls; the types are the structs of the server. Must not know how a call
reaches the server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from slipway.api.allocations.batch_schemas import BatchAnswer, BatchRequest, LaunchesAnswer
from slipway.api.allocations.change_schemas import ChangeBody, KillBody
from slipway.api.queues.job_schemas import JobBody, JobChange, JobChanged, JobList, JobView
from slipway.api.schemas import (
    AllocationList,
    AllocationView,
    ExplainView,
    Items,
    ListMetadata,
    LogLineView,
    Me,
    NodeView,
    PodView,
    PoolView,
    PreemptBody,
    QueueView,
    TimelineView,
)
from slipway.errors import FieldError, InvalidError, PermanentError
from slipway.sdk import retries
from slipway.sdk.launches import fields_of

if TYPE_CHECKING:
    from slipway.api.usage.usage_view import UsageView

Json = dict[str, Any]
T = TypeVar("T")

API = "/api/v1"
LOG_PAGE_LINES = 10_000
"""The most lines in one answer of the api; a page of a log with fewer lines is the last one."""
NOTHING: Any = type(None)


class ListFilters(TypedDict, total=False):
    """Filters of a list of allocations; `limit` is the number of allocations in one page."""

    workspace: str
    queue: str
    pool: str
    user: str
    phase: str
    kind: str
    active: bool
    job: str
    result: str
    search: str
    created_after: str
    created_before: str
    ended_after: str
    ended_before: str
    sort: str
    label_selector: str
    limit: int


class LogFilters(TypedDict, total=False):
    """Filters of the lines of a log."""

    rank: int | str
    attempt: int
    container: str
    stream: str
    head: int
    tail: int
    since: str
    until: str
    search: str
    regex: bool


class UsageFilters(TypedDict, total=False):
    """Filters of the usage that is summed."""

    workspace: str
    user: str
    pool: str
    queue: str
    kind: str


class LogPage(msgspec.Struct, kw_only=True, frozen=True):
    """One page of a log; `metadata.continue` is the cursor of its last line."""

    items: list[LogLineView]
    metadata: ListMetadata


class EventPage(msgspec.Struct, kw_only=True, frozen=True):
    """One page of events, in the JSON form of the server."""

    items: list[Json]
    metadata: ListMetadata


@dataclass(frozen=True, kw_only=True)
class ApiCall(Generic[T]):
    """One call."""

    method: str
    path: str
    """below /api/v1"""
    answer: type[T]
    query: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_repeatable(self) -> bool:
        """Whether the call has the same effect and the same answer when it is sent twice."""
        return retries.is_repeatable(self.method, self.path, query=self.query, headers=self.headers, body=self.body)

    @property
    def content(self) -> bytes | None:
        """The body in the bytes that are sent."""
        return None if self.body is None else msgspec.json.encode(self.body)

    def decode(self, body: bytes) -> T:
        """Decode the answer. Raises PermanentError when the body does not have the type that this version knows."""
        if self.answer is NOTHING or not body.strip():
            return cast("T", None)
        try:
            return msgspec.json.decode(body, type=self.answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            words = f"the answer to {self.method} {self.path} is not what this version of the SDK reads ({error})"
            raise PermanentError(f"{words}; compare the versions of client and server") from error


def target(prefix: str, path: str, query: Mapping[str, Any]) -> str:
    """Return the request target of a path below /api/v1; parameters without a value are left out."""
    pairs = [(name, _text(value)) for name, value in query.items() if value is not None and value != ""]
    return prefix + API + path + (f"?{urlencode(pairs)}" if pairs else "")


def _text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ",".join(map(str, cast("list[Any]", value)))
        case _:
            return str(value)


def parameters(filters: Mapping[str, Any]) -> Json:
    """Return filters under the names of the API: `created_after` becomes `createdAfter`."""
    return {_camel(name): value for name, value in filters.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _one(kind: str, id_: str, rest: str = "") -> str:
    """Return the path of one object. Raises InvalidError for an empty id, which would be the path of the list."""
    if not id_:
        raise InvalidError(f"{kind}: an id or a name is needed", fields=(FieldError("/id", "must not be empty"),))
    return f"/{kind}/{quote(id_, safe='')}{rest}"


def _allocation(id_: str, rest: str = "") -> str:
    return _one("allocations", id_, rest)


# --- launches ---------------------------------------------------------------------------------------------------------


def launch(body: Json, key: str) -> ApiCall[AllocationView]:
    """Build a launch. It launches once, even when the call is sent several times with this key."""
    headers = {"Idempotency-Key": key}
    return ApiCall(method="POST", path="/allocations", body=body, headers=headers, answer=AllocationView)


def launch_many(common: Json, each: Sequence[Json], key: str) -> ApiCall[LaunchesAnswer]:
    """Build one call for many launches.

    Each item of `each` is launched once, even when the call is sent several times with this key.

    An item of `each` contains the fields that differ; the server applies them over `common`.

    Without `each`, `common` contains the number of replicas."""
    body: Json = {"launch": common} | ({"each": [*each]} if each else {})
    headers = {"Idempotency-Key": key}
    return ApiCall(method="POST", path="/allocations/launches", body=body, headers=headers, answer=LaunchesAnswer)


def preview(body: Json) -> ApiCall[Json]:
    """Build the preview of a launch, which launches nothing."""
    return ApiCall(method="POST", path="/allocations", body=body, query={"dryRun": True}, answer=Json)


# --- one allocation ---------------------------------------------------------------------------------------------------


def get(id_: str) -> ApiCall[AllocationView]:
    """Build the call that reads one allocation."""
    return ApiCall(method="GET", path=_allocation(id_), answer=AllocationView)


def explain(id_: str, *, foresee: bool) -> ApiCall[ExplainView]:
    """Build the call that explains the state of an allocation."""
    query = {"foresee": True} if foresee else {}
    return ApiCall(method="GET", path=_allocation(id_, "/explain"), query=query, answer=ExplainView)


def timeline(id_: str) -> ApiCall[TimelineView]:
    """Build the call that reads the time in each phase."""
    return ApiCall(method="GET", path=_allocation(id_, "/timeline"), answer=TimelineView)


def pods(id_: str) -> ApiCall[Items[PodView]]:
    """Build the call that reads the pods of an allocation."""
    return ApiCall(method="GET", path=_allocation(id_, "/pods"), answer=Items[PodView])


def kill(id_: str, *, grace: str, force: bool) -> ApiCall[AllocationView]:
    """Build the end of an allocation. A second kill ends its pods at once, so only `force` may be sent twice."""
    body = KillBody(force=force, grace=grace)
    path = _allocation(id_, "/kill")
    return ApiCall(method="POST", path=path, body=body, answer=AllocationView)


def terminate(id_: str, reason: str) -> ApiCall[AllocationView]:
    """Build the end of an allocation that may first save its work when it can."""
    body = PreemptBody(reason=reason)
    path = _allocation(id_, "/terminate")
    return ApiCall(method="POST", path=path, body=body, answer=AllocationView)


def preempt(id_: str, reason: str) -> ApiCall[AllocationView]:
    """Build the call that asks the ranks to save their work and end."""
    body = PreemptBody(reason=reason)
    path = _allocation(id_, "/preempt")
    return ApiCall(method="POST", path=path, body=body, answer=AllocationView)


def hold(id_: str) -> ApiCall[AllocationView]:
    """Build the hold of an allocation: it does not start; a running one saves its work first."""
    return ApiCall(method="POST", path=_allocation(id_, "/hold"), answer=AllocationView)


def release(id_: str) -> ApiCall[AllocationView]:
    """Build the call that undoes a hold."""
    return ApiCall(method="POST", path=_allocation(id_, "/resume"), answer=AllocationView)


def change(id_: str, given: Mapping[str, Any]) -> ApiCall[AllocationView]:
    """Build a change of fields of `ChangeBody`, which may change after the launch. Raises InvalidError for others."""
    body = fields_of(ChangeBody, given)
    return ApiCall(method="PATCH", path=_allocation(id_), body=body, answer=AllocationView)


def batch(verb: str, key: str, given: Mapping[str, Any]) -> ApiCall[BatchAnswer]:
    """Build one verb for many allocations, with the fields of `BatchRequest`.

    Each allocation is changed once, even when the call is sent several times with this key.

    Raises:
        InvalidError: there is no such field.
    """
    body = fields_of(BatchRequest, {"verb": verb, **given})
    headers = {"Idempotency-Key": key}
    return ApiCall(method="POST", path="/allocations/batch", body=body, headers=headers, answer=BatchAnswer)


def delete(id_: str) -> ApiCall[AllocationView]:
    """Build the deletion of an allocation; a running one is ended first."""
    return ApiCall(method="DELETE", path=_allocation(id_), answer=AllocationView)


# --- lists ------------------------------------------------------------------------------------------------------------


def list_page(filters: Mapping[str, Any], cursor: str) -> ApiCall[AllocationList]:
    """Build the call that reads one page of allocations."""
    query = {**parameters(filters), "continue": cursor}
    return ApiCall(method="GET", path="/allocations", query=query, answer=AllocationList)


def log_page(id_: str, filters: Mapping[str, Any], cursor: str) -> ApiCall[LogPage]:
    """Build the call that reads one page of a log."""
    query = {**parameters(filters), "after": cursor}
    return ApiCall(method="GET", path=_allocation(id_, "/logs"), query=query, answer=LogPage)


def is_last_log_page(page: LogPage, filters: Mapping[str, Any], cursor: str) -> bool:
    """Whether the page that was requested with `cursor` is the last one."""
    is_one_page = "head" in filters or "tail" in filters
    return is_one_page or len(page.items) < LOG_PAGE_LINES or page.metadata.continue_ in ("", cursor)


def event_page(id_: str, cursor: str) -> ApiCall[EventPage]:
    """Build the call that reads one page of the events of an allocation; an empty page is the last one."""
    query = {"after": cursor, "follow": False}
    return ApiCall(method="GET", path=_allocation(id_, "/events"), query=query, answer=EventPage)


def log_stream_path(id_: str) -> str:
    """Return the path of the stream of a log."""
    return _allocation(id_, "/logs")


def event_stream_path(id_: str) -> str:
    """Return the path of the event stream of an allocation; for an empty id, of all allocations."""
    return _allocation(id_, "/events") if id_ else "/events"


# --- the cluster ------------------------------------------------------------------------------------------------------


def jobs(*, workspace: str, queue: str, state: str) -> ApiCall[JobList]:
    """Build the call that reads the jobs (groups of allocations)."""
    query = {"workspace": workspace, "queue": queue, "state": state}
    return ApiCall(method="GET", path="/jobs", query=query, answer=JobList)


def create_job(name: str, workspace: str, given: Mapping[str, Any]) -> ApiCall[JobView]:
    """Build the creation of a job with fields of `JobBody`. Raises InvalidError for any other field."""
    body = fields_of(JobBody, {"name": name, "workspace": workspace or None, **given})
    return ApiCall(method="POST", path="/jobs", body=body, answer=JobView)


def job(name: str, workspace: str) -> ApiCall[JobView]:
    """Build the call that reads one job with its members."""
    return ApiCall(method="GET", path=_one("jobs", name), query={"workspace": workspace}, answer=JobView)


def change_job(name: str, workspace: str, given: Mapping[str, Any]) -> ApiCall[JobChanged]:
    """Build a change of the fields in `JobChange`. Raises InvalidError for any other field."""
    body = fields_of(JobChange, given)
    query = {"workspace": workspace}
    return ApiCall(method="PATCH", path=_one("jobs", name), query=query, body=body, answer=JobChanged)


def queues() -> ApiCall[Items[QueueView]]:
    """Build the call that reads the queues."""
    return ApiCall(method="GET", path="/queues", answer=Items[QueueView])


def queue(name: str) -> ApiCall[QueueView]:
    """Build the call that reads one queue and its waiting allocations."""
    return ApiCall(method="GET", path=_one("queues", name), answer=QueueView)


def pools() -> ApiCall[Items[PoolView]]:
    """Build the call that reads the pools."""
    return ApiCall(method="GET", path="/pools", answer=Items[PoolView])


def nodes() -> ApiCall[Items[NodeView]]:
    """Build the call that reads the nodes, and what is placed on them."""
    return ApiCall(method="GET", path="/nodes", answer=Items[NodeView])


def node(name: str) -> ApiCall[NodeView]:
    """Build the call that reads one node."""
    return ApiCall(method="GET", path=_one("nodes", name), answer=NodeView)


def usage(by: str, first_day: str, last_day: str, filters: Mapping[str, Any]) -> "ApiCall[UsageView]":
    """Build the call that reads the summed usage."""
    from slipway.api.usage.usage_view import UsageView

    query = {**parameters(filters), "by": by, "from": first_day, "to": last_day}
    return ApiCall(method="GET", path="/usage", query=query, answer=UsageView)


def me() -> ApiCall[Me]:
    """Build the call that reads the caller's identity."""
    return ApiCall(method="GET", path="/me", answer=Me)
