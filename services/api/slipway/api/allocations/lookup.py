"""Finds the allocation that a client names by its AllocationID, its name, or the beginning of its id.

An AllocationID contains no namespace, so the object is found by LIST with a field selector over all namespaces, and the
uid decides. Names and beginnings of ids are for people: they cost more and must be unique. A deleted allocation with an
archived log is found by its whole AllocationID, by callers who may see its workspace; for other callers it does not
exist.
"""

import re
from collections.abc import Awaitable, Callable

from slipway.api.auth.principal import VisibleWorkspaces
from slipway.api.http.errors import AmbiguousError
from slipway.api.ports import Kube
from slipway.crd.meta import ANNOTATION_FORMER_IDS
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvalidError, NotFoundError
from slipway.kube.resources import ALLOCATIONS
from slipway.logarchive.archive import LogArchive, allocation_of
from slipway.model.ids import AllocationId, split_allocation_id
from slipway.runtime import log

PREFIX_LENGTH_MIN = 3
MATCHES_SHOWN_MAX = 5
HOMES_MAX = 20_000
ReadVisible = Callable[[], Awaitable[VisibleWorkspaces]]
"""Returns the workspaces that the caller may see; it is called only when it is needed."""
_SAFE = re.compile(r"[a-z][-a-z0-9]{0,62}")
_log = log.get_logger(__name__)


async def _everywhere() -> VisibleWorkspaces:
    return VisibleWorkspaces()


class Lookup:
    """Finds the allocations that a caller may see."""

    def __init__(
        self,
        kube: Kube,
        visible: ReadVisible = _everywhere,
        homes: dict[str, tuple[str, str]] | None = None,
        brief: Callable[[], Awaitable[list[Allocation]]] | None = None,
    ) -> None:
        """`brief` reads all allocations, which may lack all fields except the id; when None, a LIST reads them."""
        self._kube = kube
        self._brief = brief
        self._visible = visible
        self._homes: dict[str, tuple[str, str]] = {} if homes is None else homes
        self._held: dict[str, Allocation] = {}

    def within(self, visible: VisibleWorkspaces) -> "Lookup":
        """Return a lookup for a caller who may see these workspaces only: it finds nothing in other workspaces.

        It takes the same steps for an allocation in another workspace as for one that does not exist, so that the time
        of the answer does not reveal the difference.
        """

        async def known() -> VisibleWorkspaces:
            return visible

        return Lookup(self._kube, known, self._homes, self._brief)

    def seen_by(self, visible: ReadVisible) -> "Lookup":
        """Return a lookup that calls `visible` at each search, so that a request without a search needs no check."""
        return Lookup(self._kube, visible, self._homes, self._brief)

    def hold(self, text: str, allocation: Allocation) -> None:
        """Store an allocation that was just found: the next `find` of `text` returns it without a read, once."""
        self._held[text] = allocation

    def remember(self, allocation: Allocation) -> None:
        """Remember the namespace and name of an AllocationID, which never change: the next read is one GET."""
        meta = allocation.metadata
        self._homes[id_of(allocation)] = (meta.namespace, meta.name)
        while len(self._homes) > HOMES_MAX:
            del self._homes[next(iter(self._homes))]

    async def find(self, text: str) -> Allocation:
        """Return the allocation that `text` names.

        Raises:
            NotFoundError: no allocation fits.
            AmbiguousError: several allocations fit.
        """
        held = self._held.pop(text, None)
        if held is not None:
            return held
        if _SAFE.fullmatch(text) is None:
            raise _not_found(text)
        visible = await self._visible()
        known = await self._at_home(text, visible)
        if known is not None:
            return known
        found = await self._search(text, visible)
        self.remember(found)
        return found

    async def workspace_of(self, id_: str) -> str:
        """Return the workspace of an AllocationID, without a read when it is already known.

        A known workspace is returned also to a caller who may not see it.

        Raises:
            NotFoundError: no allocation fits.
        """
        home = self._homes.get(id_)
        if home is None:
            return (await self.find(id_)).metadata.namespace
        return home[0]

    async def _at_home(self, text: str, visible: VisibleWorkspaces) -> Allocation | None:
        """Return the object of an AllocationID that was found before; None when it is unknown or deleted."""
        home = self._homes.get(text)
        if home is None or not visible.has(home[0]):
            return None
        namespace, name = home
        try:
            found = await self._kube.get(ALLOCATIONS, name, namespace=namespace)
        except NotFoundError:
            found = None
        if found is None or id_of(found) != text:
            self._homes.pop(text, None)
            return None
        return found

    async def _search(self, text: str, visible: VisibleWorkspaces) -> Allocation:
        parts = split_allocation_id(text)
        if parts is not None:
            name, uid_prefix = parts
            named = await self._named(name, visible)
            for found in named:
                if found.metadata.uid.startswith(uid_prefix):
                    return found
            for found in named:
                # An allocation that was restored from a backup can still be named by its former id.
                if text in found.metadata.annotations.get(ANNOTATION_FORMER_IDS, "").split(","):
                    return found
        matches = await self._named(text, visible)
        if not matches and parts is None and len(text) >= PREFIX_LENGTH_MIN:
            everything = await self._brief() if self._brief else (await self._kube.list(ALLOCATIONS)).items
            matches = [found for found in _seen(everything, visible) if id_of(found).startswith(text)]
            if len(matches) == 1:
                return await self.reload(matches[0])
        if not matches:
            raise _not_found(text)
        if len(matches) > 1:
            raise _ambiguous(text, matches)
        return matches[0]

    async def sees(self, workspace: str) -> bool:
        """Whether the caller may see that workspace."""
        return (await self._visible()).has(workspace)

    async def reload(self, allocation: Allocation) -> Allocation:
        """Read the same object again. Raises NotFoundError when it was deleted, also if another object has its name."""
        meta = allocation.metadata
        found = await self._kube.get(ALLOCATIONS, meta.name, namespace=meta.namespace)
        if found.metadata.uid != meta.uid:
            raise _not_found(id_of(allocation))
        return found

    async def _named(self, name: str, visible: VisibleWorkspaces) -> list[Allocation]:
        listed = await self._kube.list(ALLOCATIONS, field_selector=f"metadata.name={name}")
        return _seen(listed.items, visible)


async def find_logged(lookup: Lookup, archive: LogArchive | None, text: str) -> Allocation:
    """Return the allocation whose log is read: the object, or the record in the archive when the object was deleted.

    Raises:
        NotFoundError: neither an object nor a record in the archive fits.
        AmbiguousError: several allocations fit.
        TransientError: no object fits, and the archive does not answer.
    """

    try:
        return await lookup.find(text)
    except NotFoundError:
        if archive is None or split_allocation_id(text) is None:
            raise
        try:
            record = await archive.record(AllocationId(text))
        except InvalidError as error:
            _log.error("record of an archived log cannot be read", allocation=text, error=str(error))
            raise
        if record is None or record.allocation != text or not await lookup.sees(record.workspace):
            raise
        return allocation_of(record)


def _seen(allocations: list[Allocation], visible: VisibleWorkspaces) -> list[Allocation]:
    return [each for each in allocations if visible.has(each.metadata.namespace)]


def _not_found(text: str) -> NotFoundError:
    return NotFoundError(f"there is no allocation {text[:80]!r}; GET /api/v1/allocations lists what there is")


def _ambiguous(text: str, matches: list[Allocation]) -> AmbiguousError:
    shown = ", ".join(f"{id_of(found)} ({found.metadata.namespace})" for found in matches[:MATCHES_SHOWN_MAX])
    more = f" and {len(matches) - MATCHES_SHOWN_MAX} more" if len(matches) > MATCHES_SHOWN_MAX else ""
    return AmbiguousError(f"{text!r} fits {shown}{more}; use the whole id")
