"""What the watcher reads from the API server before it regards something as gone."""

from slipway.crd.meta import ObjectMeta
from slipway.kube.errors import Verb
from slipway.kube.objects import Pod, PodSpec
from slipway.watcher.consistent_reads import GONE_MAX, ConsistentReads
from slipway.watcher.informers import Informers
from tests.support.clock import FakeClock
from tests.support.podworker_harness import Calls
from tests.support.small_cluster import a_client, a_core

READ = (Verb.GET, "nodes")


def on(node: str) -> Pod:
    """A pod on a node."""
    return Pod(metadata=ObjectMeta(name="pod"), spec=PodSpec(node_name=node))


async def test_of_deleted_nodes_only_the_last_names_are_remembered() -> None:
    """A deleted node is read once. Its name is forgotten when many other nodes were deleted after it, because most
    names never come back; then it is read again."""
    kube = a_client(a_core(FakeClock().now))
    calls, reads = Calls(kube), ConsistentReads(kube, Informers())
    for _ in range(2):
        assert await reads.nodes_gone([on("first")]) == {"first"}
    assert calls.seen == [READ]
    await reads.nodes_gone([on(f"n{number}") for number in range(GONE_MAX)])
    calls.seen.clear()
    assert await reads.nodes_gone([on("first")]) == {"first"}
    assert calls.seen == [READ]
