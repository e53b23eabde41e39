"""Nodes as the api knows them: the few fields that it reads, kept by a watch.

Owns which fields those are, and the reads on which a rank is given up, which ask the API server.

Memory: of a node with 63 labels and 50 images (15 KB of JSON, 36 KB as `slipway.kube.objects.Node`) 4.6 KB are kept,
the index of addresses included, so 5,000 such nodes take 23 MB. A LIST decodes 500 nodes at a time, which takes 70 ms;
it is made once per process.
"""

from collections.abc import Callable, Collection, Iterable
from sys import intern

import msgspec

from slipway.api.networks import normal_text
from slipway.api.ports import Kube
from slipway.crd.v1alpha1 import Wire
from slipway.kube.objects import NodeSpec
from slipway.kube.resources import NODES, Resource

BY_ADDRESS = "address"
"""The index of `of_address`."""
READ_BY_NAME_MAX = 16
"""So many nodes are read one by one; more of them are LISTed."""


def _shared(texts: dict[str, str]) -> dict[str, str]:
    """The same, with each text that is held already in place of its copy."""
    return {intern(key): intern(value) for key, value in texts.items()}


class SeenNodeMeta(Wire, kw_only=True, frozen=True):
    """Without annotations, owners and finalizers."""

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
        """resourceVersion as an integer; 0 when it is none."""
        return int(self.resource_version) if self.resource_version.isdigit() else 0


class NodeCondition(Wire, kw_only=True, frozen=True):
    """Without its times and texts."""

    type: str
    status: str


class NodeAddress(Wire, kw_only=True, frozen=True):
    """Without its type: a name, or an address inside or outside of the cluster."""

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
    """The addresses of a node as `normal_text` spells them, without its names: an indexer of a store."""
    return {text for each in node.status.addresses if (text := normal_text(each.address))}


async def nodes_now(kube: Kube, names: Collection[str], holds: Callable[[SeenNode], bool]) -> set[str]:
    """Those of these nodes for which `holds` is true now; a consistent read, because ranks are given up for it."""
    if not names:
        return set()
    found: list[SeenNode] = []
    if len(names) > READ_BY_NAME_MAX:
        found = (await kube.list(SEEN_NODES)).items
    else:
        for name in sorted(names):
            found += (await kube.list(SEEN_NODES, field_selector=f"metadata.name={name}")).items
    return {node.metadata.name for node in found if node.metadata.name in names and holds(node)}
