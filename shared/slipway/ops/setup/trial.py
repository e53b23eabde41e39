"""Tries a whole installation: launches a command of one second, waits for its end, and removes it.

This module owns the launch and the criteria of success. It uses only Kubernetes, as `kubectl apply` does, so it needs
neither the api nor Redis. It tests that a launch is planned, created, run, recorded as ended, and removed.

`helm test` runs `python -m slipway.ops.setup.trial`. It may run again, and several at once.
"""

import asyncio
import contextlib
import sys
from typing import Protocol

from slipway.crd.meta import RawObject
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import AlreadyExistsError, NotFoundError, StaleError, TransientError, UnavailableError
from slipway.kube import client
from slipway.kube.ports import Creates, Deletes, Gets
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.ops.setup.settings import TrialSettings
from slipway.runtime import log, service
from slipway.runtime.clock import Clock
from slipway.runtime.service import ServiceContext

NAME = "trial"
POLL_S = 0.5
TRIES = 5
GOES_WITHIN_S = 30.0
"""Seconds in which its pods and its finalizer must be removed after the delete."""
COMMAND = ("python3", "-c", "import time; time.sleep(1)")

_log = log.get_logger(__name__)


class Kube(Creates, Gets, Deletes, Protocol):
    """The calls to Kubernetes."""


class TrialLaunch:
    """One launch and its end. `name` distinguishes it from other trials."""

    def __init__(self, kube: Kube, clock: Clock, settings: TrialSettings, name: str) -> None:
        self._kube = kube
        self._clock = clock
        self._settings = settings
        self._name = name

    async def run(self) -> None:
        """Return when the launch has ended and is removed.

        Raises:
            UnavailableError: it does not end in time, does not succeed, or is not removed; in words for an operator.
            NotFoundError: there is no such workspace, or the definitions are not installed.
            InvalidError: the API server refuses it.
        """
        settings = self._settings
        made = await self._launched()
        _log.info("launched", workspace=settings.trial_workspace, name=self._name)
        try:
            ended = await self._ended()
        finally:
            await self._remove(made.metadata.uid)
        if ended.status.result != Result.SUCCEEDED:
            raise UnavailableError(
                f"it ended {ended.status.result}: {ended.status.reason} {ended.status.message}".strip()
            )
        _log.info("succeeded", workspace=settings.trial_workspace, name=self._name)

    async def _launched(self) -> Allocation:
        """Create the launch, with retries. Its name is new, so after a lost answer a launch of this name is ours."""
        where = self._settings.trial_workspace
        for left in reversed(range(TRIES)):
            try:
                return await self._kube.create(ALLOCATIONS, self._manifest(), namespace=where)
            except AlreadyExistsError:
                if left == TRIES - 1:
                    raise
                return await self._kube.get(ALLOCATIONS, self._name, namespace=where)
            except TransientError:
                if not left:
                    raise
                await self._clock.sleep(POLL_S)
        raise AssertionError

    async def _ended(self) -> Allocation:
        seen: Allocation | None = None
        try:
            async with asyncio.timeout(self._settings.trial_timeout_s):
                while True:
                    with contextlib.suppress(TransientError):
                        seen = await self._kube.get(ALLOCATIONS, self._name, namespace=self._settings.trial_workspace)
                        if seen.status.phase is Phase.TERMINATED:
                            return seen
                    await self._clock.sleep(POLL_S)
        except TimeoutError as error:
            raise UnavailableError(self._late(seen)) from error

    def _late(self, seen: Allocation | None) -> str:
        after = f"after {self._settings.trial_timeout_s:g} s"
        if seen is None:
            return f"the API server did not answer {after}"
        said = [f"{item.type}: {item.message}" for item in seen.status.conditions if item.message]
        return f"it is {seen.status.phase} {after}; " + (
            "; ".join(said) or "no service has written a reason: are the services running?"
        )

    async def _remove(self, uid: str) -> None:
        where = self._settings.trial_workspace
        try:
            async with asyncio.timeout(GOES_WITHIN_S):
                with contextlib.suppress(NotFoundError, StaleError):  # gone, or another one has the name by now
                    while True:
                        with contextlib.suppress(TransientError):
                            await self._kube.delete(ALLOCATIONS, self._name, namespace=where, uid=uid)
                        await self._clock.sleep(POLL_S)
        except TimeoutError as error:
            raise UnavailableError(
                f"{where}/{self._name} was deleted and still exists after {GOES_WITHIN_S:g} s: are podworker and "
                "watcher running?"
            ) from error

    def _manifest(self) -> RawObject:
        settings = self._settings
        container = {
            "name": "main",
            "image": settings.trial_image,
            "command": list(COMMAND),
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        }
        return {
            "metadata": {"name": self._name},
            "spec": {
                "kind": "command",
                "pool": settings.trial_pool,
                "queue": settings.trial_queue,
                "template": {"spec": {"containers": [container]}},
            },
        }


def main() -> int:
    """Return exit code 0 when the trial succeeded, 1 when not."""
    return service.run(NAME, TrialSettings, build, argv=["--once", *sys.argv[1:]])


async def build(context: ServiceContext[TrialSettings]) -> None:
    """Run the trial."""
    kube = await context.resources.enter_async_context(
        client.connect(
            context.settings.kubeconfig or None, clock=context.clock, random=context.random, user_agent="slipway-trial"
        )
    )
    name = f"trial-{int(context.clock.now() * 1000):x}"
    await TrialLaunch(kube, context.clock, context.settings, name).run()


if __name__ == "__main__":
    raise SystemExit(main())
