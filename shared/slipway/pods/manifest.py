"""Builds the objects of an attempt from an admitted allocation, as plain JSON: ConfigMap, Service, pods, PodGroup.

Owns names, labels, owners, finalizers and the hash by which a pod worker recognises an existing pod as its own. Pure:
the same allocation, spec and pool give the same objects on every replica, except for the trace.

Invariants: every object carries the allocation's uid as a label and as its controlling owner; pods of different
attempts have different names. The hash covers everything except values that may differ between replicas (the trace) and
values that follow from the name (rank, node).

An attempt whose pods kube-scheduler binds has a PodGroup, if the API server serves PodGroups, which the caller knows.
Invariants: a group has at least two pods, and requires all of them at once, as the launch does. It names no priority
class, because its pods name none and kube-scheduler requires equal priorities. A rank that was added later, or restarts
in place, names no group: its gang has started already, and kube-scheduler would wait for pods that have ended. The
ConfigMap of the attempt owns the group, so that both are deleted together. The hash of a pod does not include the
group's name, so that a pod of an earlier release without groups has the same hash.

Source: k8s.io/api/scheduling/v1beta1 (PodGroup), pkg/scheduler/schedule_one_podgroup.go, v1.37.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from slipway.crd import meta
from slipway.crd.hashing import canonical_json, sha256_hex
from slipway.crd.kinds import ENV_CHECKPOINTS
from slipway.crd.members import growth_of, members, positions
from slipway.crd.meta import ANNOTATION_ADDED, ObjectMeta, RawObject
from slipway.crd.resolve import template_of
from slipway.crd.roleresources import checkpoints_of, containers_of, main_container, object_of
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, ResourcePool
from slipway.crd.workspacepods import with_pull_secrets
from slipway.errors import InvalidError
from slipway.model import ids
from slipway.pods import context, devices, files, podspec, rendezvous
from slipway.pods.podspec import PROGRAM_KEY, START_PROGRAM, AttemptNames, RankPlace, TaskOptions, entries_of
from slipway.pods.rendezvous import MASTER_PORT, GangSpec

KEPT_BY_AUTOSCALERS: Mapping[str, str] = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations of ranks that cannot be preempted: no autoscaler evicts them to remove their node. A pod template may
override them. The hash does not include them, so that a pod of an earlier release has the same hash."""


class RankPod(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's pod; `position` is its index in the release."""

    position: int
    rank: int
    name: str
    node: str
    manifest: RawObject

    @property
    def spec_hash(self) -> str:
        """The hash that the annotation of an existing pod must have for the pod to be adopted."""
        return hash_of(self.manifest)


class Manifests(msgspec.Struct, frozen=True, kw_only=True):
    """All objects of one attempt; `service` is None when the attempt has one rank and cannot get more."""

    configmap: RawObject
    service: RawObject | None
    pods: tuple[RankPod, ...]
    is_delegate: bool = False
    """kube-scheduler binds the pods, after their scheduling gates are removed"""
    group: str = ""
    """the PodGroup that the pods name (`manifest.py`); empty for none"""


def build(
    allocation: Allocation,
    spec: AllocationSpec,
    pool: ResourcePool,
    *,
    options: TaskOptions,
    traceparent: str = "",
    pull_secrets: Sequence[str] = (),
) -> Manifests:
    """Return the objects of the current attempt, for the resolved `spec`; `pull_secrets` are those of its workspace.

    Raises:
        InvalidError: no pods can be made from the spec; TooLargeError: the files do not fit into a ConfigMap.
    """
    spec = with_pull_secrets(spec, pull_secrets)
    if _has_resource_claims(spec):
        pool = delegating(pool)
    places = places_of(allocation, spec)
    names = _names(allocation, spec)
    bundle = files.bundle_of(spec.files)
    envelope = _Envelope(allocation, names)
    growth = growth_of(allocation)
    added = {place.rank: str(growth.n) for place in growth.placements} if growth is not None else {}
    added |= {each.rank: str(each.n) for each in allocation.status.restarted_ranks}
    program = {context.PROGRAM_KEY: context.PROGRAM} if spec.context else {}
    if any(role.depends_on for role in spec.ranks):
        program[PROGRAM_KEY] = START_PROGRAM
    configmap: RawObject = {"immutable": True, "data": {**bundle.data, **program, **entries_of(spec.kind)}}
    if bundle.binary:
        configmap["binaryData"] = bundle.binary
    return Manifests(
        configmap=envelope.wrap("ConfigMap", names.bundle, configmap),
        service=envelope.wrap("Service", names.service, _service_body(envelope)) if names.service else None,
        pods=_pods(envelope, spec, pool, places, added, bundle=bundle, options=options, traceparent=traceparent),
        is_delegate=pool.spec.binding == "delegate",
    )


def delegating(pool: ResourcePool) -> ResourcePool:
    """Return the pool with delegated binding (kube-scheduler binds), for an attempt that needs it."""
    return msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, binding="delegate"))


def _has_resource_claims(spec: AllocationSpec) -> bool:
    """Whether a pod requests devices by resource claims, which only kube-scheduler can allocate."""
    templates = [spec.template, *(role.template for role in spec.ranks)]
    return any(object_of(object_of(template).get("spec")).get("resourceClaims") for template in templates)


def places_of(allocation: Allocation, spec: AllocationSpec) -> tuple[RankPlace, ...]:
    """Return the launched ranks in the order of the release: the admission's placements by rank, then the added ranks.

    Raises:
        InvalidError: the admission has no placement, or one for a rank that the spec does not have.
    """
    standing = members(allocation)
    roles = [role.name for role in spec.ranks for _ in range(role.count)]
    gpus = {role.name: rendezvous.gpus_of(role.resources) for role in spec.ranks}
    if not standing or max(member.rank for member in standing) >= len(roles):
        raise InvalidError(f"the admission of {id_of(allocation)} does not match its ranks")
    place_of = positions(allocation)
    return tuple(
        RankPlace(
            rank=member.rank,
            position=place_of[member.rank],
            world_size=len(standing),
            pod=pod_name(allocation, member.rank),
            node=member.placement.node,
            role=roles[member.rank],
            devices=tuple(member.placement.device),
            gpus=gpus[roles[member.rank]],
        )
        for member in standing
    )


def pod_name(allocation: Allocation, rank: int) -> str:
    """Return the name of a rank's pod in the current attempt."""
    return ids.pod_name(id_of(allocation), allocation.status.attempt, rank)


def hash_of(manifest: Mapping[str, Any]) -> str:
    """Return the hash in the annotation of an object of ours; empty when it has none."""
    annotations = object_of(object_of(manifest["metadata"]).get("annotations"))
    return str(annotations.get(meta.ANNOTATION_SPEC_HASH, ""))


class _Envelope:
    """The metadata that all objects of an attempt share: namespace, labels, owner."""

    def __init__(self, allocation: Allocation, names: AttemptNames) -> None:
        self.names = names
        self.annotations = {meta.ANNOTATION_USER: user_of(allocation, "")}
        self.selector = {
            meta.LABEL_ALLOCATION_UID: allocation.metadata.uid,
            meta.LABEL_ATTEMPT: str(allocation.status.attempt),
        }
        self.labels = {
            **self.selector,
            meta.LABEL_ALLOCATION: str(names.allocation),
            meta.LABEL_MANAGED_BY: meta.MANAGED_BY,
            meta.LABEL_POOL: allocation.spec.pool,
        }
        self.owners: list[RawObject] = [
            {
                "apiVersion": meta.GROUP_VERSION,
                "kind": "Allocation",
                "name": allocation.metadata.name,
                "uid": allocation.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]

    def metadata(self, name: str, spec_hash: str) -> RawObject:
        annotations = {key: value for key, value in self.annotations.items() if value}
        return {
            "name": name,
            "namespace": self.names.namespace,
            "labels": dict(self.labels),
            "annotations": {**annotations, meta.ANNOTATION_SPEC_HASH: spec_hash},
            "ownerReferences": self.owners,
        }

    def wrap(self, kind: str, name: str, body: RawObject) -> RawObject:
        metadata = self.metadata(name, sha256_hex(canonical_json(body)))
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **body}


def _names(allocation: Allocation, spec: AllocationSpec) -> AttemptNames:
    bundle = ids.bundle_name(id_of(allocation), allocation.status.attempt)
    return AttemptNames(
        allocation=id_of(allocation),
        namespace=allocation.metadata.namespace,
        attempt=allocation.status.attempt,
        bundle=bundle,
        # An attempt that starts with one rank may grow; the Service lets added ranks find the first.
        service=bundle if _is_gang(allocation, spec) else "",
        first_pod=pod_name(allocation, min(positions(allocation).items(), key=_position)[0]),
    )


def _service_body(envelope: _Envelope) -> RawObject:
    """Return the body of a headless Service that publishes addresses before readiness, because ranks meet while they
    start."""
    return {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": envelope.selector,
            "ports": [{"name": "rendezvous", "port": MASTER_PORT, "targetPort": MASTER_PORT}],
        }
    }


def _pods(
    envelope: _Envelope,
    spec: AllocationSpec,
    pool: ResourcePool,
    places: Sequence[RankPlace],
    added: Mapping[int, str],
    *,
    bundle: files.ContextBundle,
    options: TaskOptions,
    traceparent: str,
) -> tuple[RankPod, ...]:
    """Return the pods. Base and hash are computed once per role, so that a gang of thousands of ranks is cheap."""
    gang = _gang_of(envelope.names, spec, places)
    launchers: dict[tuple[str, bool], list[podspec.EnvVar]] = {}
    bases: dict[str, RawObject] = {}
    hashes: dict[str, str] = {}
    mains: dict[str, str] = {}
    for role in spec.ranks:
        bases[role.name] = podspec.role_base(
            spec,
            role,
            pool.spec,
            bundle=bundle,
            bundle_name=envelope.names.bundle,
            options=options,
            user=envelope.annotations[meta.ANNOTATION_USER],
            values_name=ids.values_name(envelope.selector[meta.LABEL_ALLOCATION_UID]),
        )
        template = template_of(spec, role)
        mains[role.name] = str(containers_of(template)[main_container(template)]["name"])
        gpus = rendezvous.gpus_of(role.resources)
        for is_first in (False, True):
            told = rendezvous.launcher_variables(gang, gpus, is_first=is_first)
            launchers[role.name, is_first] = podspec.variables(told | {ENV_CHECKPOINTS: checkpoints_of(template)})
        shape: RawObject = {"base": bases[role.name], "world": len(places), "api": options.api_url}
        if launchers[role.name, False]:
            shape["launcher"] = launchers[role.name, False]
        if spec.service is not None:
            shape["service"] = spec.service.name
        hashes[role.name] = sha256_hex(canonical_json(shape))
    made: list[RankPod] = []
    kept: Mapping[str, str] = {} if spec.preemptible else KEPT_BY_AUTOSCALERS
    has_files = bool(bundle.items)
    for place in places:
        base = bases[place.role]
        pod = podspec.rank_spec(
            devices.base_of(base["spec"], place.devices),
            envelope.names,
            place,
            podspec.rank_env(envelope.names, place, options, traceparent, serves=bool(spec.ports), has_files=has_files),
            main=mains[place.role],
            launcher=launchers[place.role, place.position == 0],
        )
        metadata = envelope.metadata(place.pod, hashes[place.role])
        metadata["labels"] = {**base["metadata"]["labels"], **metadata["labels"], **_labels_of(place, spec)}
        metadata["annotations"] = {
            **kept,
            **base["metadata"]["annotations"],
            **metadata["annotations"],
            meta.ANNOTATION_MAIN_CONTAINER: mains[place.role],
            **({meta.ANNOTATION_TRACE: traceparent} if traceparent else {}),
            **_devices_of(base["spec"], place),
            **({meta.ANNOTATION_ADDED: added[place.rank]} if place.rank in added else {}),
        }
        metadata["finalizers"] = [meta.TRACKING_FINALIZER]
        manifest: RawObject = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}
        made.append(
            RankPod(position=place.position, rank=place.rank, name=place.pod, node=place.node, manifest=manifest)
        )
    return tuple(made)


def _labels_of(place: RankPlace, spec: AllocationSpec) -> dict[str, str]:
    """Return the labels that identify the rank; the Service that the spec names selects the first rank."""
    labels = {meta.LABEL_RANK: str(place.rank), meta.LABEL_ROLE: place.role}
    return labels | ({meta.LABEL_SERVICE: spec.service.name} if spec.service is not None and not place.position else {})


def _gang_of(names: AttemptNames, spec: AllocationSpec, places: Sequence[RankPlace]) -> GangSpec:
    wanted = sum(role.count for role in spec.ranks)
    return GangSpec(id=names.bundle, size=len(places), wanted=wanted, minimum=spec.min_available or wanted)


def _devices_of(base: RawObject, place: RankPlace) -> dict[str, str]:
    """Return the annotations with the GPUs that a rank was assigned, and with the part when it uses a part of one."""
    if not place.devices:
        return {}
    milli = devices.milli_of(base)
    told = {meta.ANNOTATION_DEVICES: ",".join(map(str, place.devices))}
    return told | ({meta.ANNOTATION_GPU_MILLI: milli} if milli else {})


def _is_gang(allocation: Allocation, spec: AllocationSpec) -> bool:
    """Whether it has, or may get, more than one rank."""
    wanted = sum(role.count for role in spec.ranks)
    minimum = spec.min_available or wanted
    return wanted > 1 and (minimum < wanted or len(members(allocation)) > 1)


def _position(item: tuple[int, int]) -> int:
    return item[1]


PODS_MIN = 2
API_VERSION, KIND = "scheduling.k8s.io/v1beta1", "PodGroup"


def grouped(manifests: Manifests) -> Manifests:
    """Return `manifests` with pods that name their group; unchanged when they form no group."""
    together = _together(manifests)
    if not manifests.is_delegate or len(together) < PODS_MIN:
        return manifests
    name = str(manifests.configmap["metadata"]["name"])
    pods = tuple(_named(pod, name) if pod in together else pod for pod in manifests.pods)
    return msgspec.structs.replace(manifests, pods=pods, group=name)


def body_of(manifests: Manifests, spec: AllocationSpec, config_map: ObjectMeta) -> RawObject:
    """Return the group that the pods of `manifests` name; `config_map` is the created ConfigMap of the attempt."""
    together = [pod for pod in manifests.pods if "schedulingGroup" in pod.manifest["spec"]]
    wanted = sum(role.count for role in spec.ranks)
    is_elastic = (spec.min_available or wanted) < wanted
    group: RawObject = {
        "schedulingPolicy": {"gang": {"minCount": len(together)}},
        # The loss of one rank ends a gang that cannot shrink, so kube-scheduler should disrupt all of its pods
        # together.
        "disruptionMode": {"single": {}} if is_elastic else {"all": {}},
    }
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": config_map.name, "uid": config_map.uid}
    metadata = {
        "name": manifests.group,
        "namespace": config_map.namespace,
        "labels": dict(manifests.configmap["metadata"]["labels"]),
        "ownerReferences": [owner],
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": group}


def _together(manifests: Manifests) -> tuple[RankPod, ...]:
    """Return the pods that start together: those of ranks that were neither added later nor restarted."""
    return tuple(pod for pod in manifests.pods if ANNOTATION_ADDED not in pod.manifest["metadata"]["annotations"])


def _named(pod: RankPod, group: str) -> RankPod:
    spec = {**pod.manifest["spec"], "schedulingGroup": {"podGroupName": group}}
    return msgspec.structs.replace(pod, manifest={**pod.manifest, "spec": spec})
