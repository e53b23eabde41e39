"""Seeded bugs of the pod worker: creates, release, bindings, teardown, hints."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from slipway.crd.members import members
from slipway.crd.v1alpha1 import Allocation, Release
from slipway.errors import AlreadyExistsError, InvalidError, NotFoundError, StaleError, TransientError, UnavailableError
from slipway.kube.resources import ALLOCATIONS, PODS
from slipway.kube.wire import metadata_of
from slipway.pods import manifest
from slipway.podworker import intent, launch, status, worker
from slipway.podworker.intent import AdoptVerdict, Teardown
from slipway.podworker.launch import AttemptLauncher, BindTarget
from slipway.podworker.teardown import AttemptRemover
from slipway.podworker.worker import Worker
from slipway.streams.consumer import WorkConsumer
from slipway.watcher.sweep import Sweeper
from tests.simulation.bugs.bug import SLOW_S, Bug


def _bind_before_release(patch: pytest.MonkeyPatch) -> None:
    release = status.release

    async def seeded(kube: Any, allocation: Allocation, pod_uids: Sequence[str]) -> Allocation:
        for member, uid in zip(members(allocation), pod_uids, strict=True):
            name = manifest.pod_name(allocation, member.rank)
            await kube.bind(allocation.metadata.namespace, name, uid, member.placement.node)
        return await release(kube, allocation, pod_uids)

    patch.setattr(status, "release", seeded)


def _bind_without_uid(patch: pytest.MonkeyPatch) -> None:
    async def bind(self: Any, namespace: str, target: BindTarget, _binder: object) -> None:
        await self._kube.bind(namespace, target.pod, "", target.node)

    patch.setattr(AttemptLauncher, "_bind", bind)


def _release_without_fence(patch: pytest.MonkeyPatch) -> None:
    """The release overwrites every change since the allocation was read."""

    async def release(kube: Any, allocation: Allocation, pod_uids: Sequence[str]) -> Allocation:
        await asyncio.sleep(SLOW_S)
        meta = allocation.metadata
        found = await kube.get(ALLOCATIONS, meta.name, namespace=meta.namespace)
        made = Release(attempt=allocation.status.attempt, pod_uids=list(pod_uids))
        after = msgspec.structs.replace(found.status, release=made)
        return await kube.replace_status(ALLOCATIONS, msgspec.structs.replace(found, status=after))

    patch.setattr(status, "release", release)


def _release_of_a_part(patch: pytest.MonkeyPatch) -> None:
    release = status.release

    async def partial(kube: Any, allocation: Allocation, pod_uids: Sequence[str]) -> Allocation:
        return await release(kube, allocation, pod_uids[:-1])

    patch.setattr(status, "release", partial)


def _release_before_all_exist(patch: pytest.MonkeyPatch) -> None:
    """A pod whose create was not answered is treated as created."""
    create = AttemptLauncher._create_pod  # pyright: ignore[reportPrivateUsage]

    async def seeded(self: Any, allocation: Any, pod: Any, made: Any) -> None:
        try:
            await create(self, allocation, pod, made)
        except TransientError:
            made.pod_uids[pod.position] = f"expected-{pod.position}"

    patch.setattr(AttemptLauncher, "_create_pod", seeded)


def _silence_is_a_release(patch: pytest.MonkeyPatch) -> None:
    release = status.release

    async def seeded(kube: Any, allocation: Allocation, pod_uids: Sequence[str]) -> Allocation:
        try:
            return await release(kube, allocation, pod_uids)
        except TransientError:
            made = Release(attempt=allocation.status.attempt, pod_uids=list(pod_uids))
            return msgspec.structs.replace(allocation, status=msgspec.structs.replace(allocation.status, release=made))

    patch.setattr(status, "release", seeded)


def _foreign_pods_are_adopted(patch: pytest.MonkeyPatch) -> None:
    def seeded(*_given: Any, **_more: Any) -> AdoptVerdict:
        return AdoptVerdict.ADOPT

    patch.setattr(launch, "judge_existing", seeded)


def _what_exists_is_made_again(patch: pytest.MonkeyPatch) -> None:
    """The worker deletes its own pod whose create was not answered, as if it belonged to others."""

    async def again(self: Any, resource: Any, body: Any, allocation: Any) -> Any:
        name, namespace = str(body["metadata"]["name"]), str(body["metadata"]["namespace"])
        meta = metadata_of(await self._kube.get(resource, name, namespace=namespace))
        if resource is not PODS:
            return meta
        await self._kube.delete(resource, name, namespace=namespace, uid=meta.uid)
        raise UnavailableError(f"{name} was there and was deleted", retry_after_s=0.5)

    patch.setattr(AttemptLauncher, "_adopt", again)


def _retries_take_another_name(patch: pytest.MonkeyPatch) -> None:
    ensure = AttemptLauncher._ensure  # pyright: ignore[reportPrivateUsage]

    async def renaming(self: Any, resource: Any, body: Any, allocation: Any) -> Any:
        try:
            return metadata_of(await self._kube.create(resource, body)), True
        except AlreadyExistsError:
            return await ensure(self, resource, body, allocation)
        except TransientError:
            other = {**body, "metadata": {**body["metadata"], "name": f"{body['metadata']['name']}-again"}}
            return metadata_of(await self._kube.create(resource, other)), True

    patch.setattr(AttemptLauncher, "_ensure", renaming)


def _bound_is_bound(patch: pytest.MonkeyPatch) -> None:
    """A pod that is bound to any node, and has any uid, is accepted."""

    async def seeded(_self: Any, _namespace: str, _target: BindTarget) -> None:
        return None

    patch.setattr(AttemptLauncher, "_check_bound", seeded)


def _the_first_look_is_enough(patch: pytest.MonkeyPatch) -> None:
    """The allocation is read for the first hint only; later hints are answered from memory."""
    make = Worker.__init__

    class CachingKube:
        def __init__(self, kube: Any) -> None:
            self._kube = kube
            self._seen: dict[str, Any] = {}

        def __getattr__(self, name: str) -> Any:
            return getattr(self._kube, name)

        async def get(self, resource: Any, name: str, *, namespace: str | None = None) -> Any:
            if resource is not ALLOCATIONS:
                return await self._kube.get(resource, name, namespace=namespace)
            if name not in self._seen:
                self._seen[name] = await self._kube.get(resource, name, namespace=namespace)
            return self._seen[name]

    def seeded(self: Any, *, kube: Any, **more: Any) -> None:
        with_memory: Any = CachingKube(kube)
        make(self, kube=with_memory, **more)

    patch.setattr(Worker, "__init__", seeded)


def _a_stop_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Before the release the launch continues although the allocation is stopped."""

    def none(*_given: Any, **_more: Any) -> None:
        return None

    patch.setattr(intent, "stop_reason", none)


def _ack_before_effect(patch: pytest.MonkeyPatch) -> None:
    admit = WorkConsumer._admit  # pyright: ignore[reportPrivateUsage]

    async def seeded(self: Any, claimed: Any, group: Any) -> None:
        await self._queue.ack(claimed)
        await admit(self, claimed, group)

    patch.setattr(WorkConsumer, "_admit", seeded)


def _delete_without_uid(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: Any, allocation: Allocation, resource: Any, meta: Any) -> None:
        try:
            await self._kube.delete(resource, meta.name, namespace=allocation.metadata.namespace)
        except (NotFoundError, StaleError):
            return

    patch.setattr(AttemptRemover, "_delete", delete)


def _deleted_without_grace(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: Any, allocation: Allocation, resource: Any, meta: Any) -> None:
        try:
            await self._kube.delete(
                resource, meta.name, namespace=allocation.metadata.namespace, uid=meta.uid, grace_s=0
            )
        except (NotFoundError, StaleError):
            return

    patch.setattr(AttemptRemover, "_delete", delete)


def _late_create_is_left(patch: pytest.MonkeyPatch) -> None:
    """The name of a released pod that another object has now is treated as done."""

    async def delete(self: Any, allocation: Allocation, resource: Any, meta: Any) -> None:
        try:
            await self._kube.delete(resource, meta.name, namespace=allocation.metadata.namespace, uid=meta.uid)
        except (NotFoundError, StaleError):
            return

    named = AttemptRemover._named_pods  # pyright: ignore[reportPrivateUsage]

    async def seeded(self: AttemptRemover, allocation: Allocation, through: int, *, looks: bool) -> Any:
        del looks
        return await named(self, allocation, through, looks=False)

    patch.setattr(AttemptRemover, "_delete", delete)
    patch.setattr(AttemptRemover, "_named_pods", seeded)


def _nothing_is_torn_down(patch: pytest.MonkeyPatch) -> None:
    async def idle(self: Any, allocation: Allocation, through: int) -> int:
        return 0

    async def blind(self: Any) -> int:
        return 0

    patch.setattr(AttemptRemover, "remove", idle)
    patch.setattr(Sweeper, "sweep", blind)


def _a_running_gang_is_torn_down(patch: pytest.MonkeyPatch) -> None:
    """Any hint for a running gang ends it, as after a restart that could not read the state."""
    decide = intent.decide

    def seeded(allocation: Allocation, **more: Any) -> Any:
        return Teardown(allocation.status.attempt) if allocation.status.started_at else decide(allocation, **more)

    patch.setattr(worker, "decide", seeded)


def _an_error_is_the_users_failure(patch: pytest.MonkeyPatch) -> None:
    release = AttemptLauncher.release

    async def seeded(self: Any, *given: Any) -> Allocation:
        try:
            return await release(self, *given)
        except TransientError as error:
            raise InvalidError(str(error)) from error

    patch.setattr(AttemptLauncher, "release", seeded)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="bind before release",
        breaks="no pod is bound before the release that lists it is committed",
        install=_bind_before_release,
        hunts=(("launch-1", ""),),
        told_by=("I5",),
    ),
    Bug(
        name="bind without uid",
        breaks="a binding names the uid of the pod",
        install=_bind_without_uid,
        hunts=(("launch-1", ""),),
        told_by=("FENCE",),
    ),
    Bug(
        name="release without fence",
        breaks="a status is written under the version it was decided on",
        install=_release_without_fence,
        hunts=(("delete-launching", ""),),
        told_by=("I13",),
    ),
    Bug(
        name="release of a part",
        breaks="the release lists all pods of the attempt",
        install=_release_of_a_part,
        hunts=(("launch-4", ""),),
        told_by=("I5",),
    ),
    Bug(
        name="release before all pods exist",
        breaks="the release comes after all pods exist",
        install=_release_before_all_exist,
        hunts=(("launch-4", "timeout@podworker:*create pods:before"),),
        told_by=("I5",),
    ),
    Bug(
        name="silence is a release",
        breaks="a write without an answer is looked up before anything follows from it",
        install=_silence_is_a_release,
        hunts=(("launch-1", "timeout@podworker:*update allocations:before"),),
        told_by=("I5",),
    ),
    Bug(
        name="a foreign pod is adopted",
        breaks="what exists is adopted only when it is ours",
        install=_foreign_pods_are_adopted,
        hunts=(("name-taken", ""),),
        told_by=("I5",),
    ),
    Bug(
        name="what exists is made again",
        breaks="a create whose answer was lost is recognised; nothing is deleted on a mere conflict",
        install=_what_exists_is_made_again,
        hunts=(("stay", "freeze@podworker:*create pods:before"),),
        told_by=("I18", "I21"),
        replicas=2,
    ),
    Bug(
        name="a retry takes another name",
        breaks="names follow from the object, so that creating twice is creating once",
        install=_retries_take_another_name,
        hunts=(("launch-4", "timeout-applied@podworker:*create pods:after"),),
        told_by=("I3", "I18"),
    ),
    Bug(
        name="bound is bound",
        breaks="a conflict on a binding is success only for the same pod on the same node",
        install=_bound_is_bound,
        hunts=(("bound-elsewhere", ""), ("bound-elsewhere", "freeze@watcher:*:before")),
        told_by=("ACK",),
    ),
    Bug(
        name="the first look is enough",
        breaks="a hint says only where to look: the object is read each time",
        install=_the_first_look_is_enough,
        hunts=(("launch-1", ""), ("cancel-running", "")),
        told_by=("I18", "ACK", "I11"),
    ),
    Bug(
        name="a stop is not looked at",
        breaks="a cancel before the release wins: what exists is taken down, and nothing starts",
        install=_a_stop_is_not_looked_at,
        hunts=(
            ("delete-launching", "freeze@watcher:*append events:before"),
            ("cancel-launching", "freeze@watcher:*append:before"),
        ),
        told_by=("I13", "I8"),
    ),
    Bug(
        name="ack before effect",
        breaks="a hint is acknowledged after its effect",
        install=_ack_before_effect,
        hunts=(("launch-1", ""),),
        told_by=("ACK",),
    ),
    Bug(
        name="delete without uid",
        breaks="a delete names the uid",
        install=_delete_without_uid,
        hunts=(("launch-1", ""),),
        told_by=("FENCE",),
    ),
    Bug(
        name="deleted without grace",
        breaks="a teardown leaves each pod its grace",
        install=_deleted_without_grace,
        hunts=(("cancel-running", ""),),
        told_by=("I12",),
    ),
    Bug(
        name="a late create is left",
        breaks="a create that comes after the end is found and removed",
        install=_late_create_is_left,
        hunts=tuple((name, "freeze@podworker:*create pods:before") for name in ("launch-1", "launch-4", "launch-8")),
        told_by=("ACK", "I11"),
        replicas=2,
    ),
    Bug(
        name="nothing is torn down",
        breaks="what has ended leaves nothing behind",
        install=_nothing_is_torn_down,
        hunts=(("launch-1", ""),),
        told_by=("I11", "I12", "I18"),
    ),
    Bug(
        name="a running gang is torn down",
        breaks="only an attempt that is over is torn down",
        install=_a_running_gang_is_torn_down,
        hunts=(("stay-long-r0", ""),),
        told_by=("I18", "I20", "I21"),
    ),
    Bug(
        name="an error is the user's failure",
        breaks="what may pass is tried again, and never ends an allocation",
        install=_an_error_is_the_users_failure,
        hunts=(("launch-1", "server-error@podworker:*create:before"),),
        told_by=("I18",),
    ),
)
