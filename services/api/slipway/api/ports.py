"""The interfaces that the api needs from the outside."""

from typing import Protocol

from slipway.kube.ports import Creates, Deletes, Execs, Gets, Lists, Patches, ReadsLogs, Replaces, Watches


class Kube(Gets, Lists, Creates, Replaces, Patches, Deletes, ReadsLogs, Execs, Protocol):
    """Reads of all shown objects, writes of specs (never of a status), and commands in ranks."""


class WatchingKube(Kube, Watches, Protocol):
    """Kube with watches. `cluster/watched.py` uses it for the objects that it caches; no route uses it."""


class ShutdownSignal(Protocol):
    """An event that is set once, when the process must stop."""

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...
