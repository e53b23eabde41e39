"""The life of nodes on a clock that the test moves: silence, grace periods, and machines that are gone for good."""

from slipway.local.apiserver.core import ClusterCore
from tests.contract.kube.samples import Json, a_pod
from tests.unit.local.apiserver.support import HandClock, a_core

LEASES = "leases.coordination.k8s.io"
READY: Json = {"type": "Ready", "status": "True"}


def _with_node(clock: HandClock) -> ClusterCore:
    core = a_core(clock, node_grace_s=40.0)
    core.create("nodes", "", {"metadata": {"name": "n"}, "status": {"conditions": [READY]}})
    core.create(LEASES, "kube-node-lease", {"metadata": {"name": "n"}, "spec": {"holderIdentity": "n"}})
    core.create("pods", "default", a_pod())
    core.bind("default", "p", {"target": {"name": "n"}})
    core.patch("pods", "default", "p", {"status": {"phase": "Running", "conditions": [READY]}}, subresource="status")
    core.settle()
    return core


def _wait(core: ClusterCore, clock: HandClock, seconds: float) -> None:
    clock.now += seconds
    core.settle()


def _renew(core: ClusterCore, clock: HandClock) -> None:
    core.patch(LEASES, "kube-node-lease", "n", {"spec": {"leaseTransitions": int(clock.now)}})


def _taints(core: ClusterCore) -> list[tuple[str, str]]:
    found = core.get("nodes", "", "n")["spec"].get("taints", [])
    return [(taint["key"].rpartition("/")[2], taint["effect"]) for taint in found]


def _ready(obj: Json) -> str:
    return next(item["status"] for item in obj["status"]["conditions"] if item["type"] == "Ready")


def test_renewed_lease_keeps_a_node_ready() -> None:
    """While its lease is renewed a node stays ready, and nothing is written."""
    clock = HandClock()
    core = _with_node(clock)
    for _ in range(20):
        _renew(core, clock)
        version = core.version
        _wait(core, clock, 20)
        assert core.version == version
    assert _ready(core.get("nodes", "", "n")) == "True"


def test_silent_node_is_unknown_and_unreachable() -> None:
    """After the grace a silent node has conditions Unknown and both taints, and its pods are not ready."""
    clock = HandClock()
    core = _with_node(clock)
    _wait(core, clock, 40)
    assert _ready(core.get("nodes", "", "n")) == "True"
    _wait(core, clock, 1)
    assert _ready(core.get("nodes", "", "n")) == "Unknown"
    assert _taints(core) == [("unreachable", "NoSchedule"), ("unreachable", "NoExecute")]
    assert _ready(core.get("pods", "default", "p")) == "False"


def test_pods_of_a_silent_node_are_deleted_after_their_patience() -> None:
    """Pods of a silent node are deleted after their toleration, 300 seconds by default; they stay Terminating, because
    no kubelet confirms their end."""
    clock = HandClock()
    core = _with_node(clock)
    _wait(core, clock, 41)
    _wait(core, clock, 299)
    assert "deletionTimestamp" not in core.get("pods", "default", "p")["metadata"]
    _wait(core, clock, 1)
    pod = core.get("pods", "default", "p")
    assert "deletionTimestamp" in pod["metadata"]
    assert pod["status"]["conditions"][-1]["reason"] == "DeletionByTaintManager"
    _wait(core, clock, 3600)
    assert core.get("pods", "default", "p")["status"]["phase"] == "Running"


def test_a_node_that_reports_again_keeps_its_pods() -> None:
    """A node that reports again keeps its pods: its report removes the taints and cancels the pending deletions."""
    clock = HandClock()
    core = _with_node(clock)
    _wait(core, clock, 41)
    _renew(core, clock)
    core.patch("nodes", "", "n", {"status": {"conditions": [READY]}}, subresource="status")
    core.settle()
    assert _taints(core) == []
    for _ in range(20):
        _renew(core, clock)
        _wait(core, clock, 20)
    assert "deletionTimestamp" not in core.get("pods", "default", "p")["metadata"]


def test_node_without_a_lease_is_left_alone() -> None:
    """A node without a lease is left alone, because no kubelet is expected to report for it."""
    clock = HandClock()
    core = a_core(clock)
    core.create("nodes", "", {"metadata": {"name": "n"}, "status": {"conditions": [READY]}})
    core.settle()
    _wait(core, clock, 3600)
    assert _ready(core.get("nodes", "", "n")) == "True"


def test_the_out_of_service_taint_ends_the_wait() -> None:
    """The taint out-of-service means that the machine is gone, so terminating pods are deleted at once."""
    clock = HandClock()
    core = _with_node(clock)
    _wait(core, clock, 41)
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    taints = core.get("nodes", "", "n")["spec"]["taints"]
    core.patch("nodes", "", "n", {"spec": {"taints": [*taints, taint]}})
    core.settle()
    assert core.store.find("pods", "default", "p") is None


def test_a_report_of_a_problem_keeps_the_node_alive() -> None:
    """A node that itself reports Ready=False gets the taint not-ready, not unreachable."""
    clock = HandClock()
    core = _with_node(clock)
    core.patch("nodes", "", "n", {"status": {"conditions": [{**READY, "status": "False"}]}}, subresource="status")
    core.settle()
    assert _taints(core) == [("not-ready", "NoSchedule"), ("not-ready", "NoExecute")]
