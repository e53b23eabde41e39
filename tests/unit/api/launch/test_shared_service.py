"""A launch behind a Service: its field, what is refused, and where a user finds the address."""

from typing import Any

import pytest

from tests.support.api_world import ApiWorld

Json = dict[str, Any]
BODY: Json = {"name": "llm-0", "kind": "training", "image": "a", "command": ["x"]}
SERVICE: Json = {"name": "llm", "port": 8000}


async def test_the_address_is_in_the_view_and_the_name_in_a_label(world: ApiWorld) -> None:
    """By the label a user finds, and ends, all allocations behind one Service."""
    view = await world.launch(**BODY, service=SERVICE)
    assert view["links"]["service"] == "llm.default.svc:8000"
    assert view["spec"]["service"] == SERVICE
    found = (await world.get("/allocations?labelSelector=slipway.dev/service=llm")).json()["items"]
    assert [item["name"] for item in found] == ["llm-0"]


async def test_without_one_there_is_no_address(world: ApiWorld) -> None:
    """A launch without a Service has neither the link nor the label."""
    view = await world.launch(**BODY)
    assert "service" not in view["links"]
    assert "slipway.dev/service" not in view["labels"]


@pytest.mark.parametrize(
    ("service", "at"),
    [
        ({"name": "LLM", "port": 80}, "/service/name"),
        ({"name": "0llm", "port": 80}, "/service/name"),
        ({"name": "a.b", "port": 80}, "/service/name"),
        ({"name": "a" * 64, "port": 80}, "/service/name"),
        ({"name": "llm", "port": 0}, "/service/port"),
        ({"name": "llm", "port": 65536}, "/service/port"),
        ({"name": "llm"}, "/service/port"),
        ({"name": "run-0123abcd-1", "port": 80}, "/service/name"),
        ({"name": "llm", "port": 80, "type": "LoadBalancer"}, "/service/type"),
    ],
)
async def test_what_no_service_can_be_is_refused_with_its_field(world: ApiWorld, service: Json, at: str) -> None:
    """The launch is refused, and nothing is created."""
    response = await world.post("/allocations", {**BODY, "service": service})
    assert response.status_code in (400, 422)
    assert [error["pointer"] for error in response.json()["errors"]] == [at]
