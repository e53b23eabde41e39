"""Lists: filters and pages."""

import pytest

from slipway.kube.resources import NAMESPACES
from slipway.model.lifecycle import Event
from tests.support.api_world import ApiWorld


async def listed(world: ApiWorld, query: str = "") -> set[str]:
    response = await world.get(f"/allocations{query}")
    assert response.status_code == 200, response.text
    return {item["name"] for item in response.json()["items"]}


@pytest.fixture
async def crowd(world: ApiWorld) -> ApiWorld:
    """Five of different sorts."""
    labels = {"slipway.dev/workspace": "true"}
    await world.kube.create(NAMESPACES, {"metadata": {"name": "other", "labels": labels}})
    await world.launch(name="plain")
    await world.launch(name="labelled", labels={"team": "x"}, queue="q1")
    await world.launch(name="adas", kind="training", headers={"x-slipway-user": "ada"})
    await world.launch(name="elsewhere", workspace="other")
    await world.launch(name="ended")
    await world.run("plain")
    await world.step("ended", Event.TERMINATED)
    return world


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"plain", "labelled", "adas", "elsewhere", "ended"}),
        ("?workspace=other", {"elsewhere"}),
        ("?workspace=none", set[str]()),
        ("?queue=q1", {"labelled"}),
        ("?pool=default&phase=Running", {"plain"}),
        ("?phase=Running,Terminated", {"plain", "ended"}),
        ("?active=true", {"plain", "labelled", "adas", "elsewhere"}),
        ("?user=ada", {"adas"}),
        ("?kind=training", {"adas"}),
        ("?labelSelector=team%3Dx", {"labelled"}),
        ("?labelSelector=team%3Dx&user=ada", set[str]()),
    ],
)
async def test_filters(crowd: ApiWorld, query: str, expected: set[str]) -> None:
    """Each alone, and together."""
    assert await listed(crowd, query) == expected


@pytest.mark.parametrize("query", ["?labelSelector=%3D%3D%3D", "?continue=nonsense"])
async def test_bad_selectors_and_tokens(crowd: ApiWorld, query: str) -> None:
    """The server's own refusal, not a 500."""
    assert 400 <= (await crowd.get(f"/allocations{query}")).status_code < 500


async def test_pages_show_everything_once(world: ApiWorld) -> None:
    """Also with a filter that leaves pages empty."""
    for index in range(12):
        await world.launch(name=f"a{index}", kind="training" if index in (5, 11) else "command")
    for query, expected in (("limit=5", 12), ("limit=2&kind=training", 2)):
        names: list[str] = []
        token = ""
        while True:
            page = (await world.get(f"/allocations?{query}&continue={token}")).json()
            names += [item["name"] for item in page["items"]]
            token = page["metadata"].get("continue", "")
            if not token:
                break
        assert len(names) == len(set(names)) == expected
