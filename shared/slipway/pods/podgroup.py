"""The PodGroup of an attempt's pods, for attempts whose pods kube-scheduler binds.

Owns which attempts have a group, and its contents. Pure. The caller knows whether the API server serves PodGroups.

Invariants: a group has at least two pods, and requires all of them at once, as the launch does. It names no priority
class, because its pods name none and kube-scheduler requires equal priorities. A rank that was added later, or restarts
in place, names no group: its gang has started already, and kube-scheduler would wait for pods that have ended. The
ConfigMap of the attempt owns the group, so that both are deleted together. The hash of a pod does not include the
group's name, so that a pod of an earlier release without groups has the same hash.

Source: k8s.io/api/scheduling/v1beta1 (PodGroup), pkg/scheduler/schedule_one_podgroup.go, v1.37.
"""

import msgspec

from slipway.crd.meta import ANNOTATION_ADDED, ObjectMeta, RawObject
from slipway.crd.v1alpha1 import AllocationSpec
from slipway.pods.manifest import Manifests, RankPod

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
