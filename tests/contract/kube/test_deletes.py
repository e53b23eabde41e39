"""Deleting: preconditions, finalizers, grace, propagation, garbage collection, namespaces."""

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import a_config, a_pod, a_widget, owned_by

FINALIZER = "slipway.dev/test"
NAMESPACE_S = 60.0
"""A namespace controller that found remaining content looks again only after a pause."""


async def _bound_pod(kube: KubeHttp, ns: NamespacePaths, **meta: object) -> None:
    assert (await kube.post(ns.of("pods"), a_pod(meta=dict(meta)))).code == 201
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "contract-node"}}
    assert (await kube.post(ns.of("pods", "p", "binding"), binding)).code == 201


async def test_delete_answers_success_and_the_object_is_gone(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A ConfigMap is deleted at once; the answer is a Status with its uid."""
    made = await kube.post(ns.of("configmaps"), a_config())
    answer = await kube.delete(ns.of("configmaps", "c"))
    assert (answer.code, answer.body["status"]) == (200, "Success")
    assert answer.body["details"]["uid"] == made.uid
    assert (await kube.get(ns.of("configmaps", "c"))).code == 404


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
async def test_failed_precondition_is_a_conflict(kube: KubeHttp, ns: NamespacePaths, field: str) -> None:
    """A wrong uid or resourceVersion as a precondition gets 409, and the object stays."""
    await kube.post(ns.of("configmaps"), a_config())
    answer = await kube.delete(ns.of("configmaps", "c"), {"preconditions": {field: "1"}})
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert (await kube.get(ns.of("configmaps", "c"))).code == 200


async def test_finalizer_keeps_a_deleted_object(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """deletionTimestamp is set; the object stays until its last finalizer is removed."""
    widget = a_widget()
    widget["metadata"]["finalizers"] = [FINALIZER]
    await kube.post(widgets.widgets(), widget)
    answer = await kube.delete(widgets.widgets("w"))
    assert answer.body["metadata"]["deletionTimestamp"]
    assert (await kube.get(widgets.widgets("w"))).code == 200
    await kube.patch(widgets.widgets("w"), {"metadata": {"finalizers": None}})
    assert (await kube.get(widgets.widgets("w"))).code == 404


async def test_deleting_adds_to_the_generation(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A delete that only marks the object changes its intent, so the generation rises."""
    widget = a_widget()
    widget["metadata"]["finalizers"] = [FINALIZER]
    await kube.post(widgets.widgets(), widget)
    answer = await kube.delete(widgets.widgets("w"))
    assert answer.body["metadata"]["generation"] == 2
    await kube.patch(widgets.widgets("w"), {"metadata": {"finalizers": None}})


async def test_no_finalizer_is_added_once_deleting(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A new finalizer gets 422 with a Forbidden cause."""
    widget = a_widget()
    widget["metadata"]["finalizers"] = [FINALIZER]
    await kube.post(widgets.widgets(), widget)
    await kube.delete(widgets.widgets("w"))
    answer = await kube.patch(widgets.widgets("w"), {"metadata": {"finalizers": [FINALIZER, "slipway.dev/more"]}})
    assert answer.code == 422
    assert "no new finalizers can be added if the object is being deleted" in answer.message
    await kube.patch(widgets.widgets("w"), {"metadata": {"finalizers": None}})


async def test_name_stays_in_use_while_the_object_is_deleting(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A create under the name gets 409 AlreadyExists until the last finalizer is removed."""
    await kube.post(ns.of("configmaps"), a_config(finalizers=[FINALIZER]))
    await kube.delete(ns.of("configmaps", "c"))
    assert (await kube.post(ns.of("configmaps"), a_config())).reason == "AlreadyExists"
    await kube.patch(ns.of("configmaps", "c"), {"metadata": {"finalizers": None}})
    assert (await kube.post(ns.of("configmaps"), a_config())).code == 201


async def test_unbound_pod_goes_at_once(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An unbound pod runs nothing, so it has no grace."""
    await kube.post(ns.of("pods"), a_pod())
    assert (await kube.delete(ns.of("pods", "p"))).code == 200
    assert (await kube.get(ns.of("pods", "p"))).code == 404


async def test_bound_pod_waits_for_its_kubelet(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A delete marks a bound pod with its grace; the kubelet's delete with grace 0 removes it."""
    await _bound_pod(kube, ns)
    answer = await kube.delete(ns.of("pods", "p"))
    meta = answer.body["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 30
    assert meta["deletionTimestamp"] > meta["creationTimestamp"]
    assert (await kube.get(ns.of("pods", "p"))).code == 200
    await kube.delete(ns.of("pods", "p"), {"gracePeriodSeconds": 0})
    assert (await kube.get(ns.of("pods", "p"))).code == 404


async def test_grace_can_be_shortened_but_not_lengthened(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A second delete with less grace brings the end nearer; one with more changes nothing."""
    await _bound_pod(kube, ns)
    first = await kube.delete(ns.of("pods", "p"), {"gracePeriodSeconds": 20})
    longer = await kube.delete(ns.of("pods", "p"), {"gracePeriodSeconds": 60})
    shorter = await kube.delete(ns.of("pods", "p"), {"gracePeriodSeconds": 5})
    found = [each.body["metadata"]["deletionGracePeriodSeconds"] for each in (first, longer, shorter)]
    assert found == [20, 20, 5]
    assert shorter.body["metadata"]["deletionTimestamp"] < first.body["metadata"]["deletionTimestamp"]
    await kube.delete(ns.of("pods", "p"), {"gracePeriodSeconds": 0})


async def test_finished_pod_goes_at_once(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A Succeeded or Failed pod has no grace."""
    await _bound_pod(kube, ns)
    await kube.patch(ns.of("pods", "p", "status"), {"status": {"phase": "Succeeded"}})
    await kube.delete(ns.of("pods", "p"))
    assert (await kube.get(ns.of("pods", "p"))).code == 404


async def test_pod_that_finishes_after_its_delete_waits_for_its_kubelet(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A second delete shortens its grace, as for any other pod; grace 0 deletes it."""
    await _bound_pod(kube, ns)
    await kube.delete(ns.of("pods", "p"))
    await kube.patch(ns.of("pods", "p", "status"), {"status": {"phase": "Failed"}})
    shorter = await kube.delete(ns.of("pods", "p"), {"gracePeriodSeconds": 20})
    assert shorter.body["metadata"]["deletionGracePeriodSeconds"] == 20
    assert (await kube.get(ns.of("pods", "p"))).code == 200
    await kube.delete(ns.of("pods", "p"), {"gracePeriodSeconds": 0})
    assert (await kube.get(ns.of("pods", "p"))).code == 404


async def test_pod_with_a_finalizer_outlives_its_kubelet(kube: KubeHttp, ns: NamespacePaths) -> None:
    """After the delete with grace 0 the pod stays for its finalizer, and is deleted with it."""
    await _bound_pod(kube, ns, finalizers=[FINALIZER])
    await kube.delete(ns.of("pods", "p"))
    await kube.delete(ns.of("pods", "p"), {"gracePeriodSeconds": 0})
    left = await kube.get(ns.of("pods", "p"))
    assert (left.code, left.body["metadata"]["deletionGracePeriodSeconds"]) == (200, 0)
    await kube.patch(ns.of("pods", "p"), {"metadata": {"finalizers": None}})
    assert (await kube.get(ns.of("pods", "p"))).code == 404


async def test_finalizer_removed_first_leaves_the_pod_to_its_kubelet(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Within its grace a pod without finalizers still stays."""
    await _bound_pod(kube, ns, finalizers=[FINALIZER])
    await kube.delete(ns.of("pods", "p"))
    await kube.patch(ns.of("pods", "p"), {"metadata": {"finalizers": None}})
    assert (await kube.get(ns.of("pods", "p"))).code == 200
    await kube.delete(ns.of("pods", "p"), {"gracePeriodSeconds": 0})


async def test_eviction_deletes_the_pod(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Without a disruption budget an eviction is a delete."""
    await kube.post(ns.of("pods"), a_pod())
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    answer = await kube.post(ns.of("pods", "p", "eviction"), body)
    assert (answer.code, answer.body["status"]) == (201, "Success")
    assert (await kube.get(ns.of("pods", "p"))).code == 404


async def test_delete_collection_follows_its_selector(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Only objects that the selector selects are deleted."""
    await kube.post(ns.of("configmaps"), a_config("a", labels={"go": "yes"}))
    await kube.post(ns.of("configmaps"), a_config("b"))
    await kube.delete(ns.of("configmaps"), labelSelector="go=yes")
    left = (await kube.get(ns.of("configmaps"))).names
    assert "a" not in left
    assert "b" in left


@pytest.mark.usefixtures("controllers")
async def test_dependents_of_a_deleted_owner_are_collected(kube: KubeHttp, ns: NamespacePaths) -> None:
    """With background propagation the dependent is deleted after the owner."""
    owner = (await kube.post(ns.of("configmaps"), a_config("owner"))).body
    await kube.post(ns.of("configmaps"), a_config("child", ownerReferences=[owned_by(owner)]))
    await kube.delete(ns.of("configmaps", "owner"), {"propagationPolicy": "Background"})

    async def is_gone() -> bool:
        return (await kube.get(ns.of("configmaps", "child"))).code == 404

    await eventually(is_gone, "the dependent is collected")


@pytest.mark.usefixtures("controllers")
async def test_owner_of_another_uid_counts_as_absent(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A re-created owner does not keep the dependents of its predecessor."""
    owner = (await kube.post(ns.of("configmaps"), a_config("owner"))).body
    stranger = {**owned_by(owner), "uid": "00000000-0000-0000-0000-00000000dead"}
    await kube.post(ns.of("configmaps"), a_config("child", ownerReferences=[stranger]))

    async def is_gone() -> bool:
        return (await kube.get(ns.of("configmaps", "child"))).code == 404

    await eventually(is_gone, "the dependent of an absent uid is collected")


@pytest.mark.usefixtures("controllers")
async def test_dependent_with_a_living_owner_stays(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A dependent of two owners stays when one of them is deleted."""
    one = (await kube.post(ns.of("configmaps"), a_config("one"))).body
    two = (await kube.post(ns.of("configmaps"), a_config("two"))).body
    await kube.post(ns.of("configmaps"), a_config("child", ownerReferences=[owned_by(one), owned_by(two)]))
    await kube.delete(ns.of("configmaps", "one"), {"propagationPolicy": "Background"})

    async def has_one_owner() -> bool:
        child = await kube.get(ns.of("configmaps", "child"))
        return [each["name"] for each in child.body["metadata"]["ownerReferences"]] == ["two"]

    await eventually(has_one_owner, "the absent owner is struck off")


@pytest.mark.usefixtures("controllers")
async def test_orphaned_dependents_stay(kube: KubeHttp, ns: NamespacePaths) -> None:
    """With propagationPolicy Orphan the owner is deleted, and the dependent loses its reference."""
    owner = (await kube.post(ns.of("configmaps"), a_config("owner"))).body
    await kube.post(ns.of("configmaps"), a_config("child", ownerReferences=[owned_by(owner)]))
    await kube.delete(ns.of("configmaps", "owner"), {"propagationPolicy": "Orphan"})

    async def is_orphan() -> bool:
        owner_code = (await kube.get(ns.of("configmaps", "owner"))).code
        child = await kube.get(ns.of("configmaps", "child"))
        return owner_code == 404 and "ownerReferences" not in child.body["metadata"]

    await eventually(is_orphan, "the owner is gone and the dependent orphaned")


@pytest.mark.usefixtures("controllers")
async def test_foreground_owner_waits_for_blocking_dependents(kube: KubeHttp, ns: NamespacePaths) -> None:
    """With propagationPolicy Foreground the owner is deleted only after its blocking dependents."""
    owner = (await kube.post(ns.of("configmaps"), a_config("owner"))).body
    reference = owned_by(owner, blockOwnerDeletion=True)
    await kube.post(ns.of("configmaps"), a_config("child", finalizers=[FINALIZER], ownerReferences=[reference]))
    marked = await kube.delete(ns.of("configmaps", "owner"), {"propagationPolicy": "Foreground"})
    assert "foregroundDeletion" in marked.body["metadata"]["finalizers"]

    async def child_is_deleting() -> bool:
        return "deletionTimestamp" in (await kube.get(ns.of("configmaps", "child"))).body["metadata"]

    await eventually(child_is_deleting, "the dependent is being deleted")
    assert (await kube.get(ns.of("configmaps", "owner"))).code == 200
    await kube.patch(ns.of("configmaps", "child"), {"metadata": {"finalizers": None}})

    async def owner_is_gone() -> bool:
        return (await kube.get(ns.of("configmaps", "owner"))).code == 404

    await eventually(owner_is_gone, "the owner follows its dependent")


async def test_terminating_namespace_refuses_creates(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A create gets 403 with the cause NamespaceTerminating."""
    await kube.post(ns.of("configmaps"), a_config(finalizers=[FINALIZER]))
    marked = await kube.delete(ns.path)
    assert marked.body["status"]["phase"] == "Terminating"
    answer = await kube.post(ns.of("configmaps"), a_config("late"))
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert "NamespaceTerminating" in [cause["reason"] for cause in answer.causes]
    await kube.patch(ns.of("configmaps", "c"), {"metadata": {"finalizers": None}})


@pytest.mark.usefixtures("controllers")
async def test_namespace_goes_when_it_is_empty(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """The content of a namespace is deleted, then the namespace itself."""
    await kube.post(widgets.of("configmaps"), a_config())
    await kube.post(widgets.widgets(), a_widget())
    await kube.delete(widgets.path)

    async def is_gone() -> bool:
        return (await kube.get(widgets.path)).code == 404

    await eventually(is_gone, "the namespace is gone", within_s=NAMESPACE_S)
    assert (await kube.get(widgets.widgets("w"))).code == 404


@pytest.mark.usefixtures("controllers")
async def test_namespace_deletes_pods_before_custom_resources(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """While a pod's finalizer blocks, the other content is not marked as deleted."""
    await kube.post(widgets.of("pods"), a_pod(meta={"finalizers": [FINALIZER]}))
    await kube.post(widgets.widgets(), a_widget())
    await kube.delete(widgets.path)

    async def pod_is_deleting() -> bool:
        return "deletionTimestamp" in (await kube.get(widgets.of("pods", "p"))).body["metadata"]

    await eventually(pod_is_deleting, "the pod is being deleted", within_s=60)
    widget = await kube.get(widgets.widgets("w"))
    assert "deletionTimestamp" not in widget.body["metadata"]
    await kube.patch(widgets.of("pods", "p"), {"metadata": {"finalizers": None}})

    async def is_gone() -> bool:
        return (await kube.get(widgets.path)).code == 404

    await eventually(is_gone, "the namespace is gone", within_s=NAMESPACE_S)
