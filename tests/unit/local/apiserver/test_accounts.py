"""Tokens on a clock that the test moves, and the access checks of the server in its different modes."""

import httpx2
import pytest

from slipway.local.apiserver.accounts import ServiceAccountTokens, TokenError
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.http import create_app
from tests.unit.local.apiserver.support import HandClock, a_core

PODS = "/api/v1/namespaces/default/pods"
SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def _token(accounts: ServiceAccountTokens, seconds: int = 600) -> str:
    return accounts.issue("default", "default", {"spec": {"expirationSeconds": seconds}})["status"]["token"]


def test_token_expires() -> None:
    """A token is valid to its last second and invalid after it."""
    clock = HandClock()
    accounts = ServiceAccountTokens(a_core(clock), b"key")
    token = _token(accounts)
    clock.now += 599
    assert accounts.read(token)[0].name == "system:serviceaccount:default:default"
    clock.now += 1
    with pytest.raises(TokenError, match="expired"):
        accounts.read(token)


def test_other_key_makes_other_tokens() -> None:
    """A token of one cluster is invalid in another; a token of the same key survives a restart."""
    core = a_core()
    token = _token(ServiceAccountTokens(core, b"one"))
    assert ServiceAccountTokens(core, b"one").read(token)[1]
    with pytest.raises(TokenError):
        ServiceAccountTokens(core, b"two").read(token)


def test_token_of_a_deleting_pod_counts_a_little_longer() -> None:
    """The token of a pod that is being deleted is valid until a minute after the pod's grace, for its last calls."""
    clock = HandClock()
    core = a_core(clock)
    spec = {"containers": [{"name": "m", "image": "i:1"}], "terminationGracePeriodSeconds": 30}
    core.create("pods", "default", {"metadata": {"name": "p"}, "spec": spec})
    core.bind("default", "p", {"metadata": {"name": "p"}, "target": {"name": "n"}})
    accounts = ServiceAccountTokens(core, b"key")
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p"}
    token = accounts.issue("default", "default", {"spec": {"boundObjectRef": reference}})["status"]["token"]
    core.delete("pods", "default", "p")
    clock.now += 90
    assert accounts.read(token)[1]
    clock.now += 1
    with pytest.raises(TokenError, match="invalidated"):
        accounts.read(token)


@pytest.mark.parametrize(
    ("token", "authorization", "sent", "codes"),
    [
        ("", "open", "", (200, 200)),
        ("", "open", "anything", (200, 200)),
        ("t", "open", "", (401, 200)),
        ("t", "open", "wrong", (401, 401)),
        ("t", "open", "t", (200, 200)),
        ("t", "rbac", "", (403, 200)),
        ("t", "rbac", "wrong", (401, 401)),
        ("t", "rbac", "t", (200, 200)),
    ],
)
async def test_token_decides_what_can_be_read(
    token: str, authorization: str, sent: str, codes: tuple[int, int]
) -> None:
    """A server with a token refuses a wrong token; without the token a caller can read only the health, with it also
    the pods. A server without a token serves every caller."""
    app = create_app(a_core(), token=token, authorization=authorization)  # pyright: ignore[reportArgumentType]
    headers = {"authorization": f"Bearer {sent}"} if sent else {}
    async with _client(app) as client:
        found = [(await client.get(path, headers=headers)).status_code for path in (PODS, "/livez")]
    assert tuple(found) == codes


async def test_account_in_open_mode_is_known_and_free() -> None:
    """In open mode an account is identified, and may do everything."""
    core: ClusterCore = a_core()
    app = create_app(core, token="t", accounts_key=b"key")
    headers = {"authorization": f"Bearer {_token(ServiceAccountTokens(core, b'key'))}"}
    async with _client(app) as client:
        who = (await client.post(SELF, headers=headers, json={})).json()
        pods = await client.get(PODS, headers=headers)
    assert who["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"
    assert pods.status_code == 200


def _client(app: object) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app)  # pyright: ignore[reportArgumentType]
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost")
