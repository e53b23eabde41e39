"""Filtered pages of allocations. The API server applies the filters that it supports; this module applies the others.

Invariant: a client that follows `continue` to the end gets every allocation that matches all the time, once.
"""

import msgspec

from slipway.api.http_errors import PageExpiredError
from slipway.api.ports import Kube
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ExpiredError
from slipway.kube.ports import Listed
from slipway.kube.resources import ALLOCATIONS
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
