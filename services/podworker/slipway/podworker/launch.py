"""Launches one attempt: creates its ConfigMap, group, pods and Services, commits the release, then binds the pods.

Owns the order of these writes and what each response means. Must not decide whether to launch (`intent.py`) nor how
often to try (`worker.py`): every method may be called again at any time, by any replica, and continues from the objects
that exist.

Promises: no pod is bound before the release that lists its uid is committed; the release lists exactly the pods of all
placed ranks; an existing pod is adopted only when it is ours, of the same content, unbound and not being deleted. A
launch that exceeds a quota deletes the pods that it has created, and then waits: gangs that each keep a part of the
quota would block one another.
Not promised: that the pods of a failed launch are gone. The teardown deletes them; they are unbound, so they run
nowhere.

The Service is created after the pods, because the pods need it only once they run, and because for each pod that is
added to an existing Service, two controllers of the cluster go through all of its pods. A Service that several
allocations share is created before the pods: if it is refused, there are no pods to delete.
"""

import contextlib
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from slipway.crd.members import GangMember, members, pod_uids, unreleased
from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, ObjectMeta, RawObject
from slipway.crd.v1alpha1 import Allocation, AllocationSpec
from slipway.errors import (
    AlreadyExistsError,
    BoundError,
    InvalidError,
    InvariantError,
    NotFoundError,
    QuotaExceededError,
    StaleError,
    UnavailableError,
)
from slipway.kube.objects import Pod
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS, SERVICES, Resource, brief
from slipway.kube.wire import metadata_of
from slipway.pods import identity, manifest
from slipway.pods.ended import is_replaced
from slipway.pods.manifest import Manifests, RankPod
from slipway.pods.podspec import SCHEDULER_NAME, TaskOptions
from slipway.podworker import binding, status
from slipway.podworker.binding import Binder, ExtenderBinding, PodGate
from slipway.podworker.concurrency import LaunchStage, PriorityLimiter
from slipway.podworker.created_objects import CreatedObjects, PodGroups, make_once, needs_scheduler
from slipway.podworker.intent import AdoptVerdict, judge_existing
from slipway.podworker.pools import AdmittedSpec
from slipway.podworker.ports import Kube
from slipway.podworker.service_sharing import ServiceSharing
from slipway.podworker.steps import step
from slipway.runtime import semconv, telemetry
from slipway.runtime.clock import Clock

FRESH_S = 10.0
"""For so long after its creation a pod is assumed to be unbound and pending, without a read."""
POD_EVENTS_MAX = 8
"""How many ranks of a gang get an event in the trace for their pods."""
REPLACED_AFTER_S = 0.5
LIST_RANKS_MIN = 3
"""From this number of ranks on, one LIST is cheaper than a GET for each existing pod."""


class LaunchProgress:
    """What this process has created for one attempt, so that the next try does not repeat finished calls.

    It is no proof that an object still exists: if an object has been deleted since, a binding fails.
    """

    def __init__(self, uid: str, attempt: int) -> None:
        self.uid = uid
        self.attempt = attempt
        self.manifests: Manifests | None = None
        self.is_config_made = False
        self.is_service_made = False
        self.is_behind_service = False
        self.config_map: ObjectMeta | None = None
        self.is_group_made = False
        self.pod_uids: dict[int, str] = {}
        self.fresh_until_s = 0.0

    def is_of(self, allocation: Allocation) -> bool:
        """Whether this record is about the current attempt of this allocation."""
        return (self.uid, self.attempt) == (allocation.metadata.uid, allocation.status.attempt)


class BindTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A released pod and its node. A pod with a gate is bound by kube-scheduler, once the gate is open."""

    pod: str
    uid: str
    node: str
    gate: PodGate | None = None
    rank: int = -1


class AttemptLauncher:
    """Carries out launches."""

    def __init__(
        self,
        kube: Kube,
        limiter: PriorityLimiter,
        clock: Clock,
        options: TaskOptions,
        extender_binding: ExtenderBinding,
        *,
        created: CreatedObjects,
        sharing: ServiceSharing,
    ) -> None:
        self._kube = kube
        self._groups = PodGroups(kube)
        self._sharing = sharing
        self._created = created
        self._limiter = limiter
        self._clock = clock
        self._options = options
        self._extender_binding = extender_binding

    async def release(
        self, allocation: Allocation, admitted: AdmittedSpec, progress: LaunchProgress, traceparent: str
    ) -> Allocation:
        """Create all objects, then commit the release; return the allocation with the release.

        Raises:
            StaleError: the allocation has changed: decide again.
            InvalidError, TooLargeError, AlreadyExistsError: this can never be launched.
            TerminatingError, NotFoundError: the namespace is being deleted, or does not exist any more.
            ClaimPendingError: a volume claim is not bound yet.
        """
        if progress.manifests is None:
            progress.manifests = await self._bindable_manifests(allocation, admitted, traceparent)
        manifests = progress.manifests
        if not progress.is_config_made:
            with step("configmap", self._clock):
                await self._make_config(allocation, manifests, progress)
        if (wanted := allocation.spec.service) is not None and not progress.is_behind_service:
            with step("service", self._clock):
                await self._sharing.join(allocation, wanted)
            progress.is_behind_service = True
        if manifests.group and not progress.is_group_made:
            with step("group", self._clock):
                await self._create_group(allocation, admitted.spec, manifests, progress)
        missing = [pod for pod in manifests.pods if pod.position not in progress.pod_uids]
        creates = [partial(self._create_pod, allocation, pod, progress) for pod in missing]
        if manifests.service is not None and not progress.is_service_made:
            creates.append(partial(self._create_service, allocation, manifests.service, progress))
        if missing:
            progress.fresh_until_s = self._clock.monotonic() + FRESH_S
        if creates:
            with step("pods", self._clock, count=len(missing)):
                try:
                    await self._limiter.run_all(creates, LaunchStage.RANKS)
                except QuotaExceededError:
                    await self._delete_attempt_pods(allocation, progress)
                    raise
        uids = [progress.pod_uids[pod.position] for pod in manifests.pods]
        with step("release", self._clock):
            try:
                return await status.release(self._kube, allocation, uids)
            except InvalidError as error:
                # A rule of the custom resource refuses it, so the allocation has changed since it was read.
                raise StaleError(f"the release was refused: {error}") from error

    async def bind(self, allocation: Allocation, progress: LaunchProgress) -> int:
        """Bind the released pods that are not bound yet, or open their gates for kube-scheduler; return how many.

        Raises:
            StaleError: a released pod is gone, being deleted, replaced or bound elsewhere: this attempt is broken.
        """
        targets = _targets(allocation)
        if self._is_fresh(progress, targets):
            targets = _with_gates(targets, progress)
        else:
            targets = await self._unbound(allocation, targets)
        with step("bind", self._clock, count=len(targets)):
            namespace = allocation.metadata.namespace
            binder = await self._extender_binding.binder_of(allocation) if targets else None
            await self._limiter.run_all([partial(self._bind, namespace, target, binder) for target in targets])
        return len(targets)

    async def grow(self, allocation: Allocation, admitted: AdmittedSpec, traceparent: str) -> Allocation:
        """Create the pods of the ranks that were added and commit them; return the allocation with them.

        Raises:
            StaleError: the allocation has changed: decide again.
            QuotaExceededError: the quota of the namespace has no room for them; their pods have been deleted again.
            PermanentError: they can never be created.
        """
        ranks = [member.rank for member in unreleased(allocation)]
        try:
            uids = await self._make_pods(allocation, admitted, traceparent, ranks)
        except QuotaExceededError:
            await self.delete_unreleased(allocation, ranks)
            raise
        with step("release", self._clock):
            try:
                return await status.commit_added(self._kube, allocation, [uids[rank] for rank in ranks])
            except InvalidError as error:
                raise StaleError(f"the growth was refused: {error}") from error

    async def restart(
        self, allocation: Allocation, admitted: AdmittedSpec, traceparent: str, ranks: Collection[int]
    ) -> Allocation:
        """Create new pods for ranks that failed and commit them; return the allocation with them.

        Raises:
            StaleError: the allocation has changed: decide again.
            UnavailableError: the failed pod still exists, because the watcher reads its log.
            PermanentError: they cannot be created.
        """
        uids = await self._make_pods(allocation, admitted, traceparent, ranks)
        with step("release", self._clock):
            try:
                return await status.commit_restarted(self._kube, allocation, uids)
            except InvalidError as error:
                raise StaleError(f"the restart was refused: {error}") from error

    async def _make_pods(
        self, allocation: Allocation, admitted: AdmittedSpec, traceparent: str, ranks: Collection[int]
    ) -> dict[int, str]:
        """Create new pods for some ranks of a running gang; return {rank: uid of its new pod}."""
        manifests = await self._bindable_manifests(allocation, admitted, traceparent)
        pods = [pod for pod in manifests.pods if pod.rank in ranks]
        uids: dict[int, str] = {}

        async def create(pod: RankPod) -> None:
            found, _ = await self._ensure(PODS, pod.manifest, allocation)
            uids[pod.rank] = found.uid

        with step("pods", self._clock, count=len(pods)):
            await self._limiter.run_all([partial(create, pod) for pod in pods], LaunchStage.RANKS)
        return uids

    async def bind_ranks(self, allocation: Allocation, ranks: Collection[int]) -> int:
        """Bind the released pods of these ranks, which were added or start again, unless they are bound already.

        Return how many it bound.

        Raises:
            StaleError: one of them is gone, being deleted, replaced or bound elsewhere.
        """
        added = [member for member in members(allocation) if member.pod_uid and member.rank in ranks]
        targets = await self._unbound(allocation, [_target(allocation, member) for member in added])
        with step("bind", self._clock, count=len(targets)):
            namespace = allocation.metadata.namespace
            binder = await self._extender_binding.binder_of(allocation) if targets else None
            await self._limiter.run_all([partial(self._bind, namespace, target, binder) for target in targets])
        return len(targets)

    async def delete_unreleased(self, allocation: Allocation, ranks: Collection[int]) -> None:
        """Delete the pods of added ranks that were never released.

        Raises:
            StaleError: the allocation, or a pod of it, has changed since it was read.
        """
        names, released = {manifest.pod_name(allocation, rank) for rank in ranks}, pod_uids(allocation)
        pods = [pod.metadata for pod in await self._pods(allocation) if pod.metadata.name in names]
        doomed = [meta for meta in pods if meta.uid not in released and meta.deletion_timestamp is None]
        if doomed:
            await self._check_unreleased(allocation)
            await self._limiter.run_all([partial(self._delete_pod, meta) for meta in doomed])

    async def _bindable_manifests(self, allocation: Allocation, admitted: AdmittedSpec, traceparent: str) -> Manifests:
        """Return the objects of the attempt. kube-scheduler binds the pods if only it can bind their volumes."""
        if admitted.spec.home and admitted.home is not None:
            await make_once(self._kube, identity.claim_of(allocation, admitted.home))
        manifests = self._manifests(allocation, admitted, traceparent)
        if not manifests.is_delegate:
            pods = (pod.manifest for pod in manifests.pods)
            if not await needs_scheduler(self._kube, allocation.metadata.namespace, pods):
                return manifests
            pool = manifest.delegating(admitted.pool)
            manifests = self._manifests(allocation, msgspec.structs.replace(admitted, pool=pool), traceparent)
        return await self._groups.grouped(manifests)

    def _manifests(self, allocation: Allocation, admitted: AdmittedSpec, traceparent: str) -> Manifests:
        return manifest.build(
            allocation,
            admitted.spec,
            admitted.pool,
            options=self._options,
            traceparent=traceparent,
            pull_secrets=admitted.pull_secrets,
        )

    async def _make_config(self, allocation: Allocation, manifests: Manifests, progress: LaunchProgress) -> None:
        """Create the ConfigMap. If it exists, an earlier try has begun: find the pods that the earlier try created."""
        create = partial(self._ensure, CONFIG_MAPS, manifests.configmap, allocation)
        config_map, is_new = await self._limiter.run(create, LaunchStage.FIRST)
        self._created.add(CONFIG_MAPS, config_map)
        progress.config_map = config_map
        if not is_new and len(manifests.pods) >= LIST_RANKS_MIN:
            await self._find_pods(allocation, manifests, progress)
        progress.is_config_made = True

    async def _find_pods(self, allocation: Allocation, manifests: Manifests, progress: LaunchProgress) -> None:
        found = {pod.metadata.name: pod for pod in await self._pods(allocation)}
        for pod in manifests.pods:
            known = found.get(pod.name)
            if known is not None and _judge_pod(known, pod, progress.uid) is AdoptVerdict.ADOPT:
                progress.pod_uids[pod.position] = known.metadata.uid

    async def _create_pod(self, allocation: Allocation, pod: RankPod, progress: LaunchProgress) -> None:
        found, _ = await self._ensure(PODS, pod.manifest, allocation)
        progress.pod_uids[pod.position] = found.uid
        if pod.position < POD_EVENTS_MAX:
            telemetry.add_event("pod created", semconv.pod(found.namespace, found.name, found.uid, ""))

    async def _create_service(self, allocation: Allocation, body: RawObject, progress: LaunchProgress) -> None:
        service, _ = await self._ensure(SERVICES, body, allocation)
        self._created.add(SERVICES, service)
        progress.is_service_made = True

    async def _create_group(
        self, allocation: Allocation, spec: AllocationSpec, manifests: Manifests, progress: LaunchProgress
    ) -> None:
        """Create the group before the pods, because a pod that names an old group blocks the deletion of that group."""
        if progress.config_map is None:
            raise InvariantError("a group is made after the ConfigMap that it belongs to")
        try:
            await self._groups.ensure(manifests, spec, progress.config_map)
        except UnavailableError:
            # The API server may not serve groups any more, so the next try asks. An old group is deleted only once no
            # pod names it, so our pods are deleted.
            progress.manifests = None
            await self._delete_attempt_pods(allocation, progress)
            raise
        progress.is_group_made = True

    async def _ensure(
        self, resource: Resource[Any], body: RawObject, allocation: Allocation
    ) -> tuple[ObjectMeta, bool]:
        """Create the object or adopt it; return its metadata and whether it is new."""
        try:
            return metadata_of(await self._kube.create(brief(resource), body)), True
        except AlreadyExistsError:
            return await self._adopt(resource, body, allocation), False

    async def _adopt(self, resource: Resource[Any], body: RawObject, allocation: Allocation) -> ObjectMeta:
        name, namespace = str(body["metadata"]["name"]), str(body["metadata"]["namespace"])
        what = f"{resource.kind} {name}"
        try:
            found: Any = await self._kube.get(resource, name, namespace=namespace)
        except NotFoundError as error:
            raise UnavailableError(f"{what} was deleted while it was read", retry_after_s=0.0) from error
        meta = metadata_of(found)
        verdict = judge_existing(meta, uid=allocation.metadata.uid, spec_hash=manifest.hash_of(body))
        if verdict is AdoptVerdict.ADOPT and isinstance(found, Pod) and not _is_usable(found):
            # A pod that ended by itself is deleted by the watcher, which reads its log first.
            verdict = AdoptVerdict.WAIT if is_replaced(meta.uid, allocation) else AdoptVerdict.REPLACE
        match verdict:
            case AdoptVerdict.ADOPT:
                return meta
            case AdoptVerdict.WAIT:
                raise UnavailableError(f"{what} is being deleted")
            case AdoptVerdict.REPLACE:
                await self._check_unreleased(allocation)
                version = meta.resource_version
                await self._kube.delete(resource, name, namespace=namespace, uid=meta.uid, resource_version=version)
                raise UnavailableError(f"{what} had other content and was deleted", retry_after_s=REPLACED_AFTER_S)
            case AdoptVerdict.NOT_OURS:
                raise AlreadyExistsError(f"{what} exists and does not belong to this allocation")

    async def _check_unreleased(self, allocation: Allocation) -> None:
        """Read the allocation again before an object is deleted: another replica may have released and bound the pod.

        Raises:
            StaleError: the allocation has changed since it was read.
        """
        meta = allocation.metadata
        found = await self._kube.get(ALLOCATIONS, meta.name, namespace=meta.namespace)
        if (found.metadata.uid, found.metadata.resource_version) != (meta.uid, meta.resource_version):
            raise StaleError(f"{meta.name} has changed since it was read")

    async def _delete_attempt_pods(self, allocation: Allocation, progress: LaunchProgress) -> None:
        """Delete the pods of an attempt that exceeds a quota, or whose group is being deleted; never a released pod.

        Raises:
            StaleError: the allocation, or a pod of it, has changed since it was read.
        """
        progress.pod_uids.clear()
        pods = [pod.metadata for pod in await self._pods(allocation) if pod.metadata.deletion_timestamp is None]
        if pods:
            await self._check_unreleased(allocation)
            await self._limiter.run_all([partial(self._delete_pod, meta) for meta in pods])

    async def _delete_pod(self, meta: ObjectMeta) -> None:
        with contextlib.suppress(NotFoundError):
            await self._kube.delete(
                PODS, meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )

    async def _pods(self, allocation: Allocation) -> list[Pod]:
        selector = f"{LABEL_ALLOCATION_UID}={allocation.metadata.uid},{LABEL_ATTEMPT}={allocation.status.attempt}"
        return (await self._kube.list(PODS, namespace=allocation.metadata.namespace, label_selector=selector)).items

    def _is_fresh(self, progress: LaunchProgress, targets: Sequence[BindTarget]) -> bool:
        """Whether this process has created these pods a moment ago, so that they need no read before the binding."""
        if progress.manifests is None or self._clock.monotonic() >= progress.fresh_until_s:
            return False
        return [progress.pod_uids.get(pod.position) for pod in progress.manifests.pods] == [
            item.uid for item in targets
        ]

    async def _unbound(self, allocation: Allocation, released: Sequence[BindTarget]) -> list[BindTarget]:
        """Return the released pods that are not bound: those that we bind, and those whose gate is still closed."""
        pods = {pod.metadata.uid: pod for pod in await self._pods(allocation)}
        waiting: list[BindTarget] = []
        for target in released:
            pod = pods.get(target.uid)
            if pod is None:
                raise StaleError(f"pod {target.pod} of the release no longer exists")
            gate = binding.gate_of(pod)
            if pod.spec.node_name:
                binding.check_place(pod, target.node)
            elif not _is_usable(pod) or pod.metadata.deletion_timestamp is not None:
                raise StaleError(f"pod {target.pod} ended before it was bound")
            elif gate is not None or pod.spec.scheduler_name == SCHEDULER_NAME:
                waiting.append(msgspec.structs.replace(target, gate=gate))
            else:
                binding.check_place(pod, target.node)
        return waiting

    async def _bind(self, namespace: str, target: BindTarget, binder: Binder | None) -> None:
        if binder is not None and target.rank in binder.ranks:
            extender, uid, node = binder.extender, target.uid, target.node
            if await self._extender_binding.bind(extender, namespace, target.pod, uid=uid, node=node):
                return
        try:
            if target.gate is not None:
                await binding.open_gate(
                    self._kube,
                    namespace,
                    target.pod,
                    uid=target.uid,
                    node=target.node,
                    gate=target.gate,
                    now=self._clock.now(),
                )
            else:
                await self._kube.bind(namespace, target.pod, target.uid, target.node)
            if 0 <= target.rank < POD_EVENTS_MAX:
                telemetry.add_event("pod bound", semconv.pod(namespace, target.pod, target.uid, target.node))
        except BoundError:
            await self._check_bound(namespace, target)
        except (NotFoundError, InvalidError) as error:
            raise StaleError(f"pod {target.pod} cannot be bound: {error}") from error

    async def _check_bound(self, namespace: str, target: BindTarget) -> None:
        """Check a pod that is bound already: it has to be the released pod, on its node."""
        try:
            pod = await self._kube.get(PODS, target.pod, namespace=namespace)
        except NotFoundError as error:
            raise StaleError(f"pod {target.pod} of the release no longer exists") from error
        if pod.metadata.uid != target.uid:
            raise StaleError(f"pod {target.pod} is not the released pod")
        binding.check_place(pod, target.node)


def _targets(allocation: Allocation) -> list[BindTarget]:
    """Return the pods of the release with the nodes of the admission, in the order that both have."""
    release, found = allocation.status.release, [each for each in members(allocation) if not each.grown]
    if release is None or len(release.pod_uids) != len(found):
        raise StaleError("the release does not match the admission")
    return [_target(allocation, member) for member in found]


def _target(allocation: Allocation, member: GangMember) -> BindTarget:
    name = manifest.pod_name(allocation, member.rank)
    return BindTarget(pod=name, uid=member.pod_uid, node=member.placement.node, rank=member.rank)


def _with_gates(targets: Sequence[BindTarget], progress: LaunchProgress) -> list[BindTarget]:
    """Return the targets with the gates of the pods that were created for them."""
    if progress.manifests is None or not progress.manifests.is_delegate:
        return list(targets)
    return [
        msgspec.structs.replace(target, gate=binding.gate_of_spec(pod.manifest["spec"]))
        for target, pod in zip(targets, progress.manifests.pods, strict=True)
    ]


def _judge_pod(found: Pod, wanted: RankPod, uid: str) -> AdoptVerdict:
    verdict = judge_existing(found.metadata, uid=uid, spec_hash=wanted.spec_hash)
    return AdoptVerdict.REPLACE if verdict is AdoptVerdict.ADOPT and not _is_usable(found) else verdict


def _is_usable(pod: Pod) -> bool:
    """Whether the pod is pending and has no node. A Failed pod could be bound too, and would then be a failed rank."""
    return pod.status.phase == "Pending" and not pod.spec.node_name
