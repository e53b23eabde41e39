"""Refuses a list filter that names a workspace, queue, pool or job that does not exist.

Without the refusal the empty answer would read as "nothing runs there". The error has the same words as the one for a
launch body. The names are checked only after a list found nothing, so that other lists cost no further read.

- A remembered name is no error: its queue was deleted, but retained allocations or usage totals still name the queue.
- A user is never refused: a user who launched nothing has no object.
- A workspace that the caller may not see is refused in the words for one that does not exist.

Owns the refusal. It must not know the routes.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Literal

import msgspec

from slipway.api.catalog import names_shown
from slipway.api.ports import Kube
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import FieldError, InvalidError
from slipway.kube.resources import ALLOCATIONS, JOBS, QUEUES, RESOURCE_POOLS

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
