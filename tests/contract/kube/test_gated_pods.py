"""Gated pods: what may change while a pod has a scheduling gate, and how the gate is removed.

A launch that leaves the binding to kube-scheduler relies on these rules: one write pins the node and removes the gate,
and nothing else of the pod can change meanwhile.
"""

from typing import Any

import pytest

from tests.contract.kube.client import JSON_PATCH, KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import Json, a_pod

GATE, OTHER = {"name": "slipway.dev/gate"}, {"name": "example.com/quota"}
HERE = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
SSD = {"key": "disk", "operator": "In", "values": ["ssd"]}
FAST = {"key": "speed", "operator": "Exists"}


def _required(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def _away_from(app: str) -> Json:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


async def _gated(kube: KubeHttp, ns: NamespacePaths, *gates: Json, **spec: Any) -> None:
    made = await kube.post(ns.of("pods"), a_pod(schedulingGates=list(gates) or [GATE], **spec))
    assert made.code == 201, made.body


async def _set(kube: KubeHttp, ns: NamespacePaths, **fields: Any) -> Reply:
    change = [{"op": "add", "path": f"/spec/{field}", "value": value} for field, value in fields.items()]
    return await kube.patch(ns.of("pods", "p"), change, JSON_PATCH)


async def test_gated_pod_says_so(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A gated pod has PodScheduled=False with the reason SchedulingGated from its creation on; an ungated pod has no
    such condition yet."""
    await _gated(kube, ns, schedulerName="nobody")
    await kube.post(ns.of("pods"), a_pod("free", schedulerName="nobody"))
    conditions = (await kube.get(ns.of("pods", "p"))).body["status"]["conditions"]
    [told] = [item for item in conditions if item["type"] == "PodScheduled"]
    assert (told["status"], told["reason"]) == ("False", "SchedulingGated")
    assert told["message"] == "Scheduling is blocked due to non-empty scheduling gates"
    free = (await kube.get(ns.of("pods", "free"))).body
    assert not [item for item in free["status"].get("conditions", []) if item["type"] == "PodScheduled"]


async def test_gated_pod_has_no_node(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A pod with a gate and a node gets 422."""
    answer = await kube.post(ns.of("pods"), a_pod(schedulingGates=[GATE], nodeName="n1"))
    assert answer.code == 422
    assert "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared" in answer.message


@pytest.mark.parametrize("gates", [[GATE, GATE], [{"name": ""}], [{"name": "a b"}]])
async def test_gates_have_names_of_their_own(kube: KubeHttp, ns: NamespacePaths, gates: list[Json]) -> None:
    """Gates without a name, with a bad one, or with the same one twice get 422."""
    assert (await kube.post(ns.of("pods"), a_pod(schedulingGates=gates))).code == 422


async def test_node_is_pinned_and_the_gate_removed_in_one_write(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The server checks whether the pod was gated before the write."""
    await _gated(kube, ns, schedulerName="nobody")
    change: list[Json] = [
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE["name"]},
        {"op": "add", "path": "/spec/affinity", "value": _required({"matchFields": [HERE]})},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]
    opened = await kube.patch(ns.of("pods", "p"), change, JSON_PATCH)
    assert opened.code == 200, opened.body
    assert not opened.body["spec"].get("schedulingGates")
    assert opened.body["spec"]["affinity"] == _required({"matchFields": [HERE]})


async def test_failed_test_of_a_json_patch_changes_nothing(kube: KubeHttp, ns: NamespacePaths) -> None:
    """When the tested gate is another one or missing, the patch gets 422."""
    await _gated(kube, ns, OTHER, GATE)
    wrong: list[Json] = [
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE["name"]},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]
    assert (await kube.patch(ns.of("pods", "p"), wrong, JSON_PATCH)).code == 422
    beyond: list[Json] = [{"op": "remove", "path": "/spec/schedulingGates/5"}]
    assert (await kube.patch(ns.of("pods", "p"), beyond, JSON_PATCH)).code == 422
    assert (await kube.get(ns.of("pods", "p"))).body["spec"]["schedulingGates"] == [OTHER, GATE]


async def test_one_gate_of_several_is_removed(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The other gates stay, and the pod still cannot be bound."""
    await _gated(kube, ns, OTHER, GATE, schedulerName="nobody")
    change: list[Json] = [{"op": "remove", "path": "/spec/schedulingGates/1"}]
    opened = await kube.patch(ns.of("pods", "p"), change, JSON_PATCH)
    assert (opened.code, opened.body["spec"]["schedulingGates"]) == (200, [OTHER])
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    assert (await kube.post(ns.of("pods", "p", "binding"), binding)).code == 409


async def test_gate_is_never_added(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A new gate gets 422, on a gated pod and on a free one."""
    await _gated(kube, ns)
    answer = await _set(kube, ns, schedulingGates=[GATE, OTHER])
    assert answer.code == 422
    assert "only deletion is allowed" in answer.message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, _required({"matchFields": [HERE]})),
        (_required({"matchExpressions": [SSD]}), _required({"matchExpressions": [SSD], "matchFields": [HERE]})),
        (_required({"matchExpressions": [SSD]}), _required({"matchExpressions": [SSD, FAST]})),
        (
            _required({"matchExpressions": [SSD]}, {"matchExpressions": [FAST]}),
            _required(
                {"matchExpressions": [SSD], "matchFields": [HERE]}, {"matchExpressions": [FAST], "matchFields": [HERE]}
            ),
        ),
        (_away_from("a"), {**_away_from("a"), **_required({"matchFields": [HERE]})}),
    ],
)
async def test_node_affinity_of_a_gated_pod_is_narrowed(
    kube: KubeHttp, ns: NamespacePaths, before: Json | None, after: Json
) -> None:
    """Each term may get more requirements; where nothing was required, any affinity may be set."""
    await _gated(kube, ns, **({"affinity": before} if before else {}))
    answer = await _set(kube, ns, affinity=after)
    assert answer.code == 200, answer.body
    assert answer.body["spec"]["affinity"] == after


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (_required({"matchExpressions": [SSD]}), _required({"matchExpressions": [FAST]}), "only additions are allowed"),
        (_required({"matchExpressions": [SSD]}), _required({"matchFields": [HERE]}), "only additions are allowed"),
        (
            _required({"matchExpressions": [SSD]}),
            _required({"matchExpressions": [SSD]}, {"matchFields": [HERE]}),
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        ),
        (
            _required({"matchExpressions": [SSD]}, {"matchFields": [HERE]}),
            _required({"matchFields": [HERE]}),
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        ),
        (_required({"matchExpressions": [SSD]}), {}, "no additions/deletions"),
        (_required({"matchExpressions": []}), _required({"matchFields": [HERE]}), "only additions are allowed"),
        (_away_from("a"), _away_from("b"), "pod updates may not change fields other than"),
        (_away_from("a"), _required({"matchFields": [HERE]}), "pod updates may not change fields other than"),
    ],
)
async def test_affinity_of_a_gated_pod_is_not_widened(
    kube: KubeHttp, ns: NamespacePaths, before: Json, after: Json, says: str
) -> None:
    """A change that removes a requirement gets 422, and the affinity to other pods is fixed."""
    await _gated(kube, ns, affinity=before)
    answer = await _set(kube, ns, affinity=after)
    assert answer.code == 422
    assert says in answer.message


@pytest.mark.parametrize(
    ("after", "code"),
    [({"disk": "ssd", "zone": "a"}, 200), ({"disk": "hdd"}, 422), ({"zone": "a"}, 422), ({}, 422)],
)
async def test_node_selector_of_a_gated_pod_only_grows(
    kube: KubeHttp, ns: NamespacePaths, after: Json, code: int
) -> None:
    """Labels may be added to the node selector, never changed or removed."""
    await _gated(kube, ns, nodeSelector={"disk": "ssd"})
    assert (await _set(kube, ns, nodeSelector=after)).code == code


@pytest.mark.parametrize("change", [{"hostname": "h"}, {"schedulerName": "other"}, {"priority": 5}])
async def test_rest_of_a_gated_pod_is_fixed(kube: KubeHttp, ns: NamespacePaths, change: Json) -> None:
    """A change of the rest of the spec gets 422, as for any pod."""
    await _gated(kube, ns)
    answer = await _set(kube, ns, **change)
    assert answer.code == 422


async def test_affinity_of_a_free_pod_is_fixed(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Once no gate is left, a change of the affinity gets 422."""
    await kube.post(ns.of("pods"), a_pod(schedulerName="nobody"))
    answer = await _set(kube, ns, affinity=_required({"matchFields": [HERE]}))
    assert answer.code == 422


@pytest.mark.parametrize(
    "affinity",
    [
        _required(),
        _required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}),
        _required({"matchFields": [{"key": "metadata.namespace", "operator": "In", "values": ["a"]}]}),
        _required({"matchExpressions": [{"key": "disk", "operator": "Like", "values": ["a"]}]}),
        _required({"matchExpressions": [{"key": "disk", "operator": "In"}]}),
        _required({"matchExpressions": [{"key": "disk", "operator": "Exists", "values": ["a"]}]}),
    ],
)
async def test_node_affinity_is_checked(kube: KubeHttp, ns: NamespacePaths, affinity: Json) -> None:
    """A requirement that cannot be evaluated gets 422; a matchFields term names one node."""
    assert (await kube.post(ns.of("pods"), a_pod(affinity=affinity))).code == 422


async def test_gated_pod_is_deleted_at_once(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A gated pod runs nowhere, so it has no grace."""
    await _gated(kube, ns)
    await kube.delete(ns.of("pods", "p"))
    assert (await kube.get(ns.of("pods", "p"))).code == 404
