"""How long one step of the event loop takes: while it runs, nothing else is served.

Owns a stopwatch around every callback of the loop. It counts the time of this thread's processor, so that other
processes of a busy machine do not count. Steps in which the in-process cluster works are left out: in production that
is another process.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from slipway.kube.errors import Verb
from tests.support.kube_core import CoreKube


class Step(NamedTuple):
    """One callback: how long, and what it was."""

    seconds: float
    what: str


class Watchdog:
    """The longest step since `forget`."""

    def __init__(self) -> None:
        self.longest = Step(0.0, "")
        self._is_elsewhere = False

    def forget(self) -> None:
        """Begin anew."""
        self.longest = Step(0.0, "")

    def leave_out(self, kube: CoreKube) -> None:
        """What this cluster does is not ours."""

        async def before(_verb: Verb, _plural: str) -> None:
            await asyncio.sleep(0)
            self._is_elsewhere = True

        async def after(_verb: Verb, _plural: str) -> None:
            await asyncio.sleep(0)

        kube.before, kube.after = before, after

    @contextmanager
    def watching(self) -> Generator[None]:
        """From now on, in every loop of this process."""
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
