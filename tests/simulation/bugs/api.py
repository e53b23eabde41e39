"""Seeded bugs of the api: keys, answers, reads of other replicas, other workspaces, secrets."""

from typing import Any

import msgspec
import pytest

from slipway.api.allocations.changes import SpecWriter
from slipway.api.allocations.lookup import Lookup
from slipway.api.http.errors import KeyReusedError
from slipway.api.launch import launch_routes
from slipway.api.launch.launcher import AllocationLauncher, IdempotencyClaims, LaunchRequest, LaunchResult
from slipway.crd import transitions
from slipway.crd.meta import LABEL_LAUNCH_KEY
from slipway.crd.v1alpha1 import Allocation, RingEntry
from slipway.errors import ControlPlaneError
from slipway.kube.resources import ALLOCATIONS
from slipway.model.events import AllocationEvent
from tests.simulation.bugs.bug import Bug


def _remembers_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A replica always answers with the first state that it read."""
    find = Lookup.find
    seen: dict[tuple[int, str], Allocation] = {}

    async def remembered(self: Lookup, text: str) -> Allocation:
        key = (id(self), text)
        if key not in seen:
            seen[key] = await find(self, text)
        return seen[key]

    patch.setattr(Lookup, "find", remembered)


def _overlooks_the_body(patch: pytest.MonkeyPatch) -> None:
    """A known key is accepted with any body."""

    def known(
        _self: AllocationLauncher, found: Allocation | None, _order: LaunchRequest, error: ControlPlaneError
    ) -> LaunchResult:
        if found is None:
            raise error
        return LaunchResult(allocation=found, created=False)

    patch.setattr(AllocationLauncher, "_same_key", known)


def _claims_no_key(patch: pytest.MonkeyPatch) -> None:
    """A launch checks whether the key was used, and then creates, without a claim."""

    async def look(self: Any, key: str, workspace: str, name: str) -> None:
        known = await self._kube.list(ALLOCATIONS, namespace=workspace, label_selector=f"{LABEL_LAUNCH_KEY}={key}")
        for found in known.items:
            if found.metadata.name != name:
                raise KeyReusedError(f"this Idempotency-Key launched {found.metadata.name}")

    patch.setattr(IdempotencyClaims, "settle", look)


def _answers_before_the_create(patch: pytest.MonkeyPatch) -> None:
    """The launch is answered after a dry run, without a create."""

    async def create(self: Any, manifest: dict[str, Any]) -> Allocation:
        return await self._kube.create(ALLOCATIONS, manifest, dry_run=True)

    patch.setattr(AllocationLauncher, "_create", create)


def _lists_everything(patch: pytest.MonkeyPatch) -> None:
    """A list ignores the requested workspace."""
    wanted = launch_routes.ListFilter

    def everything(**options: Any) -> launch_routes.ListFilter:
        given: dict[str, Any] = {**options, "workspace": ""}
        return wanted(**given)

    patch.setattr(launch_routes, "ListFilter", everything)


def _tells_the_environment(patch: pytest.MonkeyPatch) -> None:
    """Events contain the environment of the job."""
    event_of = transitions.event_of

    def telling(allocation: Allocation, entry: RingEntry, **options: Any) -> AllocationEvent:
        event = event_of(allocation, entry, **options)
        return msgspec.structs.replace(event, data={**event.data, "env": str(allocation.spec.env)})

    patch.setattr(transitions, "event_of", telling)


def _answers_before_the_cancel(patch: pytest.MonkeyPatch) -> None:
    """The kill is answered, and never written."""

    async def kill(_self: SpecWriter, allocation: Allocation) -> Allocation:
        spec = msgspec.structs.replace(allocation.spec, desired="Stopped")
        return msgspec.structs.replace(allocation, spec=spec)

    patch.setattr(SpecWriter, "kill", kill)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="a replica answers from memory",
        breaks="nobody sees an older state than they have seen, whichever replica answers",
        install=_remembers_for_ever,
        hunts=(("api-two-read", ""),),
        told_by=("I19",),
    ),
    Bug(
        name="the body is overlooked",
        breaks="a key is for one body; another one is refused",
        install=_overlooks_the_body,
        hunts=(("api-retry", ""),),
        told_by=("I2",),
    ),
    Bug(
        name="a key is looked up and not claimed",
        breaks="a key that comes with a name is claimed before anything is created",
        install=_claims_no_key,
        hunts=(("api-names", "slow@api:*create allocations:before"),),
        told_by=("I2",),
    ),
    Bug(
        name="answered before the create",
        breaks="a launch is acknowledged after its Allocation is stored",
        install=_answers_before_the_create,
        hunts=(("api-two-tenants", ""),),
        told_by=("I1",),
    ),
    Bug(
        name="answered before the cancel",
        breaks="a cancel is acknowledged after it is stored",
        install=_answers_before_the_cancel,
        hunts=(("api-cancel-running", ""),),
        told_by=("I13", "I18", "I19"),
    ),
    Bug(
        name="everything is listed",
        breaks="nobody is told of another workspace",
        install=_lists_everything,
        hunts=(("api-two-tenants", ""),),
        told_by=("I22",),
    ),
    Bug(
        name="events tell the environment",
        breaks="secrets stay where they were given",
        install=_tells_the_environment,
        hunts=(("api-launch", ""),),
        told_by=("I23",),
    ),
)
