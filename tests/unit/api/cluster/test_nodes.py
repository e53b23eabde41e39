"""Taking nodes out of use and back: over the API and with kubectl's own label and cordon."""

from typing import Any

import pytest

from slipway.api.cluster import cluster_view
from slipway.api.cluster.seen_nodes import SeenNode, SeenNodeMeta
from slipway.errors import DeniedError
from slipway.kube.errors import Verb
from slipway.kube.resources import NODES
from tests.support.api_world import ApiWorld
from tests.support.builders import an_allocation

LABEL = "slipway.dev/scheduling"


@pytest.mark.parametrize(("verb", "word"), [("drain", "draining"), ("disable", "disabled")])
async def test_a_node_is_disabled_and_enabled(world: ApiWorld, verb: str, word: str) -> None:
    """The wish is a label of the node itself; enabling removes the label, and may be repeated."""
    answer = await world.post(f"/nodes/n1/{verb}")
    assert answer.status_code == 200
    assert (answer.json()["scheduling"], answer.json()["schedulable"]) == (word, False)
    assert (await world.kube.get(NODES, "n1")).metadata.labels[LABEL] == word
    assert [each["scheduling"] for each in (await world.get("/nodes")).json()["items"]] == [word, "enabled"]
    for _ in range(2):
        assert (await world.post("/nodes/n1/enable")).json()["scheduling"] == "enabled"
    assert LABEL not in (await world.kube.get(NODES, "n1")).metadata.labels


async def test_a_cordon_shows_and_our_label_counts_before_it(world: ApiWorld) -> None:
    """kubectl cordon works as usual; enabling does not remove it."""
    await world.kube.patch(NODES, "n1", {"spec": {"unschedulable": True}})
    assert (await world.get("/nodes/n1")).json()["scheduling"] == "cordoned"
    assert (await world.post("/nodes/n1/disable")).json()["scheduling"] == "disabled"
    assert (await world.post("/nodes/n1/enable")).json()["scheduling"] == "cordoned"


async def test_a_node_says_who_stands_on_it(world: ApiWorld) -> None:
    """The answer has the ranks that disabling will move."""
    launched = await world.launch()
    await world.run(launched["name"])
    assert [rank["id"] for rank in (await world.post("/nodes/n1/drain")).json()["ranks"]] == [launched["id"]]


@pytest.mark.parametrize("path", ["/nodes/none/disable", "/nodes/none/enable", "/nodes/A_B/drain"])
async def test_an_unknown_node_is_not_found(world: ApiWorld, path: str) -> None:
    """An unknown node gets 404 by name, with the route of the list."""
    name = path.split("/")[2]
    for answer in (await world.post(path), await world.get(f"/nodes/{name}")):
        assert answer.status_code == 404
        assert answer.json()["detail"] == f"there is no node {name!r}; GET /api/v1/nodes lists them"


async def test_what_is_not_known_in_a_body_is_refused(world: ApiWorld) -> None:
    """A field that is not known is refused, so that no part of a body is silently ignored."""
    answer = await world.post("/nodes/n1/drain", {"force": True})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/force"


async def test_a_missing_permission_says_which_and_what_to_do_meanwhile(world: ApiWorld) -> None:
    """The detail has the verb that the account lacks, and a command that does the same by hand."""

    async def refuse(verb: Verb, plural: str, *_: Any) -> None:
        if (verb, plural) == (Verb.PATCH, "nodes"):
            raise DeniedError('User "slipway-api" cannot patch resource "nodes"')

    world.kube.before = refuse
    answer = await world.post("/nodes/n1/disable")
    assert (answer.status_code, answer.json()["code"]) == (502, "not-permitted")
    assert "kubectl label node n1 slipway.dev/scheduling=disabled" in answer.json()["detail"]
    assert "patch on nodes" in answer.json()["detail"]


async def test_a_node_says_what_it_has_and_who_has_it(world: ApiWorld) -> None:
    """A node shows its pool, the type that its labels name, its devices, how many are used, and by which user from
    which queue."""
    await world.kube.patch(NODES, "n1", {"metadata": {"labels": {"nvidia.com/gpu.product": "H100"}}})
    ranks = [{"name": "worker", "count": 1, "resources": {"nvidia.com/gpu": 2}}]
    launched = await world.launch(ranks=ranks)
    await world.run(launched["name"])
    node = (await world.get("/nodes/n1")).json()
    assert (node["pool"], node["gpuType"], node["gpusUsed"]) == ("default", "H100", 2)
    assert node["gpus"] == int(node["allocatable"].get("nvidia.com/gpu", 0))
    (held,) = node["ranks"]
    assert (held["user"], held["queue"], held["gpus"]) == (launched["user"], "default", 2)
    assert (await world.get("/nodes/n2")).json()["gpusUsed"] == 0


def test_all_nodes_take_one_look_at_each_allocation() -> None:
    """The allocations are read once for all nodes, not once for each: the iterator of the test can be read only
    once."""
    story = an_allocation(2).assigned("n0", "n2")
    nodes = [SeenNode(metadata=SeenNodeMeta(name=name)) for name in ("n0", "n1", "n2")]
    views = cluster_view.node_views(nodes, iter([story.it]))
    assert [[held.rank for held in view.ranks] for view in views] == [[0], [], [1]]


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"nvidia.com/gpu": 2}, 4),
        ({"amd.com/gpu": 1}, 2),
        ({"nvidia.com/mig-1g.10gb": 3}, 0.857),
        ({"slipway.dev/gpu-milli": 300}, 0.6),
        ({"cpu": 1}, 0),
    ],
)
async def test_work_says_how_many_gpus_it_asks_for(world: ApiWorld, asked: dict[str, int], gpus: float) -> None:
    """The number is that of all its ranks; a slice or a part of a GPU counts as that part."""
    launched = await world.launch(ranks=[{"name": "worker", "count": 2, "resources": asked}])
    assert launched["gpus"] == gpus
    assert (await world.get("/allocations")).json()["items"][0]["gpus"] == gpus


async def test_gpus_that_only_the_template_asks_for_are_counted(world: ApiWorld) -> None:
    """GPUs of the template count like those of a rank."""
    main = {"name": "main", "image": "i", "command": ["true"], "resources": {"limits": {"nvidia.com/gpu": 2}}}
    launched = await world.launch(template={"spec": {"containers": [main]}}, ranks=[{"name": "worker", "count": 3}])
    assert launched["gpus"] == 6


async def test_a_pool_says_how_many_gpus_it_offers(world: ApiWorld) -> None:
    """The GPUs of a pool are those that it offers whole, and those that it offers in slices."""
    before = (await world.get("/pools")).json()["items"][0]["gpus"]
    await world.offer("n1", {"nvidia.com/mig-2g.20gb": "3"})
    assert (await world.get("/pools")).json()["items"][0]["gpus"] == pytest.approx(before + 6 / 7, abs=0.001)
