"""Ends a service of the local stack that is no longer alive, as a kubelet does for a pod.

Owns the rule that a process is not alive, the dump of its stacks before its end, and the message to the user. The stack
restarts the process. The numbers are those of the chart's livenessProbe.

Promises: a service whose `/livez` fails or does not answer three times in a row is ended. Before that, it is asked to
write the stack of every task to its log. A starting service has a minute to answer.
"""

import signal
from collections.abc import Callable

from slipway.local.process import Child
from slipway.runtime.clock import Clock

PERIOD_S = 10.0
TIMEOUT_S = 5.0
FAILURES_MAX = 3
START_FAILURES_MAX = 6
"""Maximum failures in a row of a process that has not answered yet."""
DUMP_S = 1.0
"""Seconds that the process has to write its stacks."""
GRACE_S = 5.0
"""Seconds that the process has to end after SIGTERM. A hanging process often cannot."""


class Watchdog:
    """Probes one child; the stack calls `look` every `PERIOD_S`. `say` is called with one line for each event."""

    def __init__(self, child: Child, clock: Clock, say: Callable[[str], None], *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._child = child
        self._clock = clock
        self._say = say
        self._pid = 0
        self._was_alive = False
        self._failures = 0

    async def look(self) -> None:
        """Probe the child once, and end it after too many failures."""
        child = self._child
        if not child.is_running:
            return
        if child.pid != self._pid:
            self._pid, self._was_alive, self._failures = child.pid, False, 0
        why = await child.why_not("/livez", self._timeout_s)
        if why is None:
            self._was_alive, self._failures = True, 0
            return
        self._failures += 1
        is_over = self._failures >= (FAILURES_MAX if self._was_alive else START_FAILURES_MAX)
        if not is_over or child.pid != self._pid or not child.is_running:
            return
        self._failures = 0
        self._say(f"{child.name} is not alive ({why}); restarting it. Its stacks are in {child.log}")
        child.signal(signal.SIGUSR1)
        await self._clock.sleep(DUMP_S)
        if child.pid == self._pid:
            await child.stop(GRACE_S)
