"""One wave of faults after the other, and the recovery from it: a launch that begins afterwards runs to its end, and
launches acknowledged before are in their expected state.

Owns the waiting, and the report of it. All limits are counted in the time of `pace.py`. The caller defines what a fault
does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import InvariantViolation
from slipway.runtime.clock import SystemClock
from tests.chaos.clients import Client, Json, RefusedError
from tests.chaos.faults import Fault
from tests.chaos.history import History
from tests.chaos.load import Load
from tests.chaos.pace import Pace
from tests.chaos.table import InjectedFault

STUCK_S = 120.0
"""Seconds to wait for one recovery."""
REST_S = 60.0
"""I18: everything is as desired this many seconds after the last fault."""
POLL_S = 0.1
SAID_MAX = 5
CHARS_MAX = 2000


class Recovery:
    """The recovery of one run. `probe` is the body of a short launch."""

    def __init__(self, history: History, load: Load, pace: Pace, probe: Json, say: Callable[[str], None]) -> None:
        self.suffered: list[InjectedFault] = []
        self.violations: list[InvariantViolation] = []
        self.last_fault_at = 0.0
        self._history, self._load, self._pace, self._probe, self._say = history, load, pace, probe, say
        self._clock = SystemClock()

    async def wave(self, number: int, wave: Sequence[Fault], do: Callable[[Fault], Awaitable[None]]) -> bool:
        """Inject the faults of one wave at the same time; return whether everything has recovered from them."""
        self._say(f"wave {number}: {', '.join(map(str, wave))}")
        spans = await asyncio.gather(*(self._span(fault, do) for fault in wave))
        over = self.last_fault_at = max(end for _, end in spans)
        recovered_at = await self._recovered_at(over)
        recovery_s = (recovered_at or self._clock.now()) - over
        for fault, (began_at, ended_at) in zip(wave, spans, strict=True):
            self.suffered.append(
                InjectedFault(
                    kind=fault.kind,
                    wave=number,
                    began_at=began_at,
                    ended_at=ended_at,
                    recovered_at=recovered_at,
                    recovery_s=recovery_s,
                )
            )
        if recovered_at is None:
            left = self._load.unsettled(over)[:SAID_MAX]
            self.tell("I18", f"wave {number}", f"not recovered in {STUCK_S:.0f} s: {left}")
            self._say(f"wave {number}: NOT recovered: {left}")
        else:
            self._say(f"wave {number}: recovered in {recovery_s:.1f} s")
        return recovered_at is not None

    async def last_launches(self, loading: asyncio.Future[None]) -> None:
        """Let no client launch any more, and wait until each has finished its present launch."""
        self._load.stop()
        try:
            async with self._pace.limit(STUCK_S):
                await loading
        except TimeoutError:
            self.tell("LIVE", "clients", f"not all over {STUCK_S:.0f} s after the last fault")

    async def launch(self, client: Client) -> None:
        """Run a short launch, from its request to its end."""
        view = await client.launch(self._probe)
        while not self._has_ended(str(view["id"])):
            await self._history.moved(POLL_S)

    async def until(self, left: Callable[[], list[str]], *, limit_s: float = REST_S) -> list[str]:
        """Wait for an empty list, at most for `limit_s`; return the last list."""
        deadline = self._pace.now() + limit_s
        while (found := left()) and self._pace.now() < deadline:
            await self._history.moved(POLL_S)
        return found

    def tell(self, invariant: str, subject: str, message: str) -> None:
        """Add a violation."""
        self.violations.append(InvariantViolation(invariant=invariant, subject=subject, message=message))

    async def _span(self, fault: Fault, do: Callable[[Fault], Awaitable[None]]) -> tuple[float, float]:
        began_at = self._clock.now()
        try:
            await do(fault)
        except (AssertionError, RefusedError, RuntimeError) as error:
            # A process that does not become ready, or a refused launch, is a finding; the others are checked too.
            self.tell("FAULT", fault.kind, f"{error}"[:CHARS_MAX])
        return began_at, self._clock.now()

    async def _recovered_at(self, over: float) -> float | None:
        try:
            async with self._pace.limit(STUCK_S):
                await self.launch(self._load.prober)
                while self._load.unsettled(over):
                    await self._history.moved(POLL_S)
        except RefusedError as error:
            self.tell("API", "prober", str(error))
            return None
        except TimeoutError:
            return None
        return self._clock.now()

    def _has_ended(self, id_: str) -> bool:
        version = self._history.last(id_)
        return version is not None and version.obj.get("status", {}).get("phase") == Phase.TERMINATED
