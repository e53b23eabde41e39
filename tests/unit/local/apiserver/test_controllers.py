"""The controllers' explicit steps, on a clock that the test moves."""

from slipway.local.apiserver.core import ClusterCore
from tests.contract.kube.samples import a_config, a_pod, a_widget, owned_by
from tests.unit.local.apiserver.support import WIDGETS, HandClock, a_core, meta_of, with_widgets

NODE = {"metadata": {"name": "n"}}


def _names(core: ClusterCore, resource: str) -> list[str]:
    return [meta_of(obj)["name"] for obj in core.list(resource, "default").items]


def test_nothing_happens_without_a_step() -> None:
    """Dependents stay until the controllers are run."""
    core = a_core()
    owner = core.create("configmaps", "default", a_config("owner"))
    core.create("configmaps", "default", a_config("child", ownerReferences=[owned_by(owner)]))
    core.delete("configmaps", "default", "owner")
    assert _names(core, "configmaps") == ["child"]
    assert core.run_controllers()
    assert _names(core, "configmaps") == []


def test_a_settled_world_stays_as_it_is() -> None:
    """A step with nothing to do writes nothing and says so."""
    core = with_widgets(a_core())
    core.create(WIDGETS, "default", a_widget())
    core.settle()
    version = core.version
    assert not core.run_controllers()
    assert core.version == version


def test_collection_follows_chains_of_owners() -> None:
    """The garbage collection follows chains of owners: an allocation's pods and their dependents are deleted too."""
    core = with_widgets(a_core())
    widget = core.create(WIDGETS, "default", a_widget())
    pod = core.create("pods", "default", a_pod(meta={"ownerReferences": [owned_by(widget)]}))
    core.create("configmaps", "default", a_config(ownerReferences=[owned_by(pod)]))
    core.delete(WIDGETS, "default", "w")
    core.settle()
    assert _names(core, "pods") == _names(core, "configmaps") == []


def test_owner_in_another_namespace_is_absent() -> None:
    """An owner in another namespace is treated as absent, because owners are looked up in the namespace of their
    dependents."""
    core = a_core()
    owner = core.create("configmaps", "kube-public", a_config("owner"))
    core.create("configmaps", "default", a_config("child", ownerReferences=[owned_by(owner)]))
    core.settle()
    assert _names(core, "configmaps") == []


def test_pod_of_a_gone_node_fails_and_goes_after_the_delay() -> None:
    """PodGC fails and deletes the pod of a deleted node after the delay, not before, and not when the node comes
    back."""
    clock = HandClock()
    core = a_core(clock, pod_gc_delay_s=60.0)
    core.create("nodes", "", NODE)
    core.create("pods", "default", a_pod(meta={"finalizers": ["slipway.dev/test"]}))
    core.bind("default", "p", {"target": {"name": "n"}})
    core.delete("nodes", "", "n")
    clock.now += 59
    core.settle()
    core.create("nodes", "", NODE)
    clock.now += 60
    core.settle()
    assert core.get("pods", "default", "p")["status"]["phase"] == "Pending"
    core.delete("nodes", "", "n")
    clock.now += 60
    core.settle()
    pod = core.get("pods", "default", "p")
    assert pod["status"]["phase"] == "Failed"
    assert meta_of(pod)["deletionGracePeriodSeconds"] == 0


def test_old_events_expire() -> None:
    """Events live as long as their time to live."""
    clock = HandClock()
    core = a_core(clock, event_ttl_s=3600.0)
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "reason": "R"}
    core.create("events", "default", event)
    clock.now += 3599
    core.settle()
    assert _names(core, "events") == ["e"]
    clock.now += 2
    core.settle()
    assert _names(core, "events") == []


def test_a_quota_of_many_petabytes_is_no_obstacle() -> None:
    """A quota of many petabytes is enforced, although the thousandths of the amount need more than 64 bits."""
    core = a_core()
    core.create("resourcequotas", "default", {"metadata": {"name": "q"}, "spec": {"hard": {"requests.memory": "20Pi"}}})
    pod = a_pod()
    pod["spec"]["containers"][0]["resources"] = {"requests": {"memory": "1Ki"}}
    core.create("pods", "default", pod)
    core.settle()
    assert core.get("resourcequotas", "default", "q")["status"]["used"] == {"requests.memory": "1Ki"}


def test_quota_status_follows_the_pods() -> None:
    """The status of a quota has `used` and `hard`; ended pods use nothing."""
    core = a_core()
    core.create("resourcequotas", "default", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2"}}})
    core.create("pods", "default", a_pod())
    core.settle()
    assert core.get("resourcequotas", "default", "q")["status"] == {"hard": {"pods": "2"}, "used": {"pods": "1"}}
    core.patch("pods", "default", "p", {"status": {"phase": "Succeeded"}}, subresource="status")
    core.settle()
    assert core.get("resourcequotas", "default", "q")["status"]["used"] == {"pods": "0"}


def test_namespace_with_a_bound_pod_waits_for_the_kubelet() -> None:
    """In a namespace with a bound pod the pod is marked with its grace; the namespace is deleted after the kubelet's
    delete."""
    core = a_core()
    core.create("namespaces", "", {"metadata": {"name": "team"}})
    core.create("pods", "team", a_pod())
    core.bind("team", "p", {"target": {"name": "n"}})
    core.delete("namespaces", "", "team")
    core.settle()
    assert core.get("namespaces", "", "team")["status"]["phase"] == "Terminating"
    core.delete("pods", "team", "p", {"gracePeriodSeconds": 0})
    core.settle()
    assert "team" not in [meta_of(obj)["name"] for obj in core.list("namespaces").items]
