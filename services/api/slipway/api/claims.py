"""Makes sure that one Idempotency-Key creates one allocation, also when requests with the key have different names.

Owns the claim of a key that is sent with a name (`kube/claims.py`): which request gets the claim, which request is
refused, and when the key can be claimed again. Does not know how an allocation is created.

Promises: of all requests with one key and different names, at any replicas and times, at most one creates an
allocation. A request with the key and a name, and a request with the key alone, find the same allocation. A repeated
request is never refused. The cost is one create for a key with a name, and one read for a key without.

Not promised: these guarantees for two requests with one key at two replicas within the same few milliseconds, one with
a name and one without. One replica handles such requests one after the other (`turn`).
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from slipway.api.http_errors import KeyReusedError
from slipway.api.ports import Kube
from slipway.crd.meta import LABEL_LAUNCH_KEY
from slipway.errors import AlreadyExistsError, FieldError, NotFoundError, StaleError, TransientError
from slipway.kube.claims import CLAIM_MAPS, STANDS_S, ClaimMap, claim_manifest, claim_name, reclaim_patch
from slipway.kube.resources import ALLOCATIONS
from slipway.runtime import retry
from slipway.runtime.clock import Clock, Random


class IdempotencyClaims:
    """The claims of all workspaces. `key` is always the allocation name that is derived from the Idempotency-Key."""

    def __init__(self, kube: Kube, *, clock: Clock, random: Random) -> None:
        self._kube = kube
        self._clock = clock
        self._random = random
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncGenerator[None]:
        """Run one request with this key at a time in this process; a request without a key does not wait."""
        if not key:
            yield
            return
        lock = self._turns.setdefault(key, asyncio.Lock())
        async with lock:
            yield

    async def settle(self, key: str, workspace: str, name: str) -> None:
        """Bind the key to the allocation `name` of the workspace.

        Raises:
            KeyReusedError: the key is, or may be at this moment, bound to an allocation with another name.
            TransientError: another request claims the key at this moment.
        """
        if name == key:
            await self._check_unclaimed(key, workspace)
            return
        await self._claim(key, workspace, name)
        if await self._has_launched(key, workspace, key):
            raise _reused(key)

    async def _check_unclaimed(self, key: str, workspace: str) -> None:
        claim = await self._find(key, workspace)
        if claim is None or claim.launched == key or not await self._stands(claim):
            return
        # A request with a name leaves its claim even if it was refused because the key had launched without a name.
        if not await self._has_launched(key, workspace, key):
            raise _reused(claim.launched)

    async def _claim(self, key: str, workspace: str, name: str) -> None:
        manifest = claim_manifest(key, workspace, name, self._clock.now())

        async def create() -> None:
            try:
                await self._kube.create(CLAIM_MAPS, manifest)
            except StaleError as error:
                # The conflict is not about this new object, but about a quota that was updated at the same time.
                raise TransientError(f"the key was not claimed: {error}") from error

        try:
            await retry.call(retry.QUICK, create, clock=self._clock, random=self._random)
        except AlreadyExistsError:
            await self._claim_again(key, workspace, name)

    async def _claim_again(self, key: str, workspace: str, name: str) -> None:
        claim = await self._find(key, workspace)
        if claim is None:
            raise TransientError("the claim of the Idempotency-Key was deleted at the same time; try again")
        if await self._stands(claim):
            if claim.launched != name:
                raise _reused(claim.launched)
            return
        # The allocation was deleted long ago or never created, so the key can be claimed again, by one request only.
        patch = reclaim_patch(claim, name, self._clock.now())
        try:
            await self._kube.patch(CLAIM_MAPS, claim.metadata.name, patch, namespace=workspace)
        except (StaleError, NotFoundError) as error:
            raise TransientError("another request is claiming the Idempotency-Key right now; try again") from error

    async def _stands(self, claim: ClaimMap) -> bool:
        """Whether the claim is valid: its allocation exists, or may be created at this moment."""
        if self._clock.now() - claim.claimed_at < STANDS_S:
            return True
        return await self._has_launched(claim.key, claim.metadata.namespace, claim.launched)

    async def _find(self, key: str, workspace: str) -> ClaimMap | None:
        try:
            return await self._kube.get(CLAIM_MAPS, claim_name(key), namespace=workspace)
        except NotFoundError:
            return None

    async def _has_launched(self, key: str, workspace: str, name: str) -> bool:
        """Whether the allocation of that name was launched with the key."""
        try:
            found = await self._kube.get(ALLOCATIONS, name, namespace=workspace) if name else None
        except NotFoundError:
            return False
        return found is not None and found.metadata.labels.get(LABEL_LAUNCH_KEY) == key


def _reused(launched: str) -> KeyReusedError:
    detail = f"this Idempotency-Key launched {launched}; use a new key for a new launch"
    return KeyReusedError(detail, fields=(FieldError("/name", detail),))
