"""Tokens of service accounts: their claims, how long they are valid, and what revokes them."""

import base64
from typing import Any

import msgspec
import pytest

from tests.contract.kube.client import KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import Json, a_pod
from tests.contract.kube.target import Target

SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
HOUR_S = 3600


class Issuer:
    """Requests tokens of the account `robot`."""

    def __init__(self, kube: KubeHttp, ns: NamespacePaths) -> None:
        self.kube = kube
        self.ns = ns

    async def ask(self, name: str = "robot", **spec: Any) -> Reply:
        return await self.kube.post(self.ns.of("serviceaccounts", name, "token"), {"spec": spec})

    async def token(self, **spec: Any) -> str:
        issued = await self.ask(**spec)
        assert issued.code == 201, issued.body
        return issued.body["status"]["token"]

    async def review(self, token: str, **spec: Any) -> Json:
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        answer = await self.kube.post(path, {"spec": {"token": token, **spec}})
        assert answer.code == 201, answer.body
        return answer.body["status"]

    async def wait_void(self, token: str) -> Json:
        async def check() -> bool:
            return "error" in await self.review(token)

        # The real server caches for ten seconds that a token was valid.
        await eventually(check, "the token is void", within_s=20)
        return await self.review(token)


@pytest.fixture
async def issuer(kube: KubeHttp, ns: NamespacePaths) -> Issuer:
    made = await kube.post(ns.of("serviceaccounts"), {"metadata": {"name": "robot"}})
    assert made.code == 201, made.body
    return Issuer(kube, ns)


def _claims(token: str) -> Json:
    payload = token.split(".")[1]
    return msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


async def test_answer_carries_token_and_expiry(issuer: Issuer) -> None:
    """A token request gets 201; the metadata is the account's; the default is an hour and the server's audience."""
    issued = await issuer.ask()
    account = await issuer.kube.get(issuer.ns.of("serviceaccounts", "robot"))
    meta = {field: issued.body["metadata"][field] for field in ("name", "namespace", "uid")}
    assert (issued.code, issued.body["kind"]) == (201, "TokenRequest")
    assert meta == {"name": "robot", "namespace": issuer.ns.name, "uid": account.uid}
    assert issued.body["spec"]["expirationSeconds"] == HOUR_S
    assert len(issued.body["spec"]["audiences"]) == 1
    assert issued.body["status"]["expirationTimestamp"] > issued.body["metadata"]["creationTimestamp"]


async def test_claims(issuer: Issuer) -> None:
    """A token is a JWT that names the account, its uid and its times."""
    issued = await issuer.ask(expirationSeconds=2 * HOUR_S)
    claims = _claims(issued.body["status"]["token"])
    assert claims["sub"] == f"system:serviceaccount:{issuer.ns.name}:robot"
    assert claims["exp"] - claims["iat"] == 2 * HOUR_S
    assert claims["nbf"] == claims["iat"]
    assert claims["aud"] == issued.body["spec"]["audiences"]
    about = {"name": "robot", "uid": issued.body["metadata"]["uid"]}
    assert claims["kubernetes.io"] == {"namespace": issuer.ns.name, "serviceaccount": about}
    assert claims["jti"]


async def test_review_knows_the_account(issuer: Issuer) -> None:
    """A review returns name, uid, groups, the token's id, and its audiences."""
    issued = await issuer.ask()
    token, uid = issued.body["status"]["token"], issued.body["metadata"]["uid"]
    status = await issuer.review(token)
    space = issuer.ns.name
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{space}", "system:authenticated"]
    extra = {"authentication.kubernetes.io/credential-id": [f"JTI={_claims(token)['jti']}"]}
    assert status == {
        "authenticated": True,
        "user": {"username": f"system:serviceaccount:{space}:robot", "uid": uid, "groups": groups, "extra": extra},
        "audiences": issued.body["spec"]["audiences"],
    }


async def test_review_refuses_nonsense(issuer: Issuer) -> None:
    """An invalid token is not authenticated, with an error; a review without a token gets 400."""
    assert await issuer.review("nonsense") == {"user": {}, "error": "invalid bearer token"}
    answer = await issuer.kube.post("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {}})
    assert (answer.code, answer.message) == (400, "token is required for TokenReview in authentication")


async def test_changed_token_is_void(issuer: Issuer) -> None:
    """A token with an edited claim is invalid."""
    head, body, seal = (await issuer.token()).split(".")
    claims = _claims(f"{head}.{body}.{seal}") | {"sub": "system:serviceaccount:kube-system:default"}
    forged = base64.urlsafe_b64encode(msgspec.json.encode(claims)).decode().rstrip("=")
    assert "error" in await issuer.review(f"{head}.{forged}.{seal}")


async def test_audiences_must_meet(issuer: Issuer, target: Target) -> None:
    """A token for another audience is invalid here, and valid in a review for that audience."""
    token = await issuer.token(audiences=["vault"])
    assert "is invalid for the target audiences" in (await issuer.review(token))["error"]
    status = await issuer.review(token, audiences=["vault", "other"])
    assert (status["authenticated"], status["audiences"]) == (True, ["vault"])
    client = KubeHttp(target.as_bearer(token))
    assert (await client.post(SELF, {})).code == 401
    await client.close()


@pytest.mark.parametrize(("seconds", "words"), [(10, "less than 10 minutes"), (2**32 + 1, "larger than 2^32 seconds")])
async def test_life_has_bounds(issuer: Issuer, seconds: int, words: str) -> None:
    """A lifetime out of bounds gets 422."""
    answer = await issuer.ask(expirationSeconds=seconds)
    assert (answer.code, answer.causes[0]["field"]) == (422, "spec.expirationSeconds")
    assert answer.message == (
        'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: '
        f"{seconds}: may not specify a duration {words}"
    )


async def test_absent_account(issuer: Issuer) -> None:
    """A token request for a missing account gets 404; a read of the subresource gets 405."""
    answer = await issuer.ask("none")
    assert (answer.code, answer.message) == (404, 'serviceaccounts "none" not found')
    assert (await issuer.kube.get(issuer.ns.of("serviceaccounts", "robot", "token"))).code == 405


async def test_deleted_account_ends_its_tokens(issuer: Issuer, target: Target) -> None:
    """The tokens of a deleted account are invalid, also when an account of that name is created again."""
    token = await issuer.token()
    await issuer.kube.delete(issuer.ns.of("serviceaccounts", "robot"))
    await issuer.kube.post(issuer.ns.of("serviceaccounts"), {"metadata": {"name": "robot"}})
    assert "error" in await issuer.wait_void(token)
    client = KubeHttp(target.as_bearer(token))
    assert (await client.post(SELF, {})).code == 401
    await client.close()


async def test_bound_token_ends_with_its_pod(issuer: Issuer) -> None:
    """The claims and the review name the pod; when the pod is deleted, the token is invalid."""
    pod = (await issuer.kube.post(issuer.ns.of("pods"), a_pod(serviceAccountName="robot"))).body
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
    token = await issuer.token(boundObjectRef=reference)
    about = {"name": "p", "uid": pod["metadata"]["uid"]}
    assert _claims(token)["kubernetes.io"]["pod"] == about
    extra = (await issuer.review(token))["user"]["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
    assert extra["authentication.kubernetes.io/pod-uid"] == [about["uid"]]
    await issuer.kube.delete(issuer.ns.of("pods", "p"))
    assert "invalidated" in (await issuer.wait_void(token))["error"]


async def test_binding_is_checked(issuer: Issuer) -> None:
    """A missing object gets 404, another uid 409, and another account's pod or another kind 400."""
    await issuer.kube.post(issuer.ns.of("pods"), a_pod(serviceAccountName="robot"))
    await issuer.kube.post(issuer.ns.of("pods"), a_pod("other"))
    pod = {"apiVersion": "v1", "kind": "Pod"}
    absent = await issuer.ask(boundObjectRef={**pod, "name": "none"})
    changed = await issuer.ask(boundObjectRef={**pod, "name": "p", "uid": "11111111-1111-1111-1111-111111111111"})
    foreign = await issuer.ask(boundObjectRef={**pod, "name": "other"})
    strange = await issuer.ask(boundObjectRef={"apiVersion": "v1", "kind": "ConfigMap", "name": "c"})
    assert [answer.code for answer in (absent, changed, foreign, strange)] == [404, 409, 400, 400]
    assert "does not match the UID in record" in changed.message
    assert "running with different serviceaccount name" in foreign.message
    assert strange.message == "cannot bind token to object of type /v1, Kind=ConfigMap"


@pytest.mark.usefixtures("controllers")
async def test_every_namespace_has_a_default_account(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The account is created with the namespace, and again after it was deleted."""

    async def is_there() -> bool:
        return (await kube.get(ns.of("serviceaccounts", "default"))).code == 200

    await eventually(is_there, "the default account is there")
    first = (await kube.get(ns.of("serviceaccounts", "default"))).uid
    await kube.delete(ns.of("serviceaccounts", "default"))

    async def is_new() -> bool:
        found = await kube.get(ns.of("serviceaccounts", "default"))
        return found.code == 200 and found.uid != first

    await eventually(is_new, "the default account is back")


@pytest.mark.usefixtures("controllers")
async def test_pods_run_as_an_account(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A pod runs as `default` unless it names an account; a missing account gets 403."""

    async def is_made() -> bool:
        return (await kube.post(ns.of("pods"), a_pod())).code == 201

    await eventually(is_made, "the default account is there")
    pod = (await kube.get(ns.of("pods", "p"))).body
    assert pod["spec"]["serviceAccountName"] == pod["spec"]["serviceAccount"] == "default"
    refused = await kube.post(ns.of("pods"), a_pod("q", serviceAccountName="none"))
    assert (refused.code, refused.reason) == (403, "Forbidden")
    words = f'error looking up service account {ns.name}/none: serviceaccount "none" not found'
    assert refused.message == f'pods "q" is forbidden: {words}'
