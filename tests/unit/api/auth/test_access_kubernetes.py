"""Mode `kubernetes`: the cluster authenticates callers, and its rules authorize them, workspace by workspace."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from slipway.api.auth import kubernetes_auth
from slipway.crd.meta import ANNOTATION_USER
from slipway.errors import DeadlineError, UnavailableError
from slipway.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from slipway.runtime.clock import SystemClock
from tests.support.access import BINDINGS, CANARY, Teams, bearer, teams_world

ALL = ["allocations", "jobs", "templates"]
VIEWER = [
    {"apiGroups": ["slipway.dev"], "resources": [*ALL, "allocations/log"], "verbs": ["get", "list"]},
]
EDITOR = [
    *VIEWER,
    {"apiGroups": ["slipway.dev"], "resources": ALL, "verbs": ["create", "delete", "patch", "update"]},
    {"apiGroups": ["slipway.dev"], "resources": ["allocations/proxy"], "verbs": ["create"]},
]
JOBS_ONLY = [{"apiGroups": ["slipway.dev"], "resources": ["jobs"], "verbs": ["get", "list", "patch"]}]
NODES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]


@pytest.fixture
async def teams() -> AsyncGenerator[Teams]:
    async with teams_world("kubernetes") as world:
        yield world


async def test_a_role_of_the_cluster_opens_its_workspace(teams: Teams) -> None:
    """The user is the account, under its whole name; the other workspace does not exist for it."""
    headers = await teams.account("ada")
    await teams.grant("ada", "red-edit", EDITOR, where="team-red")
    made = await teams.launch({**headers, "X-Slipway-User": "root"}, name="mine", workspace="team-red")
    assert made.status_code == 201, made.text
    stored = await teams.world.stored("mine", "team-red")
    assert stored.metadata.annotations[ANNOTATION_USER] == "system:serviceaccount:default:ada"
    assert (await teams.call("GET", "/me", headers)).json()["workspaces"] == ["team-red"]
    names = {item["name"] for item in (await teams.call("GET", "/allocations", headers)).json()["items"]}
    assert names == {"mine", CANARY["red"]}
    assert (await teams.call("POST", "/allocations/mine/kill", headers)).status_code == 202
    hidden = await teams.call("GET", f"/allocations/{teams.ids['blue']}", headers)
    nowhere = await teams.call("GET", "/allocations/canarynone-00000000", headers)
    assert (hidden.status_code, nowhere.status_code) == (404, 404)
    assert hidden.json()["detail"] == nowhere.json()["detail"].replace("canarynone-00000000", teams.ids["blue"])
    assert (await teams.launch(headers, workspace="team-blue")).status_code == 404
    assert (await teams.launch(headers, workspace="team-none")).status_code == 404


async def test_each_verb_is_asked_for(teams: Teams) -> None:
    """A viewer may not launch, kill or open; an account with all rights in a workspace may not take nodes out of
    use."""
    viewer, editor, admin = [await teams.account(name) for name in ("vera", "eddy", "root")]
    await teams.grant("vera", "red-view", VIEWER, where="team-red")
    await teams.grant("eddy", "red-edit", EDITOR, where="team-red")
    await teams.grant("root", "all", EVERYTHING)
    red = teams.ids["red"]
    for headers, changes, nodes in ((viewer, 403, 403), (editor, 202, 403), (admin, 202, 200)):
        assert (await teams.call("GET", f"/allocations/{red}/logs", headers)).status_code == 200
        assert (await teams.call("POST", f"/allocations/{red}/kill", headers)).status_code == changes
        assert (await teams.call("POST", "/nodes/n1/drain", headers)).status_code == nodes
        assert (await teams.call("GET", "/webhooks", headers)).status_code == nodes
        proxied = (await teams.world.http.get(f"/proxy/{red}/", headers=headers)).status_code
        assert (proxied == 403) is (changes == 403)
    listed = await teams.call("GET", "/allocations", admin)
    assert {item["workspace"] for item in listed.json()["items"]} == {"team-red", "team-blue"}


async def test_a_job_changes_its_members_only_for_who_may_change_those(teams: Teams) -> None:
    """A role for jobs alone sets weights and limits. Another queue, or a priority that begins work again, needs more
    rights."""
    jobs_only = await teams.account("jo")
    await teams.grant("jo", "red-view", VIEWER, where="team-red")
    await teams.grant("jo", "red-jobs", JOBS_ONLY, where="team-red")
    editor = await teams.account("eddy")
    await teams.grant("eddy", "red-edit", EDITOR, where="team-red")
    made = await teams.call("POST", "/jobs", editor, json={"name": "j", "workspace": "team-red", "priority": 50})
    assert made.status_code == 201, made.text
    waits, runs = [
        (await teams.launch(editor, workspace="team-red", job="j", preemptible=True)).json() for _ in range(2)
    ]
    await teams.world.run(runs["name"], namespace="team-red")
    await teams.world.make_queue("other")

    for change in ({"queue": "other"}, {"priority": 70}):
        refused = await teams.call("PATCH", "/jobs/j?workspace=team-red", jobs_only, json=change)
        assert (refused.status_code, "allocations" in refused.json()["detail"]) == (403, True)
        many = {"updates": [{"job": "j", "workspace": "team-red", **change}]}
        (item,) = (await teams.call("POST", "/jobs/batch", jobs_only, json=many)).json()["items"]
        assert (item["ok"], item["code"]) == (False, "forbidden")
    assert (await teams.world.stored(waits["name"], "team-red")).spec.queue == "default"
    assert (await teams.world.stored(runs["name"], "team-red")).spec.signals is None

    weighed = await teams.call("PATCH", "/jobs/j?workspace=team-red", jobs_only, json={"weight": 3})
    assert weighed.status_code == 200
    moved = await teams.call("PATCH", "/jobs/j?workspace=team-red", editor, json={"queue": "other", "priority": 70})
    assert (moved.status_code, moved.json()["preempted"]) == (200, [runs["id"]])
    assert (await teams.world.stored(waits["name"], "team-red")).spec.queue == "other"


async def test_a_caller_without_any_role_sees_nothing_of_the_cluster(teams: Teams) -> None:
    """An account that the cluster knows has no rights by that, because every pod has an account."""
    headers = await teams.account("nobody")
    for path in ("/queues", "/nodes", "/pools", "/queue-stats"):
        assert (await teams.call("GET", path, headers)).status_code == 403
    for path in ("/allocations", "/jobs", "/templates", "/workspaces"):
        assert (await teams.call("GET", path, headers)).json()["items"] == []
    assert (await teams.call("GET", "/me", headers)).json()["workspaces"] == []


async def test_a_token_must_be_for_us(teams: Teams) -> None:
    """A token for another audience and a forged token get 401, as a call without a token does; a token of a task gets
    403."""
    await teams.grant("ada", "all", EVERYTHING)
    good = await teams.account("ada")
    issue = teams.world.accounts.issue
    other = str(issue("default", "ada", {"spec": {"audiences": ["vault"]}})["status"]["token"])
    head, body, seal = good["Authorization"].removeprefix("Bearer ").split(".")
    for headers in ({}, bearer(other), bearer(f"{head}.{body}.{seal[::-1]}"), bearer("x"), bearer("a" * 20_000)):
        answer = await teams.call("GET", "/me", headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer"), answer.text
    task = bearer(str(issue("default", "ada", {"spec": {"audiences": ["slipway"]}})["status"]["token"]))
    assert (await teams.call("GET", "/me", task)).status_code == 403
    assert (await teams.call("GET", "/me", good)).status_code == 200


async def test_a_removed_role_has_no_effect(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rights end after the few seconds for which an answer is cached."""
    headers = await teams.account("ada")
    await teams.grant("ada", "red-edit", EDITOR, where="team-red")
    path = f"/allocations/{teams.ids['red']}"
    assert (await teams.call("GET", path, headers)).status_code == 200
    await teams.world.kube.delete(BINDINGS, "red-edit", namespace="team-red")
    at = teams.world.clock.monotonic() + 11

    def later(_clock: SystemClock) -> float:
        return at

    monkeypatch.setattr(SystemClock, "monotonic", later)
    assert (await teams.call("GET", path, headers)).status_code == 404


@pytest.mark.parametrize("resource", [TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS], ids=lambda one: one.plural)
@pytest.mark.parametrize("error", [UnavailableError("away"), DeadlineError("slow")], ids=["away", "slow"])
async def test_calls_are_refused_while_callers_cannot_be_authenticated(
    teams: Teams, resource: Any, error: Exception
) -> None:
    """Reads and writes get 503 with Retry-After, and never an answer."""
    headers = await teams.account("ada")
    await teams.grant("ada", "all", EVERYTHING)
    create = teams.world.kube.create

    async def failing(asked: Any, body: Any, **options: Any) -> Any:
        if asked is resource:
            raise error
        return await create(asked, body, **options)

    teams.world.kube.create = failing  # pyright: ignore[reportAttributeAccessIssue]
    for method, path in (("GET", "/allocations"), ("POST", f"/allocations/{teams.ids['red']}/kill")):
        answer = await teams.call(method, path, headers)
        assert (answer.status_code, "Retry-After" in answer.headers) == (503, True), answer.text
        assert CANARY["red"] not in answer.text.replace(teams.ids["red"], "")
    stored = await teams.world.stored(CANARY["red"], "team-red")
    assert stored.spec.desired == "Running"


async def test_a_burst_of_requests_asks_few_questions(teams: Teams) -> None:
    """Answers are cached: a page with a hundred requests costs the API server a handful of reviews."""
    headers = await teams.account("ada")
    await teams.grant("ada", "red-edit", EDITOR, where="team-red")
    await teams.call("GET", f"/allocations/{teams.ids['red']}", headers)
    asked: list[str] = []
    create = teams.world.kube.create

    async def counting(resource: Any, body: Any, **options: Any) -> Any:
        asked.append(resource.plural)
        return await create(resource, body, **options)

    teams.world.kube.create = counting  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(100):
        assert (await teams.call("GET", f"/allocations/{teams.ids['red']}", headers)).status_code == 200
    assert asked == []


async def test_too_many_access_reviews_are_refused(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of tokens causes no more reviews than the limit; the other callers get 429 and try again."""
    headers = await teams.account("ada")
    monkeypatch.setattr(kubernetes_auth, "WAITING_MAX", 0)
    answer = await teams.call("GET", "/allocations", headers)
    assert (answer.status_code, "Retry-After" in answer.headers) == (429, True)
