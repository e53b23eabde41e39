"""Mode `kubernetes`: the API server authenticates a token (TokenReview) and authorises its user (SubjectAccessReview).

Every user of the cluster is a user of this API, and may do the same to Allocations by this API as by kubectl: a
workspace is a namespace, and the RoleBindings of the namespace apply. Nothing is stored.

Owns the cache of reviews and its limits: how long a review is cached, how many are cached, how many run at once, and
their deadline. Invariants: a request that cannot be reviewed is never permitted (503 with Retry-After). A token is
remembered by its digest only, and no token is logged. A cached review of a token is not used after the token's expiry.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from starlette.requests import HTTPConnection

from slipway.api.auth.bearer import TOKEN_LENGTH_MAX, claims_of
from slipway.api.auth.principal import EVERYWHERE, PermissionCheck, Principal, VisibleWorkspaces
from slipway.api.auth.session import credential
from slipway.api.http.errors import UnauthorizedError
from slipway.api.http.ttl_cache import LoadingCache
from slipway.api.ports import Kube
from slipway.errors import DeadlineError, DeniedError, InvalidError, NotFoundError, ThrottledError, UnavailableError
from slipway.kube.objects import ReviewedUser
from slipway.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from slipway.model.times import format_time
from slipway.runtime import telemetry
from slipway.runtime.clock import Clock

TTL_S = 10.0
"""How long a review is cached: a revoked token or permission may stay effective that long."""
TOKENS_MAX, ACCESS_MAX = 4096, 65_536
AT_ONCE_MAX = 32
WAITING_MAX = 2048
"""Limit of reviews that wait for their turn; a further review is refused, and the caller may retry."""
ASK_S = 10.0
"""Timeout of one review, and also of the wait for its turn."""
_HOW = "send `Authorization: Bearer` with a valid token, or log in: slipway login --kubernetes"
_TEXT_CHARS_MAX = 160
T = TypeVar("T")
Workspaces = Callable[[], Awaitable[list[str]]]


class _KnownUser(msgspec.Struct, frozen=True):
    """The user of a token, by the API server's review; `ends_at` is 0 when the token states no expiry."""

    user: ReviewedUser
    ends_at: float


class KubernetesReviews:
    """Requests reviews from the API server.

    `workspaces` lists the existing workspaces. An empty `audience` means the API server's own audience.
    """

    def __init__(self, kube: Kube, clock: Clock, *, audience: str, workspaces: Workspaces) -> None:
        self._kube = kube
        self._clock = clock
        self._audience = audience
        self._workspaces = workspaces
        self._users = LoadingCache[str, _KnownUser](clock, ttl_s=TTL_S, keys_max=TOKENS_MAX)
        self._access = LoadingCache[tuple[str, PermissionCheck, str], bool](clock, ttl_s=TTL_S, keys_max=ACCESS_MAX)
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._waiting = 0

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """Return the caller whom the API server's review of the bearer token names."""
        token = credential(connection)
        if not token:
            raise UnauthorizedError(f"missing bearer token; {_HOW}")
        if len(token) > TOKEN_LENGTH_MAX:
            raise UnauthorizedError(f"the token has more than {TOKEN_LENGTH_MAX} characters; {_HOW}")
        known = await self.known(token)
        return KubernetesCaller(self, token, known.user, known.ends_at)

    async def known(self, token: str) -> _KnownUser:
        """Return the user of a token, from the cache or by a review. Raises UnauthorizedError when it is not valid."""
        claims = claims_of(token)
        ends_at = claims.ends_at if claims is not None else 0.0
        if ends_at and self._clock.now() >= ends_at:
            raise UnauthorizedError(f"the token has expired at {format_time(ends_at)}; {_HOW}")
        digest = hashlib.sha256(token.encode()).hexdigest()
        return await self._users.get(digest, lambda: self._review(token, ends_at))

    async def may(self, user: ReviewedUser, ask: PermissionCheck, workspace: str) -> bool:
        """Whether the cluster's RBAC permits `ask` to the user."""
        key = (hashlib.sha256(msgspec.json.encode(user)).hexdigest(), ask, workspace)
        return await self._access.get(key, lambda: self._allowed(user, ask, workspace))

    async def visible_workspaces(self, user: ReviewedUser, ask: PermissionCheck) -> VisibleWorkspaces:
        """Return the workspaces in which the cluster's RBAC permits `ask` to the user."""
        if await self.may(user, ask, EVERYWHERE):
            return VisibleWorkspaces()
        names = await self._workspaces()
        allowed = await asyncio.gather(*(self.may(user, ask, name) for name in names))
        return VisibleWorkspaces(frozenset(name for name, is_allowed in zip(names, allowed, strict=True) if is_allowed))

    async def _review(self, token: str, ends_at: float) -> _KnownUser:
        spec: dict[str, Any] = {"token": token}
        if self._audience:
            spec["audiences"] = [self._audience]
        status = (await self._ask(lambda: self._kube.create(TOKEN_REVIEWS, {"spec": spec}))).status
        if not status.authenticated or (self._audience and self._audience not in status.audiences):
            why = status.error.strip("[]")[:_TEXT_CHARS_MAX] or "it was not issued by this cluster"
            meant = f" (it must be for {self._audience!r})" if self._audience else ""
            raise UnauthorizedError(f"the API server does not accept the token{meant}: {why}; {_HOW}")
        if not status.user.username:
            raise UnauthorizedError(f"the API server names no user for the token; {_HOW}")
        return _KnownUser(status.user, ends_at)

    async def _allowed(self, user: ReviewedUser, ask: PermissionCheck, workspace: str) -> bool:
        resource, _, subresource = ask.resource.partition("/")
        wanted = {"verb": ask.verb, "group": ask.group, "resource": resource}
        if subresource:
            wanted["subresource"] = subresource
        if workspace != EVERYWHERE:
            wanted["namespace"] = workspace
        spec: dict[str, Any] = {"user": user.username, "groups": user.groups, "resourceAttributes": wanted}
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = user.extra
        status = (await self._ask(lambda: self._kube.create(SUBJECT_ACCESS_REVIEWS, {"spec": spec}))).status
        return status.allowed and not status.denied

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Run one review when it has its turn. Raises a TransientError whenever there is no answer."""
        async with self._turn():
            try:
                async with asyncio.timeout(ASK_S):
                    # A review is not part of the operation that the request's trace describes.
                    with telemetry.suppressed():
                        return await question()
            except TimeoutError as error:
                raise DeadlineError("the API server did not answer in time whether this is permitted") from error
            except DeniedError as error:
                raise UnavailableError(f"Slipway's account may not create permission reviews: {error}") from error
            except (InvalidError, NotFoundError) as error:
                raise UnavailableError("the API server cannot answer right now whether this is permitted") from error

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        if self._waiting >= WAITING_MAX:
            raise ThrottledError("too many permission reviews already wait for the API server", retry_after_s=1.0)
        self._waiting += 1
        try:
            async with asyncio.timeout(ASK_S):
                await self._turns.acquire()
        except TimeoutError as error:
            raise DeadlineError("too many permission reviews are in progress") from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()


class KubernetesCaller:
    """A caller who is a user of the cluster."""

    def __init__(self, reviews: KubernetesReviews, token: str, user: ReviewedUser, ends_at: float) -> None:
        self._reviews = reviews
        self._token = token
        self._user = user
        self.name = user.username
        self.via = "kubernetes"
        self.roles: dict[str, str] = {}
        self.expires_at = format_time(ends_at) if ends_at else ""

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """By the cluster's RBAC."""
        return await self._reviews.may(self._user, ask, workspace)

    async def visible_workspaces(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """By the cluster's RBAC."""
        return await self._reviews.visible_workspaces(self._user, ask)

    async def is_still_valid(self) -> bool:
        """Whether the API server still accepts the token."""
        try:
            return (await self._reviews.known(self._token)).user == self._user
        except UnauthorizedError:
            return False
