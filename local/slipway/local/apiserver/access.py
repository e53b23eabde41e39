"""Access checks of the API server: web pages, authentication, impersonation, authorization.

Owns the translation of a request into the action that it wants, and the refusals. Decides nothing about objects.
Invariants: with RBAC enforced, no request is answered before its rules were checked; invalid credentials are refused
and never treated as missing credentials; a request from a web page of any site is refused before its credentials are
read.

Source: staging/src/k8s.io/apiserver/pkg/endpoints (filters, request/requestinfo.go; behaviour, v1.37).
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

import msgspec

from slipway.local.apiserver import documents, rbac
from slipway.local.apiserver.accounts import ServiceAccountTokens, TokenError
from slipway.local.apiserver.answers import Call
from slipway.local.apiserver.identity import (
    ADMIN,
    ANONYMOUS,
    AUTHENTICATED,
    User,
    account_groups,
    account_of,
    is_admin_token,
)
from slipway.local.apiserver.rbac import Attributes
from slipway.local.apiserver.routes import is_true
from slipway.local.apiserver.status import StatusError, bad_request, refused
from slipway.runtime import web_guard

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore

Authorization = Literal["open", "rbac"]
_BEARER = "Bearer "
_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PAGES = {web_guard.MISDIRECTED: "MisdirectedRequest", web_guard.FORBIDDEN: "Forbidden"}
_OF_NAMESPACES = frozenset({"status", "finalize"})


class AccessGate:
    """Admits the calls to one core.

    token: the administrator's token. With authorization "open" every caller may do everything; when a token is set, the
    caller must send it or a token of a service account. With "rbac" roles and bindings decide. hosts: names of the
    server in addition to those of the loopback address.
    """

    def __init__(
        self,
        core: "ClusterCore",
        accounts: ServiceAccountTokens,
        *,
        token: str,
        authorization: Authorization,
        hosts: Collection[str] = (),
    ) -> None:
        self._core = core
        self._accounts = accounts
        self._token = token
        self._hosts = frozenset(host.lower() for host in hosts)
        self._is_enforced = authorization == "rbac"

    def admit(self, call: Call) -> User:
        """Return the calling user after all checks. Raises: StatusError 400, 401, 403, 421."""
        foreign = web_guard.check(lambda name: call.header(name.encode()), hosts=self._hosts)
        if foreign is not None:
            raise StatusError(foreign.status, _PAGES[foreign.status], foreign.detail)
        user = self.authenticate(call)
        if call.header(b"impersonate-user") or call.header(b"impersonate-group"):
            user = self._impersonated(call, user)
        if self._is_enforced:
            wanted = attributes_of(call)
            self._authorize(user, wanted)
            if call.is_upgrade:
                # A WebSocket is a GET, but it runs a command, so a user with read access only must not open it.
                self._authorize(user, msgspec.structs.replace(wanted, verb="create"))
        return user

    def authenticate(self, call: Call) -> User:
        """Return the user of the request's own credentials. Raises: StatusError 401."""
        given = call.header(b"authorization")
        if not given:
            if self._is_enforced:
                return ANONYMOUS
            if self._token and call.path not in documents.HEALTH:
                raise _unauthorized()
            return ADMIN
        try:
            return self.read_token(given.removeprefix(_BEARER))
        except TokenError as exc:
            if self._token or self._is_enforced:
                raise _unauthorized() from exc
            return ADMIN

    def read_token(self, token: str) -> User:
        """Return the user of a token. Raises: TokenError."""
        if is_admin_token(token, self._token):
            return ADMIN
        return self._accounts.read(token)[0]

    def _impersonated(self, call: Call, user: User) -> User:
        name, groups = call.header(b"impersonate-user"), call.headers(b"impersonate-group")
        if not name:
            raise bad_request(f"requested groups {groups} without impersonating a user name")
        account = account_of(name)
        if self._is_enforced:
            wanted = Attributes(verb="impersonate", resource="users", name=name)
            if account is not None:
                wanted = Attributes(
                    verb="impersonate", resource="serviceaccounts", namespace=account[0], name=account[1]
                )
            self._authorize(user, wanted)
            for group in groups:
                self._authorize(user, Attributes(verb="impersonate", resource="groups", name=group))
        if account is not None and not groups:
            return User(name=name, groups=account_groups(account[0]))
        if name == ANONYMOUS.name:
            return User(name=name, groups=(*groups, *ANONYMOUS.groups))
        return User(name=name, groups=tuple(dict.fromkeys((*groups, AUTHENTICATED))))

    def _authorize(self, user: User, wanted: Attributes) -> None:
        verdict = rbac.decide(self._core.store, user, wanted)
        if not verdict.allowed:
            raise _forbidden(user, wanted, verdict.reason)


def attributes_of(call: Call) -> Attributes:
    """Return the action that a request wants, read from its method, path and query."""
    verb = _VERBS.get(call.method, call.method.lower())
    parts = [part for part in call.path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return Attributes(verb=call.method.lower(), path=call.path)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _OF_NAMESPACES:
            rest = rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    if not name and verb == "get":
        verb = "watch" if is_true(call.query, "watch") else "list"
        name = _selected_name(call.query.get("fieldSelector", ""))
    elif name and verb == "get" and is_true(call.query, "watch"):
        verb = "watch"
    elif not name and verb == "delete":
        verb = "deletecollection"
    return Attributes(
        verb=verb,
        group=group,
        version=version,
        resource=rest[0],
        subresource=rest[2] if len(rest) > 2 else "",
        namespace=namespace,
        name=name,
    )


def _selected_name(selector: str) -> str:
    """Return the object name that a field selector selects, or "".

    A list of one object by its name is authorized like a call on that object.
    """
    for term in selector.split(","):
        field, _, value = term.replace("==", "=").partition("=")
        if field.strip() == "metadata.name":
            return value.strip()
    return ""


def _unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def _forbidden(user: User, wanted: Attributes, reason: str) -> StatusError:
    if wanted.path:
        return refused("", "", f'User "{user.name}" cannot {wanted.verb} path "{wanted.path}"', reason)
    shown = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    words = f'User "{user.name}" cannot {wanted.verb} resource "{shown}" in API group "{wanted.group}" {where}'
    resource = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    return refused(resource, wanted.name, words, reason)
