"""Simulated nodes for tests that are no coroutines: the nodes run on their own event loop.

Owns the thread of the loop and the calls into it. `tests.conformance.kubelets` has the nodes' behaviour.
"""

import asyncio
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.conformance.kubelets import Kubelets, Run, Shape
from tests.conformance.kubelets.records import doubles

T = TypeVar("T")
CALL_S = 60.0
NODES = 4


class Nodes:
    """The nodes; its methods may be called from any thread."""

    def __init__(self, kubelets: Kubelets, loop: asyncio.AbstractEventLoop) -> None:
        self._kubelets = kubelets
        self._loop = loop

    @property
    def names(self) -> list[str]:
        """The names of all nodes that ever existed."""
        return list(self._kubelets.nodes)

    def runs(self, allocation: str) -> list[Run]:
        """Every start of every container of an AllocationID."""
        return self._kubelets.records.of_allocation(allocation)

    def runs_of(self, pod: str) -> list[Run]:
        """Every start of every container of the pod of that uid or `namespace/name`."""
        return self._kubelets.records.of(pod)

    def doubles(self) -> list[tuple[Run, Run]]:
        """Ranks that ran twice in one attempt."""
        return doubles(run for run in self._kubelets.runs if run.allocation)

    def exit(self, pod: str, code: int = 0) -> bool:
        """End the program of that pod (uid or `namespace/name`) now."""
        return self._soon(lambda: self._kubelets.exit(pod, code))

    def evict(self, pod: str) -> None:
        """Evict this pod because its node is short of memory."""
        self._soon(lambda: self._kubelets.evict(pod))

    def remove(self, node: str) -> None:
        """Let the machine die, and delete its Node object."""
        self.call(self._kubelets.delete_node(node))

    def lose(self, node: str) -> None:
        """Let the machine die without notifying the cluster."""
        self._soon(lambda: self._kubelets.lose(node))

    def add(self, *names: str) -> None:
        """Add nodes."""
        self.call(self._kubelets.add_nodes(*names))

    def recover(self, node: str) -> None:
        """Bring a lost node back."""
        self.call(self._kubelets.recover(node))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the nodes and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def _soon(self, act: Any) -> Any:
        async def work() -> Any:
            return act()

        return self.call(work())


@contextmanager
def simulated_nodes(kubeconfig: Path, *, nodes: int = NODES, shape: Shape | None = None) -> Generator[Nodes]:
    """Run that many nodes, and yield them when they are ready."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="nodes")
    thread.start()
    kubelets = Kubelets(kubeconfig, nodes=nodes, shape=shape, events=True)
    there = Nodes(kubelets, loop)
    try:
        there.call(kubelets.__aenter__())
        try:
            yield there
        finally:
            there.call(kubelets.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
