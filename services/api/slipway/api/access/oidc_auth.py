"""Single sign-on: callers with tokens of an OpenID Connect issuer, beside those of mode `token` or `kubernetes`.

Owns which tokens are the issuer's (those that name it), and where the rights of their users come from: the cluster's
RoleBindings for their name and groups in mode `kubernetes`, `SLIPWAY_OIDC_ROLES` in mode `token`. A token of the issuer
is never passed on to another check, and no other token is taken for one of the issuer.

Invariants: whom nothing is granted is known and may do nothing; a token is not stored or logged.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec
from starlette.requests import HTTPConnection

from slipway.api.access.issuer import Issuer
from slipway.api.access.issuer_rules import OidcUser, TokenRules, VerifiedToken, header_of, roles_for, verified
from slipway.api.access.kubernetes_auth import KubernetesReviews
from slipway.api.access.permissions import EVERYWHERE, PermissionCheck, VisibleWorkspaces
from slipway.api.access.principal import Authenticator, Principal
from slipway.api.access.session import credential
from slipway.api.bearer import TOKEN_LENGTH_MAX, claims_of
from slipway.api.http_errors import UnauthorizedError
from slipway.kube.objects import ReviewedUser
from slipway.model.apitokens import Role
from slipway.model.times import format_time
from slipway.runtime.clock import Clock

AUTHENTICATED = "system:authenticated"
"""The group of everybody whom Kubernetes knows."""
_HOW = "log in again: slipway login URL --sso"


class Grants(Protocol):
    """Where the rights of the issuer's users come from."""

    def roles(self, user: OidcUser) -> dict[str, Role]:
        """{workspace or `*`: role}, where that is known without asking; else empty."""
        ...

    async def may(self, user: OidcUser, ask: PermissionCheck, workspace: str) -> bool:
        """Whether that is permitted in a workspace, or with EVERYWHERE in all. Raises TransientError."""
        ...

    async def sight(self, user: OidcUser, ask: PermissionCheck) -> VisibleWorkspaces:
        """Where that is permitted. Raises TransientError."""
        ...


class RoleBindings:
    """Mode `kubernetes`: what the cluster's rules say of the user's name and groups."""

    def __init__(self, reviews: KubernetesReviews) -> None:
        self._reviews = reviews

    def roles(self, user: OidcUser) -> dict[str, Role]:
        """Not known without asking."""
        return {}

    async def may(self, user: OidcUser, ask: PermissionCheck, workspace: str) -> bool:
        """By SubjectAccessReview."""
        return await self._reviews.may(_reviewed(user), ask, workspace)

    async def sight(self, user: OidcUser, ask: PermissionCheck) -> VisibleWorkspaces:
        """By SubjectAccessReview."""
        return await self._reviews.sight(_reviewed(user), ask)


class ListedRoles:
    """Mode `token`: what the settings say of the user's name and groups."""

    def __init__(self, listed: Mapping[str, Mapping[str, str]]) -> None:
        self._listed = {
            subject: {workspace: Role(role) for workspace, role in roles.items()} for subject, roles in listed.items()
        }

    def roles(self, user: OidcUser) -> dict[str, Role]:
        """The highest of what their name and groups have."""
        return roles_for(user, self._listed)

    async def may(self, user: OidcUser, ask: PermissionCheck, workspace: str) -> bool:
        """By the roles."""
        found = self.roles(user)
        return any(found[name].includes(ask.role) for name in {workspace, EVERYWHERE} if name in found)

    async def sight(self, user: OidcUser, ask: PermissionCheck) -> VisibleWorkspaces:
        """By the roles."""
        if await self.may(user, ask, EVERYWHERE):
            return VisibleWorkspaces()
        return VisibleWorkspaces(frozenset(name for name, role in self.roles(user).items() if role.includes(ask.role)))


class OidcAuth:
    """An `Authenticator` for tokens of the issuer; all others are the business of `inner`."""

    def __init__(self, inner: Authenticator, issuer: Issuer, rules: TokenRules, grants: Grants, clock: Clock) -> None:
        self._inner = inner
        self._issuer = issuer
        self._rules = rules
        self._grants = grants
        self._clock = clock

    async def who(self, connection: HTTPConnection) -> Principal:
        """Who calls."""
        token = credential(connection)
        claims = claims_of(token)
        if claims is None or claims.issuer != self._rules.issuer:
            return await self._inner.who(connection)
        try:
            found = await self.verified(token)
        except UnauthorizedError as error:
            raise UnauthorizedError(f"{error}; {_HOW}") from error
        return self.principal(found.user)

    async def verified(self, token: str, *, audience: str = "") -> VerifiedToken:
        """What a token of the issuer says; with an `audience`, one that is for this one alone.

        Raises:
            UnauthorizedError: it is not valid.
            UnavailableError: the issuer's keys are not known, and cannot be asked for.
        """
        if len(token) > TOKEN_LENGTH_MAX:
            raise UnauthorizedError(f"the token has more than {TOKEN_LENGTH_MAX} characters")
        header = header_of(token, self._rules)
        key = await self._issuer.key(header)
        rules = msgspec.structs.replace(self._rules, audiences=(audience,)) if audience else self._rules
        return verified(token, header, key, rules, now=self._clock.now())

    def principal(self, user: OidcUser) -> "OidcCaller":
        """The caller whom a valid token names."""
        return OidcCaller(user, self._grants, self._clock)


class OidcCaller:
    """A user of the issuer."""

    def __init__(self, user: OidcUser, grants: Grants, clock: Clock) -> None:
        self._user = user
        self._grants = grants
        self._clock = clock
        self.name = user.name
        self.via = "oidc"
        self.roles = {place: role.value for place, role in sorted(grants.roles(user).items())}
        self.expires_at = format_time(user.ends_at)

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """What their name and groups may."""
        return await self._grants.may(self._user, ask, workspace)

    async def sight(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """Where their name and groups may."""
        return await self._grants.sight(self._user, ask)

    async def still(self) -> bool:
        """Whether the token has not expired."""
        return self._clock.now() < self._user.ends_at


def _reviewed(user: OidcUser) -> ReviewedUser:
    return ReviewedUser(username=user.name, groups=[*user.groups, AUTHENTICATED])
