"""The facts for placement about labels, spreading, volumes and images, of our roles and of all pods."""

from typing import Any

import msgspec

from slipway.crd.meta import (
    LABEL_ALLOCATION,
    LABEL_ALLOCATION_UID,
    LABEL_MANAGED_BY,
    LABEL_ROLE,
    MANAGED_BY,
    ObjectMeta,
)
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, ResourcePool, RoleSpec
from slipway.facts.core_objects import pod_fact
from slipway.facts.custom_resources import allocation_fact
from slipway.kube.objects import Pod
from slipway.model.facts import RoleFact
from slipway.model.lifecycle import Kind
from slipway.model.resources import CPU, GPU, GPU_MILLI, MEMORY

MEBI = 1024 * 1024
SPREAD: dict[str, Any] = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


def _role(template: dict[str, Any], **role: Any) -> RoleFact:
    spec = AllocationSpec(kind=Kind.COMMAND, template=template, ranks=[RoleSpec(**role)])
    meta = ObjectMeta(name="job", namespace="team", uid="u")
    fact = allocation_fact(Allocation(metadata=meta, spec=spec), ResourcePool(metadata=ObjectMeta(name="default")))
    assert not fact.invalid
    return fact.roles[0]


def _pod(meta: dict[str, Any], spec: dict[str, Any]) -> Pod:
    return msgspec.convert({"metadata": {"name": "p", "namespace": "team", **meta}, "spec": spec}, Pod)


def test_labels_of_a_role_are_those_that_its_pods_get() -> None:
    """The labels of a role are those of its pods, from the template; with the namespace they are the target of other
    pods' terms."""
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [_main()]}}
    role = _role(template)
    assert (role.namespace, role.labels) == ("team", {"app": "web"})


def test_a_role_uses_its_own_spread_else_that_of_its_template() -> None:
    """`topologySpreadConstraints` of a role replace the template's."""
    template = {"spec": {"containers": [_main()], "topologySpreadConstraints": [SPREAD]}}
    assert _role(template).spread == (SPREAD,)
    other = {**SPREAD, "maxSkew": 2}
    assert _role(template, topology_spread_constraints=[other]).spread == (other,)


def test_claims_and_images_of_a_role_are_told() -> None:
    """The fact of a role has its claims by name, and the image of each container, init containers first."""
    volumes: list[dict[str, Any]] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "set"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    pod: dict[str, Any] = {
        "containers": [_main()],
        "initContainers": [{"name": "i", "image": "init:1"}],
        "volumes": volumes,
    }
    role = _role({"spec": pod})
    assert (role.claims, role.images) == (("set",), ("init:1", "i:1"))


def test_containers_without_requests_count_in_scores_only() -> None:
    """Containers without requests count only in scores, each as 100m and 200 Mi; when every container has requests, the
    fact has only the requests."""
    said = {"requests": {"cpu": 1, "memory": "1Gi"}}
    both = _pod({}, {"containers": [{"name": "a", "resources": said}, {"name": "b"}]})
    fact = pod_fact(both)
    assert (fact.requests.get(CPU), fact.scored.get(CPU)) == (1000, 1100)
    assert fact.scored.get(MEMORY) == 1224 * MEBI
    assert not pod_fact(_pod({}, {"containers": [{"name": "a", "resources": said}]})).scored.amounts


def test_pods_tell_what_they_want_beside_them() -> None:
    """The fact of a pod has its podAffinity and podAntiAffinity, not its nodeAffinity; its labels without ours; and
    whether it is being deleted."""
    beside = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    affinity = {"podAntiAffinity": beside, "nodeAffinity": {}, "podAffinity": None}
    labels = {"app": "web", LABEL_ALLOCATION_UID: "u", LABEL_ROLE: "worker", LABEL_MANAGED_BY: "slipway"}
    fact = pod_fact(_pod({"labels": labels, "deletionTimestamp": "2026-01-01T00:00:00Z"}, {"affinity": affinity}))
    assert (fact.affinity, fact.labels, fact.role) == ({"podAntiAffinity": beside}, {"app": "web"}, "worker")
    assert fact.leaving
    assert pod_fact(_pod({"labels": {LABEL_MANAGED_BY: "Helm"}}, {})).labels == {LABEL_MANAGED_BY: "Helm"}


def _main() -> dict[str, Any]:
    return {"name": "main", "image": "i:1", "command": ["x"]}


def test_chosen_devices_of_our_pods_are_what_they_use() -> None:
    """The chosen devices of our pods count as used, because they request none from the device plugin; the same
    annotation on other pods is ignored."""
    marks = {"slipway.dev/devices": "0,3"}
    labels = {LABEL_ALLOCATION_UID: "u"}
    whole = pod_fact(_pod({"labels": labels, "annotations": marks}, {"containers": []}))
    assert (whole.devices, whole.requests.amounts) == ((0, 3), {GPU: 2})
    marks = {"slipway.dev/devices": "1", "slipway.dev/gpu-milli": "300"}
    part = pod_fact(_pod({"labels": labels, "annotations": marks}, {"containers": []}))
    assert (part.devices, part.requests.amounts) == ((1,), {GPU_MILLI: 300})
    stranger = pod_fact(_pod({"annotations": marks}, {"containers": []}))
    assert (stranger.devices, stranger.requests.amounts) == ((), {})


def test_labels_that_every_rank_gets_are_told_where_a_role_names_them() -> None:
    """The labels that every rank gets are in the fact of a role that names them: by `matchLabelKeys` the ranks of one
    allocation are distinguished from others; other roles stay equal."""
    own: dict[str, Any] = {**SPREAD, "labelSelector": {}, "matchLabelKeys": [LABEL_ALLOCATION_UID]}
    told = _role({"spec": {"containers": [_main()]}}, topology_spread_constraints=[own]).labels
    assert told == {
        LABEL_ALLOCATION_UID: "u",
        LABEL_ALLOCATION: "job-u",
        LABEL_ROLE: "worker",
        LABEL_MANAGED_BY: MANAGED_BY,
    }
    assert _role({"spec": {"containers": [_main()]}}, topology_spread_constraints=[SPREAD]).labels == {}
