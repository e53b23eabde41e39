"""Tokens of an OpenID Connect issuer at the api: which are valid, which rights they give, and the cost of bad ones."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipway.api.auth.issuer import FETCH_GAP_S, KEYS_FRESH_S, Issuer
from slipway.api.settings import Settings
from slipway.ops.doctor.command import ApiIssuerCondition, api_condition_of, judge_issuer
from slipway.ops.doctor.finding import FindingState
from tests.support.access import BINDINGS, CLUSTER_BINDINGS, RBAC, ROLES, Teams, bearer, served_by, teams_world
from tests.support.clock import ShiftedClock
from tests.support.issuer import CLI, WEB, RunningIssuer, running_issuer

ROLE_LISTS = {"group:ml": {"team-red": "editor"}, "user:oidc:root": {"*": "admin"}}
VIEWS = [{"apiGroups": ["slipway.dev"], "resources": ["allocations"], "verbs": ["get", "list", "create"]}]


def of_issuer(url: str, **more: Any) -> dict[str, Any]:
    """The settings of single sign-on."""
    return {"oidc_issuer_url": url, "oidc_client_id": WEB, "oidc_username_prefix": "oidc:", **more}


@pytest.fixture
async def teams(issuer: RunningIssuer, tmp_path: Path) -> AsyncGenerator[Teams]:
    """An api in mode `token` whose settings map the issuer's groups to roles."""
    settings = of_issuer(issuer.url, oidc_roles=ROLE_LISTS, oidc_cli_client_id=CLI)
    async with teams_world("token", tmp_path, **settings) as found:
        yield found
        assert found.world.parts.issuer is not None
        await found.world.parts.issuer.aclose()


def parts_issuer(teams: Teams) -> Issuer:
    found = teams.world.parts.issuer
    assert found is not None
    return found


class ApiWithMovedClock:
    """The same api as a separate process, with a clock that a test moves."""

    def __init__(self, teams: Teams, http: httpx2.AsyncClient, clock: ShiftedClock) -> None:
        self.teams = teams
        self.clock = clock
        self._http = http

    async def me(self, token: str) -> httpx2.Response:
        return await self._http.get("/api/v1/me", headers=bearer(token))


@asynccontextmanager
async def later(url: str, folder: Path) -> AsyncGenerator[ApiWithMovedClock]:
    """An api in mode `token`, with a clock that a test moves."""
    async with teams_world("token", folder, **of_issuer(url)) as teams:
        clock = ShiftedClock()
        parts = await teams.replica(clock=clock)
        async with served_by(parts) as http:
            yield ApiWithMovedClock(teams, http, clock)
        assert parts.issuer is not None
        await parts.issuer.aclose()


async def test_a_valid_token_says_who_calls(teams: Teams, issuer: RunningIssuer) -> None:
    """The token gives the user and the expiry, the settings give the roles; for both clients of the issuer."""
    for audience in (WEB, [CLI, "another"]):
        me = await teams.call("GET", "/me", bearer(issuer.token(aud=audience, groups=["ml", "others"])))
        assert me.status_code == 200, me.text
        told = me.json()
        assert (told["user"], told["roles"], told["workspaces"]) == ("oidc:ada", {"team-red": "editor"}, ["team-red"])
        assert told["expiresAt"]


async def test_groups_open_workspaces(teams: Teams, issuer: RunningIssuer) -> None:
    """An editor launches in the group's workspace with their own name; a workspace of others does not exist for
    them; an admin is set by name."""
    ada = bearer(issuer.token(groups=["ml"]))
    launched = await teams.launch(ada, workspace="team-red")
    assert (launched.status_code, launched.json()["user"]) == (201, "oidc:ada")
    assert (await teams.call("GET", f"/allocations/{teams.ids['red']}", ada)).status_code == 200
    assert (await teams.call("GET", f"/allocations/{teams.ids['blue']}", ada)).status_code == 404
    assert (await teams.call("GET", "/webhooks", ada)).status_code == 403
    root = bearer(issuer.token(sub="root"))
    assert (await teams.call("GET", f"/allocations/{teams.ids['blue']}", root)).status_code == 200


async def test_a_user_without_groups_is_known_and_may_nothing(teams: Teams, issuer: RunningIssuer) -> None:
    """A user without groups, with other groups, or with a claim that is no list gets 200 with no workspace, and
    cannot launch."""
    cases: list[dict[str, Any]] = [{}, {"groups": ["others"]}, {"groups": 7}, {"groups": [{"name": "ml"}]}]
    for claims in cases:
        vera = bearer(issuer.token(sub="vera", **claims))
        me = await teams.call("GET", "/me", vera)
        assert (me.status_code, me.json()["user"], me.json()["workspaces"]) == (200, "oidc:vera", [])
        assert (await teams.launch(vera, workspace="team-red")).status_code == 404
        assert (await teams.call("GET", "/queues", vera)).status_code == 403


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": 1_600_000_000}, "expired at 2020-09-13T12:26:40"),
    "without an end": ({"exp": None}, "claim exp"),
    "with an end that is no number": ({"exp": "soon"}, "claim exp"),
    "not yet valid": ({"nbf": 4_000_000_000}, "not valid before"),
    "of another audience": ({"aud": "another"}, "for 'another', not for"),
    "of no audience": ({"aud": None}, "the token names no audience"),
    "of another issuer": ({"iss": "https://evil.example"}, "unknown, expired or revoked token"),
    "of the issuer with a slash": ({"iss": "SLASH"}, "unknown, expired or revoked token"),
    "without a name": ({"sub": None}, "no claim sub"),
    "of a strange key of the same name": ({"key": "strange"}, "signature of the token"),
    "of a key that is not published": ({"key": "strange", "header": {"kid": "strange"}}, "does not publish"),
    "unsigned": ({"header": {"alg": "none"}}, "signed with 'none'"),
    "signed with the public key": ({"header": {"alg": "HS256"}}, "signed with 'HS256'"),
    "of another algorithm": ({"header": {"alg": "RS512"}}, "signed with 'RS512'"),
    "a notice of a logout": (
        {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}},
        "is a logout token",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
async def test_a_bad_token_opens_nothing(teams: Teams, issuer: RunningIssuer, case: str) -> None:
    """A bad token gets 401 with the reason and a fix."""
    claims, said = BAD[case]
    if claims.get("iss") == "SLASH":
        claims = dict[str, Any](iss=f"{issuer.url}/")
    answer = await teams.call("GET", "/me", bearer(issuer.token(**claims)))
    assert (answer.status_code, said in answer.text) == (401, True), answer.text
    assert "slipway login" in answer.text


async def test_a_changed_token_opens_nothing(teams: Teams, issuer: RunningIssuer) -> None:
    """Tokens with other claims under the same signature, with a header that is no JSON, or cut in half are refused."""
    token = issuer.token(groups=["ml"])
    head, body, mac = token.split(".")
    other = issuer.token(sub="root").split(".")[1]
    for text in (f"{head}.{other}.{mac}", f"e30.{body}.{mac}", f"{head}.{body}.AAAA", f"x{token}"):
        assert (await teams.call("GET", "/me", bearer(text))).status_code == 401


async def test_small_differences_of_clocks_do_not_matter(teams: Teams, issuer: RunningIssuer) -> None:
    """A token that ended or begins some seconds ago or ahead is valid; one that is off by a minute is not."""
    now = teams.world.clock.now()
    cases: list[tuple[dict[str, Any], int]] = [
        ({"exp": int(now) - 10}, 200),
        ({"exp": int(now) - 60}, 401),
        ({"nbf": int(now) + 10}, 200),
        ({"nbf": int(now) + 60}, 401),
        ({"iat": int(now) + 10}, 200),
    ]
    for claims, status in cases:
        answer = await teams.call("GET", "/me", bearer(issuer.token(**claims)))
        assert answer.status_code == status, (claims, answer.text)


async def test_keys_are_rotated_without_a_restart(issuer: RunningIssuer, tmp_path: Path) -> None:
    """A token of the new key is valid at once, and one of the old key no longer."""
    async with later(issuer.url, tmp_path) as api:
        old = issuer.token()
        assert (await api.me(old)).status_code == 200
        api.clock.advance(FETCH_GAP_S)
        issuer.tell("rotate")
        assert (await api.me(issuer.token())).status_code == 200
        assert (await api.me(old)).status_code == 401


async def test_a_flood_of_unknown_keys_costs_one_fetch(teams: Teams, issuer: RunningIssuer) -> None:
    """Each unknown key is refused, valid tokens work, and the issuer's keys are fetched at most once in ten seconds."""
    good = bearer(issuer.token())
    assert (await teams.call("GET", "/me", good)).status_code == 200
    before = issuer.calls("/jwks")
    bad = [bearer(issuer.token(key="strange", header={"kid": f"k{number}"})) for number in range(40)]
    answers = await asyncio.gather(*(teams.call("GET", "/me", each) for each in bad))
    assert {answer.status_code for answer in answers} == {401}
    assert (await teams.call("GET", "/me", good)).status_code == 200
    assert issuer.calls("/jwks") - before <= 1


async def test_an_issuer_that_is_away_at_the_start(tmp_path: Path) -> None:
    """Tokens of the issuer get 503 with a time to retry, own tokens work; when the issuer is up, its tokens work
    without a restart."""
    with running_issuer() as issuer:
        token = issuer.token()
        issuer.stop()
        async with later(issuer.url, tmp_path) as api:
            away = await api.me(token)
            assert (away.status_code, away.headers["Retry-After"]) == (503, "10"), away.text
            assert issuer.url in away.text
            own = await api.teams.token("bob", {"*": "viewer"})
            assert (await api.teams.call("GET", "/me", own)).status_code == 200
            issuer.start()
            assert (await api.me(issuer.token())).status_code == 503  # the issuer is not called again yet
            api.clock.advance(FETCH_GAP_S)
            assert (await api.me(issuer.token())).status_code == 200


async def test_the_last_keys_serve_while_the_issuer_is_away(issuer: RunningIssuer, tmp_path: Path) -> None:
    """The last keys are used, however old they are; a token of an unknown key is refused."""
    async with later(issuer.url, tmp_path) as api:
        good = issuer.token(exp=4_000_000_000)
        assert (await api.me(good)).status_code == 200
        issuer.faults(away=True)
        for _ in range(3):
            api.clock.advance(KEYS_FRESH_S + 1)
            assert (await api.me(good)).status_code == 200
        strange = issuer.token(key="strange", header={"kid": "k"}, exp=4_000_000_000)
        assert (await api.me(strange)).status_code == 401


@pytest.mark.parametrize(
    ("discovery", "said"),
    [
        ({"issuer": "https://other.example"}, "SLIPWAY_OIDC_ISSUER_URL must be the same"),
        ({"jwks_uri": "http://keys.example/jwks"}, "jwks_uri must be an https:// address"),
        ({"jwks_uri": None}, "is no discovery document"),
    ],
)
async def test_a_discovery_document_that_does_not_fit(
    issuer: RunningIssuer, tmp_path: Path, discovery: dict[str, Any], said: str
) -> None:
    """The document is not used: tokens get 503, and the answer shows the reason."""
    token = issuer.token()
    issuer.faults(discovery=discovery)
    async with teams_world("token", tmp_path, **of_issuer(issuer.url)) as teams:
        answer = await teams.call("GET", "/me", bearer(token))
        assert (answer.status_code, said in answer.text) == (503, True), answer.text
        await parts_issuer(teams).aclose()


async def test_the_doctor_is_told_of_the_issuer(issuer: RunningIssuer, tmp_path: Path) -> None:
    """The doctor shows the keys and the clock difference, or the reason when the issuer fails; it shows nothing
    without an issuer."""
    async with teams_world("token", tmp_path, **of_issuer(issuer.url)) as teams:
        admin = await teams.token("root", {"*": "admin"})
        told = api_condition_of((await teams.call("GET", "/condition", admin)).json())
        assert told.issuer is not None
        assert (told.issuer.issuer, told.issuer.keys, told.issuer.error) == (issuer.url, 1, "")
        assert told.issuer.ahead_s is not None
        assert [each.state for each in judge_issuer(told.issuer)] == [FindingState.OK, FindingState.OK]
        await parts_issuer(teams).aclose()
    issuer.faults(away=True)
    async with teams_world("token", tmp_path, **of_issuer(issuer.url)) as teams:
        admin = await teams.token("root", {"*": "admin"})
        told = api_condition_of((await teams.call("GET", "/condition", admin)).json())
        assert told.issuer is not None
        first = next(iter(judge_issuer(told.issuer)))
        assert (first.state, "answers 503" in first.found) == (FindingState.FAILED, True)
        await parts_issuer(teams).aclose()
    skewed = ApiIssuerCondition(issuer="https://a.example", keys=1, ahead_s=-20.0)
    assert [each.state for each in judge_issuer(skewed)] == [FindingState.OK, FindingState.WARNING]
    async with teams_world("token", tmp_path) as teams:
        admin = await teams.token("root", {"*": "admin"})
        assert (await teams.call("GET", "/condition", admin)).json()["issuer"] is None


async def test_in_mode_kubernetes_role_bindings_are_for_users_and_groups(issuer: RunningIssuer) -> None:
    """Role bindings use the prefixed name or group that kubectl would show; accounts of the cluster work as before."""
    settings = of_issuer(issuer.url, oidc_groups_prefix="oidc:")
    async with teams_world("kubernetes", None, **settings) as teams:
        kube = teams.world.kube
        await kube.create(ROLES, {"metadata": {"name": "views"}, "rules": VIEWS})
        for kind, name, where in (("Group", "oidc:ml", "team-red"), ("User", "oidc:bob", "team-blue")):
            body = {
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "views"},
                "subjects": [{"kind": kind, "name": name, "apiGroup": RBAC}],
            }
            await kube.create(BINDINGS, {"metadata": {"name": f"of-{where}", "namespace": where}, **body})
        ada, bob = bearer(issuer.token(groups=["ml"])), bearer(issuer.token(sub="bob"))
        assert (await teams.call("GET", "/me", ada)).json()["workspaces"] == ["team-red"]
        assert (await teams.call("GET", "/me", bob)).json()["workspaces"] == ["team-blue"]
        assert (await teams.launch(ada, workspace="team-red")).status_code == 201
        assert (await teams.launch(bob, workspace="team-red")).status_code == 404
        account = await teams.account("worker")
        assert (await teams.call("GET", "/me", account)).json()["user"] == "system:serviceaccount:default:worker"
        await parts_issuer(teams).aclose()


async def test_no_issuer_makes_an_administrator_of_kubernetes(issuer: RunningIssuer) -> None:
    """Without a prefix a name of Kubernetes' own is refused, and such groups are dropped."""
    settings = of_issuer(issuer.url) | {"oidc_username_prefix": "-"}
    async with teams_world("kubernetes", None, **settings) as teams:
        named = await teams.call("GET", "/me", bearer(issuer.token(sub="system:admin")))
        assert (named.status_code, "SLIPWAY_OIDC_USERNAME_PREFIX" in named.text) == (401, True)
        assert (await teams.call("GET", "/me", bearer(issuer.token(sub="eve\x1b[2J")))).status_code == 401
        kube = teams.world.kube
        await kube.create(ROLES, {"metadata": {"name": "views"}, "rules": VIEWS})
        groups = ["system:masters", "kubeadm:cluster-admins", "a\u202eb"]
        subjects = [{"kind": "Group", "name": name, "apiGroup": RBAC} for name in groups]
        body = {"roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "views"}, "subjects": subjects}
        await kube.create(CLUSTER_BINDINGS, {"metadata": {"name": "of-groups"}, **body})
        grouped = await teams.call("GET", "/me", bearer(issuer.token(groups=groups)))
        assert (grouped.json()["user"], grouped.json()["workspaces"]) == ("ada", [])
        await parts_issuer(teams).aclose()


@pytest.mark.parametrize(
    ("settings", "claims", "user"),
    [
        ({"oidc_username_prefix": ""}, {}, "ISSUER#ada"),
        ({"oidc_username_prefix": "", "oidc_username_claim": "email"}, {"email": "a@b.example"}, "a@b.example"),
        ({"oidc_username_claim": "email"}, {"email": "a@b.example", "email_verified": False}, None),
        ({"oidc_required_claims": {"hd": "b.example"}}, {"hd": "b.example"}, "oidc:ada"),
        ({"oidc_required_claims": {"hd": "b.example"}}, {"hd": "c.example"}, None),
        ({"oidc_audience": ("the-api",)}, {"aud": "the-api"}, "oidc:ada"),
        ({"oidc_audience": ("the-api",)}, {}, None),
    ],
)
async def test_names_are_made_as_by_kube_apiserver(
    issuer: RunningIssuer, tmp_path: Path, settings: dict[str, Any], claims: dict[str, Any], user: str | None
) -> None:
    """The name is made from the claim and the prefix; None: the token is refused."""
    async with teams_world("token", tmp_path, **{**of_issuer(issuer.url), **settings}) as teams:
        me = await teams.call("GET", "/me", bearer(issuer.token(**claims)))
        expected = (200, user.replace("ISSUER", issuer.url)) if user else (401, None)
        assert (me.status_code, me.json().get("user")) == expected, me.text
        await parts_issuer(teams).aclose()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"oidc_client_id": "x"}, "need each other"),
        (
            {"oidc_issuer_url": "https://a.example", "oidc_client_id": "x", "auth": "none", "token_dir": ""},
            "mode none authenticates",
        ),
        (
            {
                "oidc_issuer_url": "https://a.example",
                "oidc_client_id": "x",
                "auth": "kubernetes",
                "token_dir": "",
                "oidc_roles": {"group:a": {}},
            },
            "RoleBindings",
        ),
    ],
)
def test_settings_that_contradict(settings: dict[str, Any], said: str) -> None:
    """Contradicting settings are refused at the start, and the error names the settings that belong together."""
    more: dict[str, Any] = {"auth": "token", "token_dir": "/x", **settings}
    with pytest.raises(ValueError, match=said):
        Settings(**more)
