"""Access and token reviews: requests that store no object.

Owns the parsing, checking and answering of the reviews of the authorization and authentication groups. Pure, except
that it reads the store. Invariant: an access review returns the decision that the same call would get with RBAC
enforced.

Source: pkg/registry/authorization, pkg/registry/authentication, pkg/apis/authorization/validation (behaviour, v1.37).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from slipway.local.apiserver import rbac, status
from slipway.local.apiserver.accounts import ISSUER, ServiceAccountTokens, TokenError
from slipway.local.apiserver.identity import ADMIN, User, is_admin_token
from slipway.local.apiserver.objects import Json, format_time, is_map, listing, mapping, metadata
from slipway.local.apiserver.rbac import Attributes
from slipway.local.apiserver.status import FieldCause, bad_request, bad_value

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore

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
