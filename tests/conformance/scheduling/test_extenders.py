"""One extender for two schedulers: the real kube-scheduler and ours send it the same requests, and obey its answers."""

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from slipway.facts.core_objects import node_fact
from slipway.kube.extender import ExtenderClient
from slipway.kube.objects import Node
from slipway.model.facts import AllocationFact, ExtenderFact, PoolFact, QueueFact, RoleFact
from slipway.model.resources import Resources
from slipway.runtime.clock import SystemClock
from slipway.scheduler.extenders import Extenders
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.pool_state import PoolState
from tests.conformance.scheduling.oracle import an_oracle
from tests.conformance.scheduling.worlds import NAMESPACES, Json
from tests.conformance.wanted import require_own_cluster
from tests.support.extender import LoopbackExtender, an_extender, names_of, passes

NAMES = ("big-a", "big-b", "big-c", "cordoned", "small")
NAMESPACE = min(NAMESPACES)


def a_node(name: str) -> Json:
    amounts = {"cpu": "1" if name == "small" else "8", "memory": "16Gi", "pods": "20"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"unschedulable": name == "cordoned"},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "x"}],
        },
    }


POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": NAMESPACE, "labels": {"app": "web"}},
    "spec": {
        "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}],
    },
}


def answer(verb: str, body: Any) -> Any:
    """The extender's answer: it refuses big-a, and scores big-c highest."""
    if verb == "filter":
        return passes(body, lambda name: name != "big-a", why="reserved")
    return [{"Host": name, "Score": 10 if name == "big-c" else 1} for name in names_of(body)]


def ours(extender: LoopbackExtender, nodes: list[Json], *, names_only: bool) -> str:
    """The node on which our planner places the same pod."""
    fact = ExtenderFact(
        url=extender.url, filter_verb="filter", prioritize_verb="prioritize", node_cache_capable=names_only
    )
    columns = PoolState(PoolFact(name="default", extenders=(fact,)))
    columns.set_nodes([node_fact(msgspec.convert(node, Node, strict=False)) for node in nodes])
    columns.set_queues([QueueFact(name="default")])
    columns.set_workspaces(frozenset({NAMESPACE}))
    requests = Resources.of({"cpu": 2000, "memory": 2**30})
    role = RoleFact(name="main", count=1, minimum=1, requests=requests, namespace=NAMESPACE, labels={"app": "web"})
    columns.set_allocation(
        AllocationFact(namespace=NAMESPACE, name="p", uid="u", version=1, roles=(role,), finalized=True)
    )
    snapshot = columns.snapshot()

    async def converse() -> str:
        client = ExtenderClient()
        extenders = Extenders(client, SystemClock())
        try:
            while True:
                answers = extenders.answers(snapshot.table)
                decided = plan(snapshot, policy_of(snapshot.pool), 0.0, answers=answers)
                if not decided.questions:
                    return decided.admits[0].placements[0]
                assert await extenders.ask(decided.questions, snapshot.table, 5.0)
        finally:
            await client.aclose()

    return asyncio.run(converse())


@pytest.mark.parametrize("names_only", [False, True])
def test_both_ask_the_same_and_place_by_it(names_only: bool, tmp_path: Path) -> None:
    """Both schedulers send the same verbs and the same fields about the same nodes, and choose the same node."""
    require_own_cluster()
    with an_extender() as extender:
        extender.answer = answer
        theirs = {
            "urlPrefix": extender.url,
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "weight": 1,
            "nodeCacheCapable": names_only,
        }
        with an_oracle(tmp_path, [theirs]) as oracle:
            nodes = oracle.begin([a_node(name) for name in NAMES])
            oracle.create(POD)
            chosen = oracle.judge(POD).node
        asked, extender.requests = extender.requests, []

        assert chosen == "big-c"
        assert ours(extender, nodes, names_only=names_only) == chosen
        mine = extender.requests

    assert [verb for verb, _ in mine] == [verb for verb, _ in asked] == ["filter", "prioritize"]
    for (_, my_body), (_, their_body) in zip(mine, asked, strict=True):
        assert list(my_body) == list(their_body) == ["Pod", "Nodes", "NodeNames"]
        assert sorted(names_of(my_body)) == sorted(names_of(their_body))
        check_pod(my_body["Pod"], their_body["Pod"])
        if names_only:
            assert my_body["Nodes"] is their_body["Nodes"] is None
        else:
            assert my_body["NodeNames"] is their_body["NodeNames"] is None
            check_nodes(my_body["Nodes"], their_body["Nodes"])


def check_pod(mine: Json, theirs: Json) -> None:
    """Our request describes the pod with the same fields, and with the same values where the pod has them already."""
    assert within(mine, theirs) == set()
    [my_container], [their_container] = mine["spec"]["containers"], theirs["spec"]["containers"]
    assert my_container["resources"]["requests"] == their_container["resources"]["requests"]
    assert (mine["metadata"]["namespace"], mine["metadata"]["labels"]) == (NAMESPACE, theirs["metadata"]["labels"])


def check_nodes(mine: Json, theirs: Json) -> None:
    by_name = {node["metadata"]["name"]: node for node in theirs["items"]}
    for node in mine["items"]:
        other = by_name[node["metadata"]["name"]]
        assert within(node, other) == set()
        assert node["status"]["allocatable"] == other["status"]["allocatable"]
        assert node["metadata"]["labels"] == other["metadata"]["labels"]


def within(mine: Any, theirs: Any, path: str = "") -> set[str]:
    """The fields of `mine` that `theirs` lacks, or has with another type of value; null matches any type."""
    if mine is None:
        return set()
    if isinstance(mine, dict):
        if not isinstance(theirs, dict):
            return {path}
        return {
            gone
            for key, value in cast("Json", mine).items()
            for gone in (within(value, theirs[key], f"{path}.{key}") if key in theirs else {f"{path}.{key}"})
        }
    if isinstance(mine, list):
        return {
            gone
            for one, other in zip(cast("list[Any]", mine), theirs, strict=False)
            for gone in within(one, other, f"{path}[]")
        }
    return set() if isinstance(theirs, type(mine)) else {path}
