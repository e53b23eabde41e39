"""The group of kube-scheduler that the pods of an attempt make up, where kube-scheduler binds them.

Owns which attempts have one, and what it says. Pure. Whether the API server serves groups is for others to know.

Invariants: a group has at least two pods, and asks for all of them at once, as the launch does. It names no class of
priority, as its pods do not: kube-scheduler wants the priority of both to be the same. A rank that was added later, or
starts again in its place, names no group: its gang has started, and kube-scheduler would wait for mates that have ended
already. The group belongs to the ConfigMap of the attempt and goes with it. Its name is not part of the hash of a pod:
a pod of an earlier release, which knew no groups, is the same pod.

Source: k8s.io/api/scheduling/v1beta1 (PodGroup), pkg/scheduler/schedule_one_podgroup.go, v1.37.
"""

import msgspec

from slipway.crd.meta import ANNOTATION_ADDED, ObjectMeta, RawObject
from slipway.crd.v1alpha1 import AllocationSpec
from slipway.pods.manifest import Manifests, RankPod

PODS_MIN = 2
API_VERSION, KIND = "scheduling.k8s.io/v1beta1", "PodGroup"


def grouped(manifests: Manifests) -> Manifests:
    """The same with pods that name their group; unchanged where they make up none."""
    together = _together(manifests)
    if not manifests.is_delegate or len(together) < PODS_MIN:
        return manifests
    name = str(manifests.configmap["metadata"]["name"])
    pods = tuple(_named(pod, name) if pod in together else pod for pod in manifests.pods)
    return msgspec.structs.replace(manifests, pods=pods, group=name)


def body_of(manifests: Manifests, spec: AllocationSpec, config_map: ObjectMeta) -> RawObject:
    """The group that the pods of `manifests` name; `config_map` is that of the attempt, as it was made."""
    together = [pod for pod in manifests.pods if "schedulingGroup" in pod.manifest["spec"]]
    wanted = sum(role.count for role in spec.ranks)
    is_elastic = (spec.min_available or wanted) < wanted
    group: RawObject = {
        "schedulingPolicy": {"gang": {"minCount": len(together)}},
        # The loss of one rank ends a gang that cannot shrink: whoever takes one takes all.
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
    """The pods that start together: those of the ranks that were there from the start and have not started yet."""
    return tuple(pod for pod in manifests.pods if ANNOTATION_ADDED not in pod.manifest["metadata"]["annotations"])


def _named(pod: RankPod, group: str) -> RankPod:
    spec = {**pod.manifest["spec"], "schedulingGroup": {"podGroupName": group}}
    return msgspec.structs.replace(pod, manifest={**pod.manifest, "spec": spec})
