"""Gangs behind one Service, on a real API server with its garbage collector: the pods that it selects, and its
deletion."""

from slipway.crd.roleresources import objects_of
from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.system import System, a_body, an_allocation
from tests.support.names import fresh
from tests.support.wait import wait_until

SERVICES = "/api/v1/namespaces/default/services"
PODS = "/api/v1/namespaces/default/pods"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
ALLOCATIONS = f"{GROUP}/namespaces/default/allocations"


def behind(system: System, service: str) -> set[tuple[str, str]]:
    """(allocation, rank) of the pods that the Service selects."""
    [found] = [item for item in system.operator.items(SERVICES) if item["metadata"]["name"] == service]
    selector = ",".join(f"{key}={value}" for key, value in found["spec"]["selector"].items())
    pods = system.operator.items(PODS, selector)
    labels = [pod["metadata"]["labels"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return {(each["slipway.dev/allocation"], each["slipway.dev/rank"]) for each in labels}


def a_gang(service: str, port: int = 8000) -> Json:
    """A server of two ranks that runs until it is ended from outside."""
    return a_body(ranks=2, script={"runsS": 600}, service={"name": service, "port": port})


def endpoints(system: System, service: str) -> int:
    """How many pods get the traffic of the Service, according to the cluster's own controller."""
    slices = system.operator.items(SLICES, f"kubernetes.io/service-name={service}")
    return sum(bool(each["conditions"].get("ready")) for item in slices for each in objects_of(item.get("endpoints")))


def test_two_gangs_stand_behind_one_service_until_the_last_has_ended(system: System) -> None:
    """The Service selects the first rank of each gang; when one gang ends, the other keeps the Service and its
    address."""
    name = fresh("llm")
    ids = [system.launch(a_gang(name)) for _ in range(2)]
    for id_ in ids:
        system.wait_for(id_, "Running")
    assert behind(system, name) == {(id_, "0") for id_ in ids}
    wait_until(lambda: endpoints(system, name) == 2, "both get traffic")
    address = system.operator.get(f"{SERVICES}/{name}")["spec"]["clusterIP"]
    assert address not in ("", "None")
    system.post(f"/allocations/{ids[0]}/kill")
    system.ended(ids[0], "Canceled")
    wait_until(lambda: behind(system, name) == {(ids[1], "0")}, "one is left")

    def owners() -> list[str]:
        return [each["uid"] for each in system.operator.get(f"{SERVICES}/{name}")["metadata"]["ownerReferences"]]

    left = [system.object(ids[1])["metadata"]["uid"]]
    wait_until(lambda: owners() == left, "one owner is left")
    assert system.operator.get(f"{SERVICES}/{name}")["spec"]["clusterIP"] == address
    system.post(f"/allocations/{ids[1]}/kill")
    system.ended(ids[1], "Canceled")
    wait_until(lambda: system.operator.find(f"{SERVICES}/{name}") is None, "the Service is gone")


def test_the_garbage_collector_deletes_it_after_its_last_owner(system: System) -> None:
    """The garbage collector deletes it when no pod worker has: here the owner was never launched, so none would."""
    name = fresh("llm")
    made = system.operator.create(ALLOCATIONS, an_allocation(name, hold=True))
    owner = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "name": name, "uid": made["metadata"]["uid"]}
    labels = {"slipway.dev/service": name, "app.kubernetes.io/managed-by": "slipway"}
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    system.operator.create(SERVICES, {"metadata": metadata, "spec": {"selector": labels, "ports": [{"port": 80}]}})
    system.operator.delete(f"{ALLOCATIONS}/{name}")
    wait_until(lambda: system.operator.find(f"{SERVICES}/{name}") is None, "the Service is gone", timeout_s=60)


def test_a_service_that_is_not_ours_refuses_the_launch(system: System) -> None:
    """The other Service stays unchanged; the reason names it and the fix."""
    name = fresh("theirs")
    body = {"metadata": {"name": name}, "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 8000}]}}
    before = system.operator.create(SERVICES, body)
    try:
        id_ = system.launch(a_gang(name))
        view = system.ended(id_, "Invalid")
        assert f"Service {name} exists and was not made by Slipway" in str(view["status"])
        assert system.operator.get(f"{SERVICES}/{name}") == before
    finally:
        system.operator.delete(f"{SERVICES}/{name}")
