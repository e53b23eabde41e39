"""Keeps Node objects ready after their registration: renews leases, and corrects nodes that the cluster marks as not
ready.

Owns the heartbeat, and the view that nodes have of their own labels and taints.
"""

import asyncio
from collections.abc import Mapping

from tests.conformance.kubelets.connections import LostConnectionError, RefusedError
from tests.conformance.kubelets.node_state import NodeState
from tests.conformance.kubelets.nodes import Registrar
from tests.conformance.kubelets.objects import Node
from tests.conformance.kubelets.records import Records

PAUSE_S = 0.5
"""Seconds between two rounds of corrections."""


class NodeHeartbeat:
    """A `Listener` of nodes. `renew_leases` and `restore_ready` run until they are cancelled."""

    def __init__(self, registrar: Registrar, node_states: Mapping[str, NodeState], records: Records) -> None:
        self._registrar = registrar
        self._posts = node_states
        self._records = records
        self._names: dict[str, str] = {}
        self._doubted: set[str] = set()
        self._is_doubted = asyncio.Event()

    def see(self, item: Node) -> None:
        """Receive a node, ours or not."""
        node_state = self._posts.get(item.metadata.name)
        if node_state is None:
            return
        self._names[item.metadata.uid] = node_state.name
        node_state.labels, node_state.taints = item.metadata.labels, tuple(item.spec.taints)
        if not item.is_ready and not node_state.is_away and not node_state.is_closing:
            self._doubted.add(node_state.name)
            self._is_doubted.set()

    def forget(self, uid: str) -> None:
        """Forget a deleted Node: its kubelet no longer corrects it."""
        self._doubted.discard(self._names.pop(uid, ""))

    async def renew_leases(self) -> None:
        """Renew one lease after the other, evenly over the interval."""
        while True:
            for name in list(self._posts):
                await asyncio.sleep(self._registrar.renew_s / len(self._posts))
                if not self._posts[name].is_away:
                    try:
                        await self._registrar.renew(name)
                        self._records.count.renewals += 1
                    except (RefusedError, LostConnectionError) as error:
                        self._records.refusals.append(str(error))

    async def restore_ready(self) -> None:
        """Mark a node as ready that was not heard of for a while, as when the machine was busy or asleep."""
        while True:
            await self._is_doubted.wait()
            self._is_doubted.clear()
            doubted, self._doubted = self._doubted, set()
            for name in doubted:
                node_state = self._posts[name]
                if node_state.is_away or node_state.is_closing:
                    continue
                try:
                    await self._registrar.set_ready(name, ready=True)
                except (RefusedError, LostConnectionError) as error:
                    self._records.refusals.append(str(error))
            await asyncio.sleep(PAUSE_S)
