"""Authentication of calls from inside a pod, by the tokens of tasks.

A task's token is a service account token for our audience. The kubelet projects it into the pod and renews it there. A
TokenReview of the API server names the pod of the token, by uid. The token allows only the routes for tasks
(`Endpoint.for_tasks`), and only for the one allocation whose current attempt has that pod as a rank.

Invariants
- An invalid token is refused and never treated as a missing one.
- A claim that the API server has not confirmed grants nothing; it may only lead to an earlier refusal.
- No token is stored, logged or sent in an answer.
- The result of a TokenReview is used for at most `TTL_S`, and never after the expiry of the token.
"""

import asyncio
import hashlib

import msgspec
from starlette.requests import HTTPConnection

from slipway.api.allocations.lookup import Lookup
from slipway.api.auth.bearer import TokenClaims, bearer, claims_of, wrong_audience
from slipway.api.auth.principal import VisibleWorkspaces
from slipway.api.auth.rate_limit import RefusalLimiter
from slipway.api.http.errors import ForbiddenError, UnauthorizedError
from slipway.api.http.ttl_cache import LoadingCache
from slipway.api.ports import Kube
from slipway.crd.members import members
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvalidError, NotFoundError, UnavailableError
from slipway.kube.objects import TokenReview
from slipway.kube.resources import TOKEN_REVIEWS
from slipway.model.numbers import number_in
from slipway.model.times import format_time
from slipway.runtime.clock import Clock

TTL_S = 60.0
TOKENS_MAX = 16_384
"""The most reviewed tokens in the cache: enough for all ranks of a few of the largest gangs."""
REVIEWS_MAX = 16
"""The most TokenReviews at the same time."""
FOUND_TTL_S = 0.9
POD_NAME, POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
ACCOUNT = "system:serviceaccount:"
_HOW = "send `Authorization: Bearer` with the present content of the file $SLIPWAY_TOKEN_FILE"
_TEXT_CHARS_MAX = 160


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The rank of the current attempt that a token belongs to."""

    pod: str
    rank: int
    attempt: int
    workspace: str = ""


class _Pod(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that a token belongs to, as the API server has confirmed it."""

    name: str
    uid: str
    namespace: str


class TaskTokens:
    """Checks the tokens of tasks.

    With an empty `audience` it accepts no token. `is_shared` means that users may also call with tokens of Kubernetes.
    """

    def __init__(
        self,
        kube: Kube,
        lookup: Lookup,
        clock: Clock,
        refusals: RefusalLimiter,
        *,
        audience: str,
        is_shared: bool = False,
    ) -> None:
        self._kube = kube
        self._refusals = refusals
        self._lookup = lookup
        self._clock = clock
        self._audience = audience
        self._is_shared = is_shared
        self._pods = LoadingCache[str, _Pod](clock, ttl_s=TTL_S, keys_max=TOKENS_MAX)
        self._found = LoadingCache[tuple[str, str], Allocation](clock, ttl_s=FOUND_TTL_S)
        self._reviews = asyncio.Semaphore(REVIEWS_MAX)

    async def admit(self, connection: HTTPConnection, *, for_tasks: bool, is_required: bool) -> Caller | None:
        """Return the calling rank; None for a call without a task's token when none is required.

        Raises:
            UnauthorizedError: there is no token, or it is not valid.
            ForbiddenError: the token is valid, but does not allow this call.
        """
        token = bearer(connection)
        claims = claims_of(token)
        if not is_required and not (claims is not None and claims.is_account and self._is_ours(claims)):
            return None
        if claims is None:
            what = "the token does not belong to a service account" if token else "missing bearer token"
            raise UnauthorizedError(f"{what}; this listener is for tasks: {_HOW}")
        self._check_claims(claims)
        async with self._refusals.tried(connection, token):
            pod = await self._pod(token)
        if not for_tasks:
            raise ForbiddenError(
                "the token of a task permits only the calls for its own allocation (signals, ready, waiting, "
                "progress, activity, allgather, rendezvous, daemon); for anything else call as a user"
            )
        return await self._rank(pod, str(connection.path_params["id"]))

    def _is_ours(self, claims: TokenClaims) -> bool:
        """Whether a service account token is a task's; with `is_shared` its audience decides."""
        return bool(self._audience) and (not self._is_shared or self._audience in claims.audiences)

    def _check_claims(self, claims: TokenClaims) -> None:
        """Check audience and expiry, which needs no request to the API server. Raises UnauthorizedError."""
        now = self._clock.now()
        if self._audience not in claims.audiences:
            raise UnauthorizedError(f"{wrong_audience(claims.audiences, self._audience)}; {_HOW}")
        if now >= claims.ends_at:
            at = format_time(claims.ends_at)
            raise UnauthorizedError(f"the token has expired at {at}; its file contains a new one: {_HOW}")

    async def _pod(self, token: str) -> _Pod:
        digest = hashlib.sha256(token.encode()).hexdigest()
        return await self._pods.get(digest, lambda: self._review(token))

    async def _review(self, token: str) -> _Pod:
        """Ask the API server for the pod of the token."""
        body = {"spec": {"token": token, "audiences": [self._audience]}}
        async with self._reviews:
            try:
                review = await self._kube.create(TOKEN_REVIEWS, body)
            except (InvalidError, NotFoundError) as error:
                raise UnavailableError("the API server cannot review tokens right now") from error
        status = review.status
        if not status.authenticated or self._audience not in status.audiences:
            raise UnauthorizedError(f"the API server does not accept the token: {_why(review)}; {_HOW}")
        uid = _first(status.user.extra.get(POD_UID))
        if not uid:
            raise ForbiddenError(
                "the token belongs to an account and not to a pod; only tokens that are projected into a rank "
                "are accepted here"
            )
        name = _first(status.user.extra.get(POD_NAME))
        return _Pod(name=name, uid=uid, namespace=status.user.username.removeprefix(ACCOUNT).partition(":")[0])

    async def _rank(self, pod: _Pod, id_: str) -> Caller:
        """Return the rank of the pod in that allocation. Only allocations in the pod's own workspace are found."""
        lookup, key = self._lookup.within(VisibleWorkspaces(frozenset([pod.namespace]))), (pod.namespace, id_)
        allocation = await self._found.get(key, lambda: lookup.find(id_))
        found = _caller(allocation, pod)
        if found is None:
            # The release lists the pods, and it may have been committed after the allocation was cached.
            self._found.forget(key)
            allocation = await self._found.get(key, lambda: lookup.find(id_))
            found = _caller(allocation, pod)
        if found is not None:
            return found
        own, status = id_of(allocation), allocation.status
        attempt = _attempt_of(pod.name, own)
        if attempt is not None and attempt != status.attempt:
            raise ForbiddenError(
                f"the token belongs to attempt {attempt} of {own}, which is over; the current one is {status.attempt}"
            )
        raise ForbiddenError(
            f"the token belongs to pod {pod.name!r}, which is not a rank of {own}; a task may only call for its "
            "own allocation, $SLIPWAY_ALLOCATION_ID"
        )


def _caller(allocation: Allocation, pod: _Pod) -> Caller | None:
    found = next((member for member in members(allocation) if member.pod_uid and member.pod_uid == pod.uid), None)
    if found is None:
        return None
    return Caller(pod=pod.name, rank=found.rank, attempt=allocation.status.attempt, workspace=pod.namespace)


def _attempt_of(pod: str, own: str) -> int | None:
    """Return the attempt in a pod name `<AllocationID>-<attempt>-<rank>`; None for another name."""
    parts = pod.removeprefix(f"{own}-").split("-")
    is_ours = pod.startswith(f"{own}-") and len(parts) == 2
    return number_in(parts[0]) if is_ours else None


def _why(review: TokenReview) -> str:
    text = review.status.error.strip("[]")[:_TEXT_CHARS_MAX]
    return text or "it was not issued by this cluster"


def _first(values: list[str] | None) -> str:
    return values[0] if values else ""
