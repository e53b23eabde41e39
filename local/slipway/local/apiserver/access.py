"""Access checks of the API server: web pages, authentication, impersonation, authorization.

Owns the translation of a request into the action that it wants, and the refusals. Decides nothing about objects.
Invariants: with RBAC enforced, no request is answered before its rules were checked; with RBAC or an administrator's
token, invalid credentials are refused and never treated as missing credentials; a request from a web page of any site
is refused before its credentials are read.

Source: staging/src/k8s.io/apiserver/pkg/endpoints (filters, request/requestinfo.go; behaviour, v1.37).

The reviews of the authorization and authentication groups are requests that store no object. Invariant: an access
review returns the decision that the same call would get with RBAC enforced.

Source: pkg/registry/authorization, pkg/registry/authentication, pkg/apis/authorization/validation (behaviour, v1.37).
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Literal

import msgspec

from slipway.local.apiserver import discovery, rbac, status
from slipway.local.apiserver.accounts import ISSUER, ServiceAccountTokens, TokenError
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
from slipway.local.apiserver.objects import Json, format_time, is_map, listing, mapping, metadata
from slipway.local.apiserver.rbac import Attributes
from slipway.local.apiserver.routes import is_true
from slipway.local.apiserver.status import FieldCause, StatusError, bad_request, bad_value, refused
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
            if self._token and call.path not in discovery.HEALTH:
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


AUTHORIZATION, AUTHENTICATION = "authorization.k8s.io", "authentication.k8s.io"
_RULE_FIELDS = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")


class ReviewRequest(msgspec.Struct, frozen=True):
    """One review: the calling user, the namespace (only of a local review), and the body."""

    user: User
    namespace: str
    body: Json


class LocalReviews:
    """Answers the reviews of one cluster."""

    def __init__(self, core: "ClusterCore", accounts: ServiceAccountTokens, *, token: str = "") -> None:
        self._core = core
        self._accounts = accounts
        self._token = token
        self._answers: dict[tuple[str, str], Callable[[ReviewRequest], Json]] = {
            (AUTHORIZATION, "subjectaccessreviews"): self._access,
            (AUTHORIZATION, "localsubjectaccessreviews"): self._local_access,
            (AUTHORIZATION, "selfsubjectaccessreviews"): self._self_access,
            (AUTHORIZATION, "selfsubjectrulesreviews"): self._self_rules,
            (AUTHENTICATION, "tokenreviews"): self._token_review,
            (AUTHENTICATION, "selfsubjectreviews"): self._self,
        }

    def answer(self, group: str, plural: str, ask: Callable[[], ReviewRequest]) -> Json | None:
        """Return the review with its status, or None when no such review exists. Raises: StatusError 400, 422."""
        found = self._answers.get((group, plural))
        if found is None:
            return None
        asked = ask()
        if bool(asked.namespace) is not (plural == "localsubjectaccessreviews"):
            return None
        kind = next(name for name in _KINDS if name.lower() + "s" == plural)
        answered = found(asked)
        return {"kind": kind, "apiVersion": f"{group}/v1", "metadata": {}, **answered}

    def _access(self, asked: ReviewRequest) -> Json:
        spec = mapping(asked.body, "spec")
        causes = _spec_causes(spec, names_user=True)
        if metadata(asked.body):
            causes.append(bad_value("metadata", metadata(asked.body), "must be empty"))
        return self._decided(spec, causes, _subject_of(spec))

    def _local_access(self, asked: ReviewRequest) -> Json:
        spec = mapping(asked.body, "spec")
        causes = _spec_causes(spec, names_user=True)
        meta = {field: value for field, value in metadata(asked.body).items() if field != "namespace"}
        if meta:
            causes.append(bad_value("metadata", metadata(asked.body), "must be empty except for namespace"))
        namespace = mapping(spec, "resourceAttributes").get("namespace", "")
        if is_map(spec.get("resourceAttributes")) and namespace != asked.namespace:
            causes.append(bad_value("spec.resourceAttributes.namespace", namespace, "must match metadata.namespace"))
        if is_map(spec.get("nonResourceAttributes")):
            other = spec["nonResourceAttributes"]
            causes.append(bad_value("spec.nonResourceAttributes", other, "disallowed on this kind of request"))
        return {**self._decided(spec, causes, _subject_of(spec)), "metadata": {"namespace": asked.namespace}}

    def _self_access(self, asked: ReviewRequest) -> Json:
        spec = mapping(asked.body, "spec")
        return self._decided(spec, _spec_causes(spec, names_user=False), asked.user)

    def _decided(self, spec: Json, causes: list[FieldCause], user: User) -> Json:
        if causes:
            error = status.invalid(f".{AUTHORIZATION}", "", causes)
            del error.details["kind"]
            raise error
        verdict = rbac.decide(self._core.store, user, _attributes(spec))
        shown: Json = {"allowed": verdict.allowed}
        if verdict.reason:
            shown["reason"] = verdict.reason
        return {"spec": spec, "status": shown}

    def _self_rules(self, asked: ReviewRequest) -> Json:
        namespace = str(mapping(asked.body, "spec").get("namespace") or "")
        if not namespace:
            raise bad_request("no namespace on request")
        rules = [
            {field: rule[field] for field in _RULE_FIELDS if rule.get(field)}
            for rule in rbac.rules_for(self._core.store, asked.user, namespace)
        ]
        found: Json = {
            "resourceRules": [rule for rule in rules if rule.get("resources")],
            "nonResourceRules": [rule for rule in rules if rule.get("nonResourceURLs")],
            "incomplete": False,
        }
        return {"spec": {}, "status": found}

    def _token_review(self, asked: ReviewRequest) -> Json:
        spec = mapping(asked.body, "spec")
        token = str(spec.get("token") or "")
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        audiences = [str(item) for item in listing(spec, "audiences")] or [ISSUER]
        try:
            is_admin = is_admin_token(token, self._token)
            user, meant = (ADMIN, audiences) if is_admin else self._accounts.read(token, audiences)
        except TokenError as exc:
            words = "invalid bearer token"
            error = f"[{words}, {exc}]" if str(exc) else words
            return {"spec": spec, "status": {"user": {}, "error": error}}
        return {"spec": spec, "status": {"authenticated": True, "user": user.to_json(), "audiences": meant}}

    def _self(self, asked: ReviewRequest) -> Json:
        created = {"creationTimestamp": format_time(self._core.clock())}
        return {"metadata": created, "status": {"userInfo": asked.user.to_json()}}


_KINDS = (
    "SubjectAccessReview",
    "LocalSubjectAccessReview",
    "SelfSubjectAccessReview",
    "SelfSubjectRulesReview",
    "TokenReview",
    "SelfSubjectReview",
)


def _subject_of(spec: Json) -> User:
    groups = tuple(str(group) for group in listing(spec, "groups"))
    return User(name=str(spec.get("user") or ""), groups=groups)


def _spec_causes(spec: Json, *, names_user: bool) -> list[FieldCause]:
    causes = list[FieldCause]()
    wanted, other = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (wanted is None) == (other is None):
        words = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        causes.append(bad_value("spec", other, words))
    if names_user and not spec.get("user") and not spec.get("groups"):
        causes.append(bad_value("spec.user", "", "at least one of user or group must be specified"))
    return causes


def _attributes(spec: Json) -> Attributes:
    if is_map(spec.get("nonResourceAttributes")):
        wanted = mapping(spec, "nonResourceAttributes")
        return Attributes(verb=str(wanted.get("verb") or ""), path=str(wanted.get("path") or "/"))
    wanted = mapping(spec, "resourceAttributes")
    fields = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    return Attributes(**{field: str(wanted.get(field) or "") for field in fields})
