"""Single sign-on: callers with tokens of an OpenID Connect issuer, in addition to those of the configured mode.

Owns two decisions. The first is which tokens are the issuer's: tokens whose claims name it. The second is where the
rights of their users come from: in mode `kubernetes`, the cluster's RoleBindings for the user's name and groups; in
mode `token`, `SLIPWAY_OIDC_ROLES`. A token of the issuer is never passed to another check, and no other token is
treated as one of the issuer.

Invariants: a user without any grant is authenticated and may do nothing. A token is not stored or logged.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec
from starlette.requests import HTTPConnection

from slipway.api.auth.bearer import TOKEN_LENGTH_MAX, claims_of
from slipway.api.auth.issuer import Issuer
from slipway.api.auth.issuer_rules import (
    OidcUser,
    TokenRules,
    VerifiedToken,
    has_expired,
    header_of,
    roles_for,
    verified,
)
from slipway.api.auth.kubernetes_auth import KubernetesReviews
from slipway.api.auth.principal import EVERYWHERE, Authenticator, PermissionCheck, Principal, VisibleWorkspaces
from slipway.api.auth.session import credential
from slipway.api.http.errors import UnauthorizedError
from slipway.kube.objects import ReviewedUser
from slipway.model.apitokens import Role
from slipway.model.times import format_time
from slipway.runtime.clock import Clock

AUTHENTICATED = "system:authenticated"
"""The group of all authenticated users in Kubernetes."""
_HOW = "log in again: slipway login URL --sso"


class Grants(Protocol):
    """The source of the rights of the issuer's users."""

    def roles(self, user: OidcUser) -> dict[str, Role]:
        """Return {workspace or `*`: role} when the roles are known without a request; empty otherwise."""
        ...

    async def may(self, user: OidcUser, ask: PermissionCheck, workspace: str) -> bool:
        """Whether `ask` is permitted in a workspace, or in all with EVERYWHERE. Raises TransientError."""
        ...

    async def visible_workspaces(self, user: OidcUser, ask: PermissionCheck) -> VisibleWorkspaces:
        """Return the workspaces where `ask` is permitted. Raises TransientError."""
        ...


class RoleBindings:
    """Mode `kubernetes`: the rights that the cluster's RBAC gives to the user's name and groups."""

    def __init__(self, reviews: KubernetesReviews) -> None:
        self._reviews = reviews

    def roles(self, user: OidcUser) -> dict[str, Role]:
        """Return an empty dict: the roles are not known without a request."""
        return {}

    async def may(self, user: OidcUser, ask: PermissionCheck, workspace: str) -> bool:
        """By SubjectAccessReview."""
        return await self._reviews.may(_reviewed(user), ask, workspace)

    async def visible_workspaces(self, user: OidcUser, ask: PermissionCheck) -> VisibleWorkspaces:
        """By SubjectAccessReview."""
        return await self._reviews.visible_workspaces(_reviewed(user), ask)


class ListedRoles:
    """Mode `token`: the rights that the settings give to the user's name and groups."""

    def __init__(self, listed: Mapping[str, Mapping[str, str]]) -> None:
        self._listed = {
            subject: {workspace: Role(role) for workspace, role in roles.items()} for subject, roles in listed.items()
        }

    def roles(self, user: OidcUser) -> dict[str, Role]:
        """Return the highest role of the user's name and groups, by workspace."""
        return roles_for(user, self._listed)

    async def may(self, user: OidcUser, ask: PermissionCheck, workspace: str) -> bool:
        """By the roles in the settings."""
        found = self.roles(user)
        return any(found[name].includes(ask.role) for name in {workspace, EVERYWHERE} if name in found)

    async def visible_workspaces(self, user: OidcUser, ask: PermissionCheck) -> VisibleWorkspaces:
        """By the roles in the settings."""
        if await self.may(user, ask, EVERYWHERE):
            return VisibleWorkspaces()
        return VisibleWorkspaces(frozenset(name for name, role in self.roles(user).items() if role.includes(ask.role)))


class OidcAuth:
    """An `Authenticator` for tokens of the issuer; it passes all other tokens to `inner`."""

    def __init__(self, inner: Authenticator, issuer: Issuer, rules: TokenRules, grants: Grants, clock: Clock) -> None:
        self._inner = inner
        self._issuer = issuer
        self._rules = rules
        self._grants = grants
        self._clock = clock

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """Return the caller of a request."""
        token = credential(connection)
        claims = claims_of(token)
        if claims is None or claims.issuer != self._rules.issuer:
            return await self._inner.authenticate(connection)
        try:
            found = await self.verified(token)
        except UnauthorizedError as error:
            raise UnauthorizedError(f"{error}; {_HOW}") from error
        return self.principal(found.user)

    async def verified(self, token: str, *, audience: str = "") -> VerifiedToken:
        """Check a token of the issuer and return its user and claims.

        An `audience` replaces the audiences of the settings: the token must name it.

        Raises:
            UnauthorizedError: the token is not valid.
            UnavailableError: the issuer's keys are not known and cannot be fetched.
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
        """By the rights of the user's name and groups."""
        return await self._grants.may(self._user, ask, workspace)

    async def visible_workspaces(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """By the rights of the user's name and groups."""
        return await self._grants.visible_workspaces(self._user, ask)

    async def is_still_valid(self) -> bool:
        """Whether a new request with the token would be accepted too: it has not expired."""
        return not has_expired(self._user.ends_at, self._clock.now())


def _reviewed(user: OidcUser) -> ReviewedUser:
    return ReviewedUser(username=user.name, groups=[*user.groups, AUTHENTICATED])
