"""Simulated nodes beside tests that are no coroutines: they live on a loop of their own.

Owns the thread and the way into it. What nodes do is in `tests.conformance.kubelets`.
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
    """The nodes, asked from any thread."""

    def __init__(self, kubelets: Kubelets, loop: asyncio.AbstractEventLoop) -> None:
        self._kubelets = kubelets
        self._loop = loop

    @property
    def names(self) -> list[str]:
        """The nodes that there ever were."""
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
        """The program of that pod (uid or `namespace/name`) ends now."""
        return self._soon(lambda: self._kubelets.exit(pod, code))

    def evict(self, pod: str) -> None:
        """Its node is short of memory, and this pod has to go."""
        self._soon(lambda: self._kubelets.evict(pod))

    def remove(self, node: str) -> None:
        """The machine dies, and its Node object is deleted."""
        self.call(self._kubelets.delete_node(node))

    def lose(self, node: str) -> None:
        """The machine dies, and nobody is told."""
        self._soon(lambda: self._kubelets.lose(node))

    def add(self, *names: str) -> None:
        """More nodes."""
        self.call(self._kubelets.add_nodes(*names))

    def recover(self, node: str) -> None:
        """A lost node is back."""
        self.call(self._kubelets.recover(node))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it beside the nodes."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def _soon(self, act: Any) -> Any:
        async def work() -> Any:
            return act()

        return self.call(work())


@contextmanager
def simulated_nodes(kubeconfig: Path, *, nodes: int = NODES, shape: Shape | None = None) -> Generator[Nodes]:
    """So many nodes, ready."""
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
