"""Disruption budgets over time, and over controllers that have a scale."""

from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.disruption import BUDGETS, DELETION_TIMEOUT_S
from tests.contract.kube.samples import Json, a_pod, owned_by
from tests.unit.local.apiserver.support import HandClock, a_core

APP: Json = {"app": "web"}
READY: Json = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def _budget(**spec: object) -> Json:
    return {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": APP}, **spec}}


def _pod(core: ClusterCore, name: str, meta: Json | None = None) -> None:
    core.create("pods", "default", a_pod(name, {"labels": APP, **(meta or {})}))
    core.bind("default", name, {"metadata": {"name": name}, "target": {"name": "n"}})
    core.patch("pods", "default", name, READY, subresource="status")


def _status(core: ClusterCore) -> Json:
    core.settle()
    return core.get(BUDGETS, "default", "b")["status"]


def test_an_evicted_pod_that_stays_counts_again_after_a_while() -> None:
    """A pod whose eviction was allowed but which stays counts again two minutes after the eviction."""
    clock = HandClock()
    core = a_core(clock)
    core.create("nodes", "", {"metadata": {"name": "n"}})
    _pod(core, "p", {"finalizers": ["slipway.dev/test"]})
    core.create(BUDGETS, "default", _budget(minAvailable=0))
    assert _status(core)["disruptionsAllowed"] == 1
    budget = core.get(BUDGETS, "default", "b")
    going = {"disruptedPods": {"p": "2023-11-14T22:13:20Z"}, "disruptionsAllowed": 0}
    core.update_status(BUDGETS, "default", "b", {**budget, "status": {**budget["status"], **going}})
    assert _status(core)["currentHealthy"] == 0
    clock.now += DELETION_TIMEOUT_S + 1
    status = _status(core)
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (1, 1)
    assert "disruptedPods" not in status


def test_shares_are_of_the_controllers_scale() -> None:
    """Percentages are of the controller's scale: maxUnavailable 50% of a Deployment's five, found through its
    ReplicaSet; they are rounded up."""
    core = a_core()
    template = {"metadata": {"labels": APP}, "spec": {"containers": [{"name": "m", "image": "i:1"}]}}
    spec: Json = {"replicas": 5, "selector": {"matchLabels": APP}, "template": template}
    deployment = core.create("deployments.apps", "default", {"metadata": {"name": "d"}, "spec": spec})
    meta = {"name": "d-1", "ownerReferences": [owned_by(deployment, controller=True)]}
    replicas = core.create("replicasets.apps", "default", {"metadata": meta, "spec": {**spec, "replicas": 2}})
    for name in ("p", "q", "r"):
        _pod(core, name, {"ownerReferences": [owned_by(replicas, controller=True)]})
    core.create(BUDGETS, "default", _budget(maxUnavailable="50%"))
    status = _status(core)
    assert (status["expectedPods"], status["desiredHealthy"], status["disruptionsAllowed"]) == (5, 2, 1)


def test_settled_budgets_write_nothing() -> None:
    """Settled budgets are not written again."""
    core = a_core()
    _pod(core, "p")
    core.create(BUDGETS, "default", _budget(minAvailable=1))
    core.settle()
    version = core.version
    core.settle()
    assert core.version == version
