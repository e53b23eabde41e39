"""The few fields of nodes that the api reads, kept in memory by a watch.

Owns the selection of these fields. It also owns the consistent reads of the API server that come before ranks are
marked as lost.

Memory: a node with 63 labels and 50 images (15 KB of JSON, 36 KB as `slipway.kube.objects.Node`) needs 4.6 KB here,
including the index of addresses; 5,000 such nodes need 23 MB. A LIST decodes 500 nodes at a time, which needs 70 ms; it
is made once per process.
"""

from collections.abc import Callable, Collection, Iterable
from sys import intern

import msgspec

from slipway.api.http.networks import normal_text
from slipway.api.ports import Kube
from slipway.crd.v1alpha1 import Wire
from slipway.kube.objects import NodeSpec
from slipway.kube.resources import NODES, Resource

BY_ADDRESS = "address"
"""The name of the index that `of_address` fills."""
READ_BY_NAME_MAX = 16
"""The most nodes that are read one by one; more nodes are read by one LIST of all nodes."""


def _shared(texts: dict[str, str]) -> dict[str, str]:
    """Return the same map with interned texts, so that equal texts share memory."""
    return {intern(key): intern(value) for key, value in texts.items()}


class SeenNodeMeta(Wire, kw_only=True, frozen=True):
    """The metadata of a node without annotations, owners and finalizers."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        # Thousands of nodes have most of their labels in common.
        msgspec.structs.force_setattr(self, "labels", _shared(self.labels))

    @property
    def version(self) -> int:
        """The resourceVersion as an integer; 0 when it is not a number."""
        return int(self.resource_version) if self.resource_version.isdigit() else 0


class NodeCondition(Wire, kw_only=True, frozen=True):
    """A condition of a node without its times and texts."""

    type: str
    status: str


class NodeAddress(Wire, kw_only=True, frozen=True):
    """An address of a node without its type: a name, or an address inside or outside of the cluster."""

    address: str = ""


class SeenNodeStatus(Wire, kw_only=True, frozen=True):
    allocatable: dict[str, str] = {}
    conditions: list[NodeCondition] = []
    addresses: list[NodeAddress] = []

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "allocatable", _shared(self.allocatable))


class SeenNode(Wire, kw_only=True, frozen=True):
    """A node without annotations, images, capacity and the texts of its conditions."""

    metadata: SeenNodeMeta
    spec: NodeSpec = NodeSpec()
    status: SeenNodeStatus = SeenNodeStatus()


SEEN_NODES = Resource(
    group=NODES.group, version=NODES.version, plural=NODES.plural, kind=NODES.kind, namespaced=False, struct=SeenNode
)


def of_address(node: SeenNode) -> Iterable[str]:
    """Return the addresses of a node as `normal_text` spells them, without its names; the indexer of a store."""
    return {text for each in node.status.addresses if (text := normal_text(each.address))}


async def nodes_now(kube: Kube, names: Collection[str], holds: Callable[[SeenNode], bool]) -> set[str]:
    """Return the nodes among `names` for which `holds` is true now.

    It reads consistently from the API server, because ranks are marked as lost when their nodes are in the result.
    """
    if not names:
        return set()
    found: list[SeenNode] = []
    if len(names) > READ_BY_NAME_MAX:
        found = (await kube.list(SEEN_NODES)).items
    else:
        for name in sorted(names):
            found += (await kube.list(SEEN_NODES, field_selector=f"metadata.name={name}")).items
    return {node.metadata.name for node in found if node.metadata.name in names and holds(node)}
