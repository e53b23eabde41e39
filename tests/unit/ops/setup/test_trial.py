"""`helm test`: a launch runs to its end, or the operator gets the reason why it does not."""

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from slipway.errors import ControlPlaneError, NotFoundError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.ops.setup.settings import TrialSettings
from slipway.ops.setup.trial import TrialLaunch
from tests.support.failing_calls import failing
from tests.support.kube_core import CoreKube, Hook
from tests.support.small_cluster import a_client, a_core, furnish
from tests.support.virtual_time import VirtualClock, run_virtual

NAME = "trial-1"


def _tried(
    status: Mapping[str, object] | None,
    settings: TrialSettings | None = None,
    *,
    before: Hook | None = None,
    after: Hook | None = None,
) -> None:
    """Run a trial on a cluster whose services write this status as soon as they see the launch; without a status they
    are away. `before` and `after` are hooks of its calls."""

    async def services(kube: CoreKube, clock: VirtualClock) -> None:
        is_written = status is None
        while not is_written:
            for item in (await kube.list(ALLOCATIONS)).items:
                await kube.replace_status(ALLOCATIONS, {**msgspec.to_builtins(item), "status": status})
                is_written = True
            await clock.sleep(0.1)

    async def main() -> None:
        clock = VirtualClock()
        core = a_core(clock.now)
        kube = a_client(core)
        await furnish(kube)
        own = a_client(core)
        own.before, own.after = before or own.before, after or own.after
        failure: ControlPlaneError | None = None
        async with asyncio.TaskGroup() as tasks:
            beside = tasks.create_task(services(kube, clock))
            try:
                await TrialLaunch(own, clock, settings or TrialSettings(), NAME).run()
            except ControlPlaneError as error:
                failure = error
            beside.cancel()
        assert not (await kube.list(ALLOCATIONS)).items
        if failure is not None:
            raise failure

    run_virtual(main)


def test_a_launch_that_ends_well_is_a_success() -> None:
    """A launch that succeeds is a success, and no object of it is left."""
    _tried({"phase": "Terminated", "result": "Succeeded", "reason": "Completed"})


SUCCESS = {"phase": "Terminated", "result": "Succeeded", "reason": "Completed"}


@pytest.mark.parametrize("verb", [Verb.CREATE, Verb.GET, Verb.DELETE])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_call_that_fails_is_repeated(verb: Verb, is_done: bool) -> None:
    """A failed call is repeated: a short outage of the API server is no failure of the installation, and no trial is
    left behind."""
    hook = failing(verb, ALLOCATIONS.plural, 2)
    _tried(SUCCESS, after=hook) if is_done else _tried(SUCCESS, before=hook)


def test_another_end_is_told_with_its_reason() -> None:
    """Another end is reported with the reason of the services."""
    failed = {"phase": "Terminated", "result": "Failed", "reason": "ImagePullFailed", "message": "no such image"}
    with pytest.raises(UnavailableError, match="Failed: ImagePullFailed no such image"):
        _tried(failed)


def test_what_does_not_end_is_told_with_what_it_waits_for() -> None:
    """A launch that does not end is reported with its conditions, and is removed."""
    waits = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "QuotaReserved",
                "status": "False",
                "reason": "QuotaExceeded",
                "message": "queue default is full",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            }
        ],
    }
    with pytest.raises(UnavailableError, match="is Pending after 5 s; QuotaReserved: queue default is full"):
        _tried(waits, TrialSettings(trial_timeout_s=5))


def test_services_that_are_away_are_suspected() -> None:
    """Without any status the message suspects that the services are away."""
    with pytest.raises(UnavailableError, match="are the services running"):
        _tried(None, TrialSettings(trial_timeout_s=5))


def test_a_workspace_that_is_not_there_is_named() -> None:
    """A missing workspace is reported with the message of the API server."""
    with pytest.raises(NotFoundError, match="nowhere"):
        _tried(None, TrialSettings(trial_workspace="nowhere"))
