"""Who calls from inside of a pod, and what that opens: the tokens of tasks.

A task's token is a service account token for our audience that the kubelet projects into the pod and renews there. The
API server says whose it is (TokenReview): a pod, by uid. It opens the help for what runs inside (`Endpoint.for_tasks`)
of the one allocation whose current attempt that pod is a rank of, and nothing else.

Invariants: a token that does not count is refused, it never counts as none; nothing that is read from a token before
the API server has confirmed it opens anything (it may only refuse sooner); no token is kept, logged or answered; what
the API server said of one is used for at most `TTL_S`, and never beyond its own end.
"""

import asyncio
import base64
import binascii
import hashlib
import re
from typing import Any, cast

import msgspec
from starlette.requests import HTTPConnection

from slipway.api.lookup import Lookup
from slipway.api.ports import Kube
from slipway.api.recent import Recent
from slipway.api.refusals import ForbiddenError, UnauthorizedError
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvalidError, NotFoundError, UnavailableError
from slipway.kube.objects import TokenReview
from slipway.kube.resources import TOKEN_REVIEWS
from slipway.model.times import format_time
from slipway.runtime.clock import Clock

TTL_S = 60.0
TOKENS_MAX = 16_384
"""One for each rank of a few of the largest gangs."""
REVIEWS_MAX = 16
"""Questions to the API server at the same time."""
FOUND_TTL_S = 0.9
TOKEN_LENGTH_MAX = 16_384
POD_NAME, POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
_JWT = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")
_HOW = "send `Authorization: Bearer` with what the file $SLIPWAY_TOKEN_FILE holds now"
_WORDS_MAX = 160


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that calls: of the current attempt, by its token."""

    pod: str
    rank: int
    attempt: int


class _Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says of itself; anybody can write that."""

    audiences: tuple[str, ...]
    ends_at: float
    is_account: bool
    """of a service account, as Kubernetes makes them"""


class _Pod(msgspec.Struct, frozen=True, kw_only=True):
    """Whose token it is, by the word of the API server."""

    name: str
    uid: str


class TaskTokens:
    """Checks tokens. An empty `audience` takes none."""

    def __init__(self, kube: Kube, lookup: Lookup, clock: Clock, *, audience: str) -> None:
        self._kube = kube
        self._lookup = lookup
        self._clock = clock
        self._audience = audience
        self._pods = Recent[str, _Pod](clock, ttl_s=TTL_S, keys_max=TOKENS_MAX)
        self._found = Recent[str, Allocation](clock, ttl_s=FOUND_TTL_S)
        self._reviews = asyncio.Semaphore(REVIEWS_MAX)

    async def admit(self, connection: HTTPConnection, *, for_tasks: bool, is_required: bool) -> Caller | None:
        """Who calls; None for a call without a task's token, where none is required.

        Raises:
            UnauthorizedError: there is no token, or it does not count.
            ForbiddenError: it counts, and not for this.
        """
        token = _bearer(connection)
        claims = _claims(token)
        if not is_required and not (claims is not None and claims.is_account and self._audience):
            return None
        if claims is None:
            what = "the token is none of a service account" if token else "no token came along"
            raise UnauthorizedError(f"{what}; this door is for tasks: {_HOW}")
        pod = await self._pod(token, claims)
        if not for_tasks:
            raise ForbiddenError(
                "the token of a task opens only the help for its own allocation (signals, ready, waiting, progress, "
                "activity, allgather, rendezvous, daemon); for anything else call as a user"
            )
        return await self._rank(pod, str(connection.path_params["id"]))

    async def _pod(self, token: str, claims: _Claims) -> _Pod:
        now = self._clock.now()
        if self._audience not in claims.audiences:
            meant = ", ".join(claims.audiences)[:_WORDS_MAX] or "nobody"
            raise UnauthorizedError(f"the token is for {meant!r}, not for {self._audience!r}; {_HOW}")
        if now >= claims.ends_at:
            at = format_time(claims.ends_at)
            raise UnauthorizedError(f"the token has expired at {at}; it is renewed in its file: {_HOW}")
        digest = hashlib.sha256(token.encode()).hexdigest()
        return await self._pods.get(digest, lambda: self._review(token))

    async def _review(self, token: str) -> _Pod:
        """Asks the API server whose token it is."""
        # A review stores nothing; its name means nothing to the API server.
        body = {"metadata": {"name": "task"}, "spec": {"token": token, "audiences": [self._audience]}}
        async with self._reviews:
            try:
                review = await self._kube.create(TOKEN_REVIEWS, body)
            except (InvalidError, NotFoundError) as error:
                raise UnavailableError("the API server reviews no tokens right now") from error
        status = review.status
        if not status.authenticated or self._audience not in status.audiences:
            raise UnauthorizedError(f"the API server does not accept the token: {_why(review)}; {_HOW}")
        uid = _first(status.user.extra.get(POD_UID))
        if not uid:
            raise ForbiddenError(
                "the token is of an account and not of a pod; only those that are projected into a rank count here"
            )
        return _Pod(name=_first(status.user.extra.get(POD_NAME)), uid=uid)

    async def _rank(self, pod: _Pod, id_: str) -> Caller:
        """Which rank of that allocation the pod is."""
        allocation = await self._found.get(id_, lambda: self._lookup.find(id_))
        found = _caller(allocation, pod)
        if found is None:
            # The release may be younger than what we remember.
            self._found.forget(id_)
            allocation = await self._found.get(id_, lambda: self._lookup.find(id_))
            found = _caller(allocation, pod)
        if found is not None:
            return found
        own, status = id_of(allocation), allocation.status
        attempt = _attempt_of(pod.name, own)
        if attempt is not None and attempt != status.attempt:
            raise ForbiddenError(
                f"the token is of attempt {attempt} of {own}, which is over; the current one is {status.attempt}"
            )
        raise ForbiddenError(
            f"the token is of pod {pod.name!r}, which is no rank of {own}; a task may only call for its own "
            "allocation, $SLIPWAY_ALLOCATION_ID"
        )


def _bearer(connection: HTTPConnection) -> str:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _claims(token: str) -> _Claims | None:
    """What a token says of itself; None when it is no JWT."""
    found = _JWT.fullmatch(token) if len(token) <= TOKEN_LENGTH_MAX else None
    if found is None:
        return None
    try:
        text = base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4))
        said: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    audiences, ends_at = said.get("aud"), said.get("exp")
    listed = cast("list[Any]", audiences) if isinstance(audiences, list) else [audiences]
    return _Claims(
        audiences=tuple(each for each in listed if isinstance(each, str)),
        ends_at=float(ends_at) if isinstance(ends_at, int | float) else 0.0,
        is_account="kubernetes.io" in said,
    )


def _caller(allocation: Allocation, pod: _Pod) -> Caller | None:
    status = allocation.status
    release, admission = status.release, status.admission
    if release is None or release.attempt != status.attempt or pod.uid not in release.pod_uids:
        return None
    position = release.pod_uids.index(pod.uid)
    ranks = sorted(placement.rank for placement in admission.placements) if admission is not None else []
    rank = ranks[position] if position < len(ranks) else position
    return Caller(pod=pod.name, rank=rank, attempt=status.attempt)


def _attempt_of(pod: str, own: str) -> int | None:
    """The attempt in the name of a pod of ours (`<AllocationID>-<attempt>-<rank>`)."""
    parts = pod.removeprefix(f"{own}-").split("-")
    is_ours = pod.startswith(f"{own}-") and len(parts) == 2 and parts[0].isascii() and parts[0].isdigit()
    return int(parts[0]) if is_ours else None


def _why(review: TokenReview) -> str:
    text = review.status.error.strip("[]")[:_WORDS_MAX]
    return text or "it is not one of its own"


def _first(values: list[str] | None) -> str:
    return values[0] if values else ""
