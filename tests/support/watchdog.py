"""Measures how long one step of the event loop takes: while a step runs, nothing else is served.

Owns a stopwatch around every callback of the loop. It measures the processor time of this thread, so that other
processes of a busy machine have no effect. Steps in which the in-process cluster works are left out: in production the
cluster is another process.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from slipway.kube.errors import Verb
from tests.support.kube_core import CoreKube


class Step(NamedTuple):
    """One callback: its duration and its name."""

    seconds: float
    what: str


class Watchdog:
    """The longest step since `forget`."""

    def __init__(self) -> None:
        self.longest = Step(0.0, "")
        self._is_elsewhere = False

    def forget(self) -> None:
        """Start measuring anew."""
        self.longest = Step(0.0, "")

    def leave_out(self, kube: CoreKube) -> None:
        """Leave out the steps in which this cluster works."""

        async def before(_verb: Verb, _plural: str) -> None:
            await asyncio.sleep(0)
            self._is_elsewhere = True

        async def after(_verb: Verb, _plural: str) -> None:
            await asyncio.sleep(0)

        kube.before, kube.after = before, after

    @contextmanager
    def watching(self) -> Generator[None]:
        """Measure every loop of this process, inside the context."""
        run = asyncio.events.Handle._run  # pyright: ignore[reportPrivateUsage] - there is no public place to measure
        dog = self

        def measured(self: asyncio.Handle) -> None:
            dog._is_elsewhere = False
            begun = time.thread_time()
            run(self)
            took = time.thread_time() - begun
            if took > dog.longest.seconds and not dog._is_elsewhere:
                dog.longest = Step(took, repr(self)[:300])

        asyncio.events.Handle._run = measured  # pyright: ignore[reportPrivateUsage]
        try:
            yield
        finally:
            asyncio.events.Handle._run = run  # pyright: ignore[reportPrivateUsage]
