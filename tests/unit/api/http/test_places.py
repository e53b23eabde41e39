"""The place of an object: the workspace that a query names, and the address of a created object."""

import re
from typing import Any

import pytest

from slipway.api.app import ENDPOINTS
from slipway.api.auth.route_rules import PermissionScope, rule_of
from slipway.api.http.endpoint import Endpoint
from tests.support.api_world import COMMAND, ApiWorld

BY_QUERY = [
    pytest.param(row, id=f"{row.method} {row.path}")
    for row in ENDPOINTS
    if rule_of(row.method, row.path).where is PermissionScope.QUERY
]
ARCHIVE = b"\x1f\x8b"


async def furnish(world: ApiWorld, workspace: str) -> None:
    """A job and a template of that workspace, with one name."""
    for noun, body in (("jobs", {}), ("templates", {"body": {"image": "a"}})):
        answer = await world.post(f"/{noun}", {"name": "here", "workspace": workspace, **body})
        assert answer.status_code in (201, 409), answer.text


async def send(world: ApiWorld, row: Endpoint, query: str) -> tuple[int, Any]:
    """The status and the code of a refusal, for the job or template `here`."""
    await furnish(world, "default")
    path = re.sub(r"\{\w+\}", "here", row.path)
    how: dict[str, Any] = {"content": ARCHIVE} if row.method == "PUT" else {"json": {}} if row.body else {}
    if row.path.endswith("/move"):
        how = {"json": {"toFront": True}}
    answer = await world.http.request(row.method, path + query, **how)
    is_json = answer.headers.get("content-type", "").startswith("application/problem")
    return answer.status_code, answer.json().get("code") if is_json else None


@pytest.mark.parametrize("row", BY_QUERY)
async def test_an_empty_workspace_is_the_default_one(world: ApiWorld, row: Endpoint) -> None:
    """An empty `workspace` is the same as a missing one, for every route that finds its object by the query."""
    named = await send(world, row, "?workspace=default")
    assert named[0] < 500
    assert await send(world, row, "?workspace=") == await send(world, row, "") == named


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/jobs", {"name": "made"}),
        ("POST", "/templates", {"name": "made", "body": {}}),
        ("PUT", "/templates/made", {"body": {}}),
        ("POST", "/allocations", {**COMMAND, "name": "made"}),
    ],
)
@pytest.mark.parametrize("workspace", ["default", "team"])
async def test_the_address_of_what_was_created_leads_to_it(
    world: ApiWorld, method: str, path: str, body: dict[str, Any], workspace: str
) -> None:
    """The Location of a created object leads to it, in every workspace."""
    assert (await world.post("/workspaces", {"name": "team"})).status_code == 201
    made = await world.http.request(method, f"/api/v1{path}", json={**body, "workspace": workspace})
    assert made.status_code == 201, made.text
    found = await world.http.get(made.headers["location"])
    assert found.status_code == 200, found.text
    assert (found.json()["name"], found.json()["workspace"]) == ("made", workspace)
