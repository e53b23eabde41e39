"""What the api needs of the outside, in its own words."""

from typing import Protocol

from slipway.kube.ports import Creates, Deletes, Execs, Gets, Lists, Patches, ReadsLogs, Replaces, Watches


class Kube(Gets, Lists, Creates, Replaces, Patches, Deletes, ReadsLogs, Execs, Protocol):
    """Reads of everything that is shown, writes of specs (never of a status), and commands in ranks."""


class WatchingKube(Kube, Watches, Protocol):
    """Kube with watches. `watched.py` uses it for what it keeps in memory; a route does not."""


class ShutdownSignal(Protocol):
    """Set once, when the process is to end."""

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...
