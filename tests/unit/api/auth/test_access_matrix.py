"""Authorization: every route of the API by every kind of caller, and no hint of objects that a caller may not see."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from slipway.api.app import ENDPOINTS, create_app
from slipway.api.auth import route_rules
from slipway.api.auth.middleware import admit
from slipway.api.auth.route_rules import PermissionScope, RouteRule
from slipway.api.deps import parts_of
from slipway.api.http.endpoint import Endpoint
from slipway.errors import InvariantError, NotFoundError
from slipway.model.lifecycle import Kind
from slipway.runtime.health import HealthApp, ProcessHealth
from tests.support.access import CANARY, Teams, teams_world

ADMIN_PATHS = ("/webhooks", "/dead", "/tokens", "/decisions", "/forget", "/condition")
STREAMS = ("/events", "/logs")


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncGenerator[Teams]:
    """An api in mode `token`."""
    async with teams_world("token", tmp_path) as world:
        yield world


def needs(row: Endpoint) -> str:
    """The least role for a route, by a rule that does not know the table."""
    path = row.path.removeprefix("/api/v1")
    of_cluster = path.startswith(("/nodes", "/workspaces")) and row.method != "GET"
    if of_cluster or any(each in path for each in ADMIN_PATHS):
        return "admin"
    if path == "/simulate":
        return "viewer of all"
    if path == "/login-links":
        return "viewer"
    changes = row.method != "GET" or "/contexts" in path or path.endswith("/exec")
    return "editor" if changes else "viewer"


def filled(row: Endpoint, id_: str, team: str) -> str:
    """The path of a route, filled with the work of a team."""
    path = row.path.removeprefix("/api/v1").replace("{id}", id_).replace("{rank}", "0")
    named = f"team-{team}" if "/workspaces/" in path else "default" if "/queues/" in path else CANARY[team]
    path = path.replace("{name}", named).replace("{context}", "0" * 64).replace("{pool}", "default")
    path = path.replace("{letter}", "1700000000000-0")
    return f"{path}?workspace=team-{team}&follow=false&timeout_seconds=0"


def body_of(row: Endpoint, team: str, teams_id: str) -> Any:
    """A body that names the workspace, for routes whose bodies do."""
    if row.method in ("GET", "DELETE", "PUT") and "templates" not in row.path:
        return None
    path = row.path.removeprefix("/api/v1")
    if path in COLLECTIONS:
        kind = {"kind": "command"} if path == "/allocations" else {}
        return {"image": "a", "workspace": f"team-{team}", "command": ["true"], **kind}
    if path == "/jobs":
        return {"name": "j1", "workspace": f"team-{team}"}
    if path == "/jobs/batch":
        return {"updates": [{"job": CANARY[team], "workspace": f"team-{team}", "priority": 1}]}
    if path == "/allocations/batch":
        return {"verb": "priority", "priority": 1, "ids": [teams_id]}
    if path == "/allocations/launches":
        common = {"kind": "command", "image": "a", "workspace": f"team-{team}", "command": ["true"]}
        return {"launch": common, "each": [{"name": "one"}]}
    if path.startswith("/templates"):
        name = {} if row.method == "PUT" else {"name": "t1"}
        return {**name, "workspace": f"team-{team}", "body": {}}
    return {}


COLLECTIONS = ("/allocations", *(f"/{kind.value}s" for kind in Kind))


def cases() -> list[Endpoint]:
    """All routes but the stream of all events, which has no end."""
    return [row for row in ENDPOINTS if row.path != "/api/v1/events"]


def is_missing(row: Endpoint) -> bool:
    """Whether the object of the filled path does not exist: the work is a command, and there are no dead letters."""
    path = row.path.removeprefix("/api/v1")
    is_other_kind = "{id}" in path and not path.startswith(("/allocations", "/commands"))
    ends = ("{context}", "/context", "{letter}", "/replay")
    return is_other_kind or path.endswith(ends) or path.startswith(("/webhooks/", "/nodes/"))


async def call(teams: Teams, row: Endpoint, headers: dict[str, str], team: str, id_: str = "") -> Any:
    body = body_of(row, team, id_ or teams.ids[team])
    options = {} if body is None else {"json": body}
    accept = {"Accept": "application/json"} if row.path.endswith(STREAMS) else {}
    return await teams.call(row.method, filled(row, id_ or teams.ids[team], team), {**accept, **headers}, **options)


def test_every_route_has_its_row() -> None:
    """Every route has a row in the table, and the table has no other rows."""
    assert sorted(route_rules.listed()) == sorted(f"{row.method} {row.path}" for row in ENDPOINTS)


async def test_a_route_without_a_row_is_not_built(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application is not built, also when the route does not belong to the REST API."""
    monkeypatch.delitem(route_rules.OTHERS, "/docs")
    with pytest.raises(InvariantError, match="/docs is not in the authorisation table"):
        create_app(teams.world.parts, HealthApp(ProcessHealth(teams.world.clock)))
    with pytest.raises(InvariantError, match="GET /api/v1/new is not in the authorisation table"):
        route_rules.rule_of("GET", "/api/v1/new")


@pytest.mark.matrix(most=20)
@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row.method} {row.path}")
async def test_calls_without_a_valid_token_are_refused(teams: Teams, row: Endpoint) -> None:
    """A call without a token, or with a wrong, expired or revoked one, gets 401 as problem+json with the challenge."""
    expired = await teams.token("ada", {"*": "admin"}, life_s=-1)
    revoked = await teams.token("ada", {"*": "admin"})
    assert teams.folder is not None
    for file in teams.folder.iterdir():
        if file.stem in revoked["Authorization"]:
            file.unlink()
    await teams.look()
    wrong = {"Authorization": "Bearer slipway_" + "0" * 16 + "_" + "a" * 43}
    basic = {"Authorization": "Basic dXNlcjpwdw=="}
    for headers in ({}, wrong, basic, expired, revoked, {"X-Slipway-User": "root"}):
        answer = await call(teams, row, headers, "red")
        assert answer.status_code == 401, answer.text
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.matrix(most=50)
@pytest.mark.parametrize("role", ["viewer", "editor", "admin"])
@pytest.mark.parametrize("row", cases(), ids=lambda row: f"{row.method} {row.path}")
async def test_a_role_opens_what_it_includes(teams: Teams, row: Endpoint, role: str) -> None:
    """A role holds in its workspace; routes of the cluster need a role in all workspaces."""
    order = ["viewer", "editor", "admin"]
    need = needs(row)
    where = "*" if need in ("admin", "viewer of all") and "forget" not in row.path else "team-red"
    answer = await call(teams, row, await teams.token("ada", {where: role}), "red")
    assert answer.status_code < 500, answer.text
    may = order.index(role) >= order.index(need.partition(" ")[0])
    if may:
        assert answer.status_code not in (401, 403), answer.text
        assert answer.status_code != 404 or is_missing(row), answer.text
    elif row.path.endswith("/batch"):
        assert [item.get("problem", item)["code"] for item in answer.json()["items"]] == ["forbidden"]
    else:
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    if where == "*":
        only_there = await call(teams, row, await teams.token("eve", {"team-red": "admin"}), "red")
        assert only_there.status_code == 403, only_there.text


@pytest.mark.matrix(most=20)
@pytest.mark.parametrize("row", cases(), ids=lambda row: f"{row.method} {row.path}")
async def test_resources_of_other_workspaces_look_like_missing_ones(teams: Teams, row: Endpoint) -> None:
    """The admin of one workspace gets the same answer, to the letter, about another workspace and about one that does
    not exist; no answer contains anything of the other workspace."""
    headers = await teams.token("eve", {"team-blue": "admin"})
    there = await call(teams, row, headers, "red")
    assert CANARY["red"] not in _said(there, teams, "red")
    rule = route_rules.rule_of(row.method, row.path)
    if rule.where not in (
        PermissionScope.OBJECT,
        PermissionScope.QUERY,
        PermissionScope.PATH,
        PermissionScope.BODY,
    ) or row.path.endswith("/simulate"):
        return
    CANARY["none"], teams.ids["none"] = "canarynone", "canarynone-00000000"
    try:
        nowhere = await call(teams, row, headers, "none")
    finally:
        del CANARY["none"]
    assert there.status_code == nowhere.status_code
    assert _said(there, teams, "red") == _said(nowhere, teams, "none")
    assert dict(there.headers).keys() == dict(nowhere.headers).keys()
    if rule.where in (PermissionScope.OBJECT, PermissionScope.QUERY, PermissionScope.PATH):
        assert there.status_code == 404


async def test_no_answer_names_the_work_of_others(teams: Teams) -> None:
    """The message of the scheduler about a waiting allocation names other work. No route, refusal or waiting page shows
    that name to a caller who may not see the work."""
    words = f"team-red/{CANARY['red']} is before it"
    await teams.world.explain(CANARY["blue"], "BehindQueueHead", words, namespace="team-blue")
    headers, id_ = await teams.token("eve", {"team-blue": "admin"}), teams.ids["blue"]
    for row in cases():
        if row.method == "GET":
            answer = await call(teams, row, headers, "blue")
            assert CANARY["red"] not in answer.text, row.path
    for accepted in ("text/html", "application/json"):
        told = await teams.world.http.get(f"/proxy/{id_}/", headers={**headers, "Accept": accepted})
        assert (told.status_code, CANARY["red"] in told.text) == (503, False)
        assert "work of another workspace is before it" in told.text


async def test_guessing_does_not_reveal_which_workspaces_exist(teams: Teams) -> None:
    """A refusal of a batch repeats the text of the request unchanged, whether it names a workspace or none."""
    headers = await teams.token("eve", {"team-blue": "editor"})
    said: dict[str, list[str]] = {"team-red": [], "team-nil": []}
    for name, answers in said.items():
        for path, body in (
            ("/allocations/batch", {"verb": "kill", "ids": [f"{name}/x"]}),
            ("/jobs/batch", {"updates": [{"allocation": f"{name}/x", "priority": 1}]}),
        ):
            answer = await teams.call("POST", path, headers, json=body)
            assert "there is no allocation" in answer.text
            answers.append(answer.text.replace(name, "X"))
    assert said["team-red"] == said["team-nil"]


def _said(answer: Any, teams: Teams, team: str) -> str:
    """The body of an answer, without the names that the request contained."""
    text = re.sub(r'"traceId":"[^"]*"', "", answer.text)
    names = {"red": CANARY.get("red", ""), "none": "canarynone"}
    for name in (teams.ids[team], f"team-{team}", names[team]):
        text = text.replace(name, "X")
    return text


@pytest.mark.parametrize(
    "where", [where for where in PermissionScope if where not in (PermissionScope.PUBLIC, PermissionScope.CLUSTER)]
)
async def test_no_handler_finds_what_its_caller_may_not_see(tmp_path: Path, where: PermissionScope) -> None:
    """Whatever the rule of the row, an id in a body or a parameter finds nothing of another workspace."""
    async with teams_world("token", tmp_path) as teams:
        headers = await teams.token("bob", {"team-red": "admin"})
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/x",
            "query_string": b"workspace=team-red",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "path_params": {"id": teams.ids["red"], "name": "team-red"},
            "app": teams.world.app,
            "client": ("127.0.0.1", 1),
        }
        request = Request(scope)
        await admit(request, RouteRule(where))
        with pytest.raises(NotFoundError):
            await parts_of(request).lookup.find(teams.ids["blue"])
