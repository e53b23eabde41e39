"""Tokens of service accounts: issued for a limited time, bound to an object, checked against the current objects.

Owns the form of a token (a JWT signed with the key of this cluster), its claims, and the conditions that make it
invalid. Reads the store through the core and writes nothing. Invariants: a token becomes invalid when its account, or
the object that it is bound to, is deleted or has another uid; a token cannot be made without the key.

Source: pkg/registry/core/serviceaccount/storage/token.go, pkg/serviceaccount/claims.go (behaviour, v1.37).
"""

import base64
import binascii
import hashlib
import hmac
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from slipway.local.apiserver import status
from slipway.local.apiserver.identity import User, account_groups, account_name
from slipway.local.apiserver.objects import (
    Json,
    format_time,
    is_deleting,
    listing,
    mapping,
    metadata,
    name_of,
    namespace_of,
    parse_time,
    uid_of,
)
from slipway.local.apiserver.status import bad_request, bad_value

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore

ISSUER = "https://kubernetes.default.svc"
ACCOUNTS = "serviceaccounts"
LIFE_S = 3600
LIFE_S_MIN = 600
LIFE_S_MAX = 2**32
GONE_GRACE_S = 60.0
"""A token stays valid for this many seconds after the deletionTimestamp of its account or bound object."""
_EXTRA = "authentication.kubernetes.io"
_BOUND = {"Pod": "pods", "Node": "nodes", "Secret": "secrets"}


class TokenError(Exception):
    """The token is not valid."""


class ServiceAccountTokens:
    """Issues and checks the tokens of one cluster."""

    def __init__(self, core: "ClusterCore", key: bytes) -> None:
        self._core = core
        self._key = key

    def issue(self, namespace: str, name: str, request: Json) -> Json:
        """Return the TokenRequest with its token. Raises: StatusError 400, 404, 409, 422."""
        account = self._core.get(ACCOUNTS, namespace, name)
        self._check_subject(account, metadata(request))
        spec = mapping(request, "spec")
        life_s = int(spec.get("expirationSeconds") or LIFE_S)
        audiences = [str(item) for item in listing(spec, "audiences")] or [ISSUER]
        if not LIFE_S_MIN <= life_s <= LIFE_S_MAX:
            bound = "less than 10 minutes" if life_s < LIFE_S_MIN else "larger than 2^32 seconds"
            cause = bad_value("spec.expirationSeconds", life_s, f"may not specify a duration {bound}")
            raise status.invalid(_KIND, "", [cause])
        objects = self._bound_claims(account, spec.get("boundObjectRef"))
        now = int(self._core.clock())
        claims = {
            "aud": audiences,
            "exp": now + life_s,
            "iat": now,
            "iss": ISSUER,
            "jti": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._core.version}/{uid_of(account)}/{now}/{audiences}")),
            "kubernetes.io": {"namespace": namespace, **objects, "serviceaccount": _identity(account)},
            "nbf": now,
            "sub": account_name(namespace, name),
        }
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {**_identity(account), "namespace": namespace, "creationTimestamp": format_time(now)},
            "spec": {
                "audiences": audiences,
                "expirationSeconds": life_s,
                "boundObjectRef": spec.get("boundObjectRef"),
            },
            "status": {"token": self._sign(claims), "expirationTimestamp": format_time(now + life_s)},
        }

    def read(self, token: str, audiences: Sequence[str] = (ISSUER,)) -> tuple[User, list[str]]:
        """Return the user of the token, and those of `audiences` that it is valid for. Raises: TokenError."""
        claims = self._claims(token)
        own = [str(item) for item in listing(claims, "aud")]
        meant = [item for item in audiences if item in own]
        if not meant:
            listed = status.quoted(own), status.quoted(list(audiences))
            raise TokenError(f"token audiences {listed[0]} is invalid for the target audiences {listed[1]}")
        now = self._core.clock()
        if now >= int(claims.get("exp", 0)):
            raise TokenError("service account token has expired")
        if now < int(claims.get("nbf", 0)):
            raise TokenError("service account token is not valid yet")
        return self._user(claims), meant

    def _user(self, claims: Json) -> User:
        private = mapping(claims, "kubernetes.io")
        namespace = str(private.get("namespace"))
        account = mapping(private, "serviceaccount")
        self._check_alive(ACCOUNTS, namespace, account)
        extra = {f"{_EXTRA}/credential-id": [f"JTI={claims.get('jti')}"]}
        is_of_pod = bool(private.get("pod"))
        for kind, resource in _BOUND.items():
            reference = mapping(private, kind.lower())
            if not reference:
                continue
            if kind != "Node" or not is_of_pod:
                self._check_alive(resource, "" if kind == "Node" else namespace, reference)
            if kind != "Secret":
                extra[f"{_EXTRA}/{kind.lower()}-name"] = [str(reference.get("name"))]
                if reference.get("uid"):
                    extra[f"{_EXTRA}/{kind.lower()}-uid"] = [str(reference["uid"])]
        return User(
            name=account_name(namespace, str(account.get("name"))),
            uid=str(account.get("uid")),
            groups=account_groups(namespace),
            extra=dict(sorted(extra.items())),
        )

    def _check_subject(self, account: Json, asked: Json) -> None:
        for field, own in (("name", name_of(account)), ("namespace", namespace_of(account))):
            if asked.get(field) and asked[field] != own:
                words = f"must match the service account {field} if specified"
                raise status.invalid(_KIND, name_of(account), [bad_value(f"metadata.{field}", asked[field], words)])
        if asked.get("uid") and asked["uid"] != uid_of(account):
            words = "the UID in the token request ({}) does not match the UID of the service account ({})"
            raise status.conflict(_KIND, name_of(account), words.format(asked["uid"], uid_of(account)))

    def _bound_claims(self, account: Json, reference: object) -> Json:
        """Return the claims about the object that the token is bound to. Raises: StatusError 400, 404, 409."""
        if not isinstance(reference, dict):
            return {}
        wanted: Json = reference  # pyright: ignore[reportUnknownVariableType]
        kind, version = str(wanted.get("kind") or ""), str(wanted.get("apiVersion") or "")
        if kind not in _BOUND or version not in ("", "v1"):
            group = version.rpartition("/")[0] + "/" + version.rpartition("/")[2]
            raise bad_request(f"cannot bind token to object of type {group}, Kind={kind}")
        place = "" if kind == "Node" else namespace_of(account)
        found = self._core.get(_BOUND[kind], place, str(wanted.get("name") or ""))
        if kind == "Pod" and mapping(found, "spec").get("serviceAccountName") != name_of(account):
            words = "to pod running with different serviceaccount name."
            raise bad_request(f'cannot bind token for serviceaccount "{name_of(account)}" {words}')
        if wanted.get("uid") and wanted["uid"] != uid_of(found):
            words = "does not match the UID in record. The object might have been deleted and then recreated"
            why = f"the UID in the bound object reference ({wanted['uid']}) {words}"
            raise status.conflict(kind, name_of(found), why)
        claims: Json = {kind.lower(): _identity(found)}
        node = str(mapping(found, "spec").get("nodeName") or "") if kind == "Pod" else ""
        if node:
            record = self._core.store.find("nodes", "", node)
            claims["node"] = {"name": node} if record is None else _identity(record.obj)
        return claims

    def _check_alive(self, resource: str, namespace: str, reference: Json) -> None:
        record = self._core.store.find(resource, namespace, str(reference.get("name")))
        if record is None or uid_of(record.obj) != reference.get("uid"):
            raise TokenError("service account token has been invalidated")
        ends_at = parse_time(metadata(record.obj).get("deletionTimestamp"))
        if is_deleting(record.obj) and self._core.clock() > (ends_at or 0.0) + GONE_GRACE_S:
            raise TokenError("service account token has been invalidated")

    def _sign(self, claims: Json) -> str:
        head = {"alg": "HS256", "kid": hashlib.sha256(b"id:" + self._key).hexdigest()[:16]}
        body = f"{_encode(msgspec.json.encode(head))}.{_encode(msgspec.json.encode(claims))}"
        return f"{body}.{_encode(self._seal(body))}"

    def _claims(self, token: str) -> Json:
        body, _, seal = token.rpartition(".")
        if not body or not hmac.compare_digest(_encode(self._seal(body)), seal):
            raise TokenError("")
        try:
            return msgspec.json.decode(_decode(body.partition(".")[2]), type=dict[str, Any])
        except (binascii.Error, msgspec.MsgspecError) as exc:
            raise TokenError("") from exc

    def _seal(self, body: str) -> bytes:
        return hmac.new(self._key, body.encode(), hashlib.sha256).digest()


_KIND = "TokenRequest.authentication.k8s.io"


def _identity(obj: Json) -> Json:
    return {"name": name_of(obj), "uid": uid_of(obj)}


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
