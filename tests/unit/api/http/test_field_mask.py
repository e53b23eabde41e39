"""`fields`: the items of a list have only the fields that were asked for."""

import pytest

from tests.support.api_world import ApiWorld


async def test_a_list_has_what_was_asked_for(world: ApiWorld) -> None:
    """Paths go through objects and through the items of lists; what an item does not have is left out."""
    made = await world.launch(ranks=[{"name": "w", "count": 2}], image="some")
    query = "?fields=id,status.phase,spec.ranks.count,status.nothing,spec.nothing.at.all"
    (item,) = (await world.get(f"/allocations{query}")).json()["items"]
    assert item == {"id": made["id"], "status": {"phase": "Pending"}, "spec": {"ranks": [{"count": 2}]}}


@pytest.mark.parametrize("query", ["?fields=spec,spec.ranks.count", "?fields=spec.ranks.count,spec"])
async def test_the_wider_path_wins(world: ApiWorld, query: str) -> None:
    """The order in which they are written does not matter."""
    await world.launch()
    (whole,) = (await world.get("/allocations")).json()["items"]
    (item,) = (await world.get(f"/allocations{query}")).json()["items"]
    assert item == {"spec": whole["spec"]}


@pytest.mark.parametrize("query", ["", "?fields=", "?fields=,"])
async def test_without_fields_an_item_is_whole(world: ApiWorld, query: str) -> None:
    """With an empty `fields`, in each form, items have all fields."""
    made = await world.launch()
    (item,) = (await world.get(f"/allocations{query}")).json()["items"]
    assert item["id"] == made["id"]
    assert {"spec", "status", "links"} <= item.keys()


async def test_pages_go_on_with_fields(world: ApiWorld) -> None:
    """The cursor does not depend on the fields."""
    made = [await world.launch(name=f"n{at}") for at in range(3)]
    first = (await world.get("/allocations?fields=id&sort=name&limit=2")).json()
    rest = (await world.get(f"/allocations?fields=id&sort=name&continue={first['metadata']['continue']}")).json()
    assert [each["id"] for each in first["items"] + rest["items"]] == [each["id"] for each in made]


async def test_nodes_have_fields_too(world: ApiWorld) -> None:
    """A table of thousands of nodes needs only a small part of each."""
    items = (await world.get("/nodes?fields=name,gpus")).json()["items"]
    assert items == [{"name": "n1", "gpus": 2}, {"name": "n2", "gpus": 2}]


@pytest.mark.parametrize(
    "fields", ["nothing", "spec.", ".id", "id..x", "a.b", "status." + "x." * 8 + "y", ",".join(["id"] * 65)]
)
@pytest.mark.parametrize("path", ["/allocations", "/nodes", "/notebooks"])
async def test_bad_fields_are_named(world: ApiWorld, path: str, fields: str) -> None:
    """A bad field gets 400, and the detail names the parameter."""
    answer = await world.get(f"{path}?fields={fields}")
    assert (answer.status_code, "fields" in answer.json()["detail"]) == (400, True)
