"""The group of an attempt: which of its pods name it, and what it requires."""

import msgspec

from slipway.crd.meta import ObjectMeta
from slipway.crd.v1alpha1 import RankRestart
from slipway.pods.manifest import body_of, grouped
from tests.support.allocations import a_template
from tests.support.builders import an_allocation
from tests.unit.pods.test_manifest import made, manifests_of

DELEGATED = {"binding": "delegate"}
HERE = ObjectMeta(name="c", namespace="default", uid="config-map-uid")


def test_a_pod_that_is_bound_by_us_is_in_no_group() -> None:
    """A pod that we bind, and a single pod, are in no group."""
    for manifests in (made(3), made(1, pool=DELEGATED)):
        assert grouped(manifests) is manifests


def test_a_pod_is_the_same_with_and_without_its_group() -> None:
    """Replicas of two versions adopt each other's pods: so the hash does not cover the name of the group."""
    plain = made(3, pool=DELEGATED)
    found = grouped(plain)
    assert [pod.spec_hash for pod in found.pods] == [pod.spec_hash for pod in plain.pods]
    for pod, was in zip(found.pods, plain.pods, strict=True):
        spec = dict(pod.manifest["spec"])
        assert spec.pop("schedulingGroup") == {"podGroupName": found.group}
        assert spec == was.manifest["spec"]


def test_a_rank_that_starts_again_is_in_no_group_and_is_not_counted() -> None:
    """A restarted rank is in no group and is not counted: its gang has started, and kube-scheduler would wait for pods
    that may have ended."""
    story = an_allocation(3, template=a_template()).assigned()
    status = msgspec.structs.replace(story.it.status, restarted_ranks=[RankRestart(rank=1, n=1)])
    allocation = msgspec.structs.replace(story.it, status=status)
    found = grouped(manifests_of(allocation, pool=DELEGATED))
    assert ["schedulingGroup" in pod.manifest["spec"] for pod in found.pods] == [True, False, True]
    assert body_of(found, allocation.spec, HERE)["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


def test_the_group_has_our_labels_and_belongs_to_the_config_map() -> None:
    """The group has our labels, like all our objects in a workspace, and the ConfigMap owns it, so it needs no
    delete."""
    allocation = an_allocation(2, template=a_template()).assigned().it
    manifests = grouped(manifests_of(allocation, pool=DELEGATED))
    metadata = body_of(manifests, allocation.spec, HERE)["metadata"]
    assert metadata["labels"] == manifests.configmap["metadata"]["labels"]
    assert [(owner["kind"], owner["uid"]) for owner in metadata["ownerReferences"]] == [("ConfigMap", HERE.uid)]
    assert metadata["name"] == manifests.configmap["metadata"]["name"]
