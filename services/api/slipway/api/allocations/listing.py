"""Filtered pages of allocations. The API server applies the filters that it supports; this module applies the others.

Invariant: a client that follows `continue` to the end gets every allocation that matches all the time, once.

A list filter that names a workspace, queue, pool or job that does not exist is refused. Without the refusal the empty
answer would read as "nothing runs there". The error has the same words as the one for a launch body. The names are
checked only after a list found nothing, so that other lists cost no further read.

- A remembered name is no error: its queue was deleted, but retained allocations or usage totals still name the queue.
- A user is never refused: a user who launched nothing has no object.
- A workspace that the caller may not see is refused in the words for one that does not exist.

Owns the refusal. It must not know the routes.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Literal

import msgspec

from slipway.api.http.errors import PageExpiredError
from slipway.api.launch.catalog import names_shown
from slipway.api.ports import Kube
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ExpiredError, FieldError, InvalidError
from slipway.kube.ports import Listed
from slipway.kube.resources import ALLOCATIONS, JOBS, QUEUES, RESOURCE_POOLS
from slipway.model.lifecycle import Kind, Phase
from slipway.model.reasons import Result
from slipway.model.times import parse_time

PAGES_READ_MAX = 20
"""Limit of pages that one request reads, because a filter that is applied here can leave pages empty."""


class TimeRange(msgspec.Struct, frozen=True, kw_only=True):
    """The times from `after` until before `before` (epoch seconds); None means no bound.

    An item without a time is in no bounded range.
    """

    after: float | None = None
    before: float | None = None

    def has(self, time: str) -> bool:
        """Whether an RFC 3339 time is in the range."""
        if self.after is None and self.before is None:
            return True
        if not time:
            return False
        at = parse_time(time)
        return (self.after is None or at >= self.after) and (self.before is None or at < self.before)


class ListFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of a list; an empty field matches everything."""

    workspace: str = ""
    queue: str = ""
    pool: str = ""
    user: str = ""
    phases: frozenset[Phase] = frozenset()
    kind: Kind | None = None
    is_active: bool = False
    job: str = ""
    results: frozenset[Result] = frozenset()
    created: TimeRange = TimeRange()
    ended: TimeRange = TimeRange()
    label_selector: str = ""
    words: tuple[str, ...] = ()
    """each word has to be in the id, the name or the user, in any case"""

    def has(self, allocation: Allocation) -> bool:
        """Whether the allocation matches, except for labels, which the API server checks."""
        if self.phases and allocation.status.phase not in self.phases:
            return False
        if self.is_active and len(self.phases) != 1 and allocation.status.phase is Phase.TERMINATED:
            return False
        if self.workspace and allocation.metadata.namespace != self.workspace:
            return False
        if (self.queue and allocation.spec.queue != self.queue) or (self.pool and allocation.spec.pool != self.pool):
            return False
        if self.kind is not None and allocation.spec.kind is not self.kind:
            return False
        if self.job and allocation.spec.job != self.job:
            return False
        if self.results and allocation.status.result not in self.results:
            return False
        if not self.created.has(allocation.metadata.creation_timestamp or ""):
            return False
        if not self.ended.has(allocation.status.ended_at):
            return False
        if self.user and user_of(allocation) != self.user:
            return False
        return not self.words or self._has_words(allocation)

    def _has_words(self, allocation: Allocation) -> bool:
        names = (id_of(allocation), allocation.metadata.name, user_of(allocation))
        known = [name.casefold() for name in names]
        return all(any(word.casefold() in name for name in known) for word in self.words)

    @property
    def is_of_view(self) -> bool:
        """Whether the whole filter can be applied without the API server."""
        return not self.label_selector

    @property
    def is_of_server(self) -> bool:
        """Whether the API server applies the whole filter, so that its count of the items that follow is right."""
        others = msgspec.structs.replace(self, workspace="", queue="", pool="", label_selector="")
        if len(self.phases) < 2:
            others = msgspec.structs.replace(others, phases=frozenset(), is_active=False)
        return others == ListFilter()

    @property
    def field_selector(self) -> str:
        """The part of the filter that the API server can apply."""
        parts = [f"spec.queue={self.queue}"] if self.queue else []
        parts += [f"spec.pool={self.pool}"] if self.pool else []
        if len(self.phases) == 1:
            parts.append(f"status.phase={next(iter(self.phases))}")
        elif self.is_active:
            parts.append(f"status.phase!={Phase.TERMINATED}")
        return ",".join(parts)


async def list_all(kube: Kube, wanted: ListFilter) -> Listed[Allocation]:
    """Return all allocations that the API server finds for this filter, in one LIST."""
    return await kube.list(
        ALLOCATIONS,
        namespace=wanted.workspace or None,
        label_selector=wanted.label_selector,
        field_selector=wanted.field_selector,
    )


async def list_page(kube: Kube, wanted: ListFilter, *, limit: int, continue_: str) -> Listed[Allocation]:
    """Return the next page that is not empty, or the last page read. Raises PageExpiredError for an old `continue_`."""
    page: Listed[Allocation] | None = None
    for _ in range(PAGES_READ_MAX):
        try:
            page = await kube.list(
                ALLOCATIONS,
                namespace=wanted.workspace or None,
                label_selector=wanted.label_selector,
                field_selector=wanted.field_selector,
                limit=limit,
                continue_=continue_,
            )
        except ExpiredError as error:
            if not continue_:
                raise
            raise PageExpiredError("continue: that page is too old; begin again without continue") from error
        count = page.remaining_item_count if wanted.is_of_server else None
        items = [each for each in page.items if wanted.has(each)]
        page = msgspec.structs.replace(page, items=items, remaining_item_count=count)
        continue_ = page.continue_
        if page.items or not continue_:
            return page
    assert page is not None  # noqa: S101 - the loop runs at least once
    return page


NAME_SHOWN_MAX = 80
Chosen = Literal["pool", "queue", "job"]
"""The kinds of objects that the spec of an allocation names."""
What = Literal["workspace"] | Chosen
Workspaces = Callable[[], Awaitable[Collection[str]]]
"""Returns the names of the workspaces that the caller may see."""
IsRemembered = Callable[[What, str], Awaitable[bool]]
"""Whether data that a list can show still contains a name whose object does not exist any more."""


class FilterNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names in a filter; empty: none. The job is looked up in `workspace` when the filter names one."""

    pool: str = ""
    queue: str = ""
    job: str = ""
    workspace: str = ""


async def check_filter_names(
    kube: Kube, named: FilterNames, workspaces: Workspaces, remembered: IsRemembered | None = None
) -> None:
    """Check that each named object exists, or that a retained allocation or `remembered` still knows its name.

    Raises:
        InvalidError: at the query parameter whose name is unknown.
    """

    async def is_remembered(what: Chosen, name: str) -> bool:
        return await _is_kept(kube, what, name) or (remembered is not None and await remembered(what, name))

    if named.workspace:
        seen = sorted(await workspaces())
        # Retained allocations are not searched here: they would reveal workspaces that the caller may not see.
        is_known = named.workspace in seen or (
            remembered is not None and await remembered("workspace", named.workspace)
        )
        if not is_known:
            detail = f"there is no workspace {named.workspace[:NAME_SHOWN_MAX]}; {names_shown(seen)}"
            raise _unknown("workspace", detail)
    if named.pool:
        pools = [each.metadata.name for each in (await kube.list(RESOURCE_POOLS)).items]
        if named.pool not in pools and not await is_remembered("pool", named.pool):
            raise _unknown("pool", f"there is no pool {named.pool[:NAME_SHOWN_MAX]}; {names_shown(pools)}")
    if named.queue:
        queues = [each.metadata.name for each in (await kube.list(QUEUES)).items]
        if named.queue not in queues and not await is_remembered("queue", named.queue):
            raise _unknown("queue", f"there is no queue {named.queue[:NAME_SHOWN_MAX]}; {names_shown(queues)}")
    if named.job:
        listed = await kube.list(JOBS, namespace=named.workspace or None)
        jobs = [each.metadata.name for each in listed.items]
        if named.job not in jobs and not await is_remembered("job", named.job):
            whose = f"workspace {named.workspace[:NAME_SHOWN_MAX]} has no job" if named.workspace else "there is no job"
            raise _unknown("job", f"{whose} {named.job[:NAME_SHOWN_MAX]}; {names_shown(sorted(set(jobs)))}")


async def _is_kept(kube: Kube, what: Chosen, name: str) -> bool:
    listed = await kube.list(ALLOCATIONS)
    return any(name == _named_by(each, what) for each in listed.items)


def _named_by(allocation: Allocation, what: Chosen) -> str:
    match what:
        case "pool":
            return allocation.spec.pool
        case "queue":
            return allocation.spec.queue
        case "job":
            return allocation.spec.job or ""


def _unknown(what: What, detail: str) -> InvalidError:
    return InvalidError(f"{what}: {detail}", fields=(FieldError("", f"?{what}= {detail}"),))
