"""What recovery means: a launch that begins after a fault runs to its end, and what was before is as it should be.

Owns the waiting. All limits are counted in the time of `pace.py`.
"""

from collections.abc import Callable

from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import InvariantViolation
from slipway.runtime.clock import SystemClock
from tests.chaos.clients import Client, Json, RefusedError
from tests.chaos.history import History
from tests.chaos.load import Load
from tests.chaos.pace import Pace

STUCK_S = 120.0
"""How long one recovery is waited for."""
REST_S = 60.0
"""I18: everything is as desired so long after the last fault."""
POLL_S = 0.1


class Recovery:
    """Of one run. `probe` is the body of a short launch."""

    def __init__(self, history: History, load: Load, pace: Pace, probe: Json) -> None:
        self._history, self._load, self._pace, self._probe = history, load, pace, probe
        self._clock = SystemClock()

    async def after(self, over: float) -> float | None:
        """When everything had recovered from what was over at that time; None: not in STUCK_S.

        Raises:
            RefusedError: the probe was refused.
        """
        try:
            async with self._pace.limit(STUCK_S):
                await self.launch(self._load.prober)
                while self._load.unsettled(over):
                    await self._history.moved(POLL_S)
        except TimeoutError:
            return None
        return self._clock.now()

    async def launch(self, client: Client) -> None:
        """A short one, from its request to its end."""
        view = await client.launch(self._probe)
        while not self._has_ended(str(view["id"])):
            await self._history.moved(POLL_S)

    async def until(self, left: Callable[[], list[str]], *, limit_s: float = REST_S) -> list[str]:
        """Waits until nothing is left, for so long as rest may take; what is left then."""
        deadline = self._pace.now() + limit_s
        while (found := left()) and self._pace.now() < deadline:
            await self._history.moved(POLL_S)
        return found

    def _has_ended(self, id_: str) -> bool:
        version = self._history.last(id_)
        return version is not None and version.obj.get("status", {}).get("phase") == Phase.TERMINATED


def refusal(error: RefusedError) -> InvariantViolation:
    """A probe that is refused is a violation by itself."""
    return InvariantViolation(invariant="API", subject="prober", message=str(error))
