"""`binding: delegate` where the API server serves groups of pods: kube-scheduler places our gangs whole, or names the
rank that it cannot place.

Without groups it binds pod by pod: `test_binding_delegate.py` tests that, on Kubernetes as it is delivered.
"""

from collections.abc import Generator

import pytest

from tests.conformance.system.claimed_devices import make_toys
from tests.conformance.system.neighbours import PODS, PoolUnderTest, a_pool_of_its_own
from tests.conformance.system.operator import Json
from tests.conformance.system.system import POD_GROUPS, System
from tests.support.wait import wait_until

GROUPS = f"{POD_GROUPS.removesuffix('/podgroups')}/namespaces/default/podgroups"


@pytest.fixture
def own_pool(system: System) -> Generator[PoolUnderTest]:
    with a_pool_of_its_own(system, nodes=2, binding="delegate") as made:
        yield made


def condition(system: System, name: str) -> Json:
    """Wait for kube-scheduler's condition of a group and return it."""

    def found() -> Json | None:
        status: Json = system.operator.get(f"{GROUPS}/{name}").get("status") or {}
        conditions: list[Json] = status.get("conditions") or []
        return next((item for item in conditions if item["type"] == "PodGroupInitiallyScheduled"), None)

    told = wait_until(found, f"a word of kube-scheduler on {name}")
    assert told is not None
    return told


def given_up(system: System, id_: str) -> Json:
    """Wait for a second attempt and return the data of the event with which the first began to end."""
    system.wait_until(id_, lambda view: view["attempt"] >= 2, "in its second attempt")
    ended: Json = next(event for event in system.events(id_) if event["type"].endswith("terminating"))
    return ended["data"]


def test_gang_is_one_group(own_pool: PoolUnderTest) -> None:
    """The pods of a gang name its group, which requires all of them; the group is deleted with the attempt."""
    system = own_pool.system
    id_ = own_pool.launch(4, cpu="6", script={"runsS": 2.0})
    system.wait_for(id_, "Running")
    group = system.operator.get(f"{GROUPS}/{id_}-1")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    assert group["spec"]["disruptionMode"] == {"all": {}}
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in system.pods(id_)} == {f"{id_}-1"}
    assert condition(system, f"{id_}-1")["status"] == "True"
    assert own_pool.bound(id_) == own_pool.planned(id_)
    system.ended(id_, "Succeeded")
    system.started_once(id_, 4)
    system.nothing_left(system.object(id_)["metadata"]["uid"])


def test_single_rank_is_no_group(own_pool: PoolUnderTest) -> None:
    """A single rank has no group, because it waits for no other pod."""
    system = own_pool.system
    id_ = own_pool.launch(1, script={"runsS": 0.5})
    system.wait_for(id_, "Running")
    assert system.operator.find(f"{GROUPS}/{id_}-1") is None
    assert "schedulingGroup" not in system.pods(id_)[0]["spec"]
    system.ended(id_, "Succeeded")


def test_rank_without_a_place_is_named_and_nobody_starts(own_pool: PoolUnderTest) -> None:
    """Another pod occupies the node of one rank in between: no rank of the gang starts, and only that node is
    avoided."""
    system = own_pool.system
    with own_pool.without_workers():
        id_ = own_pool.launch(2, cpu="9")
        system.wait_for(id_, "Assigned")
        taken = own_pool.planned(id_)[f"{id_}-1-0"]
        stranger = own_pool.running(own_pool.stranger(taken, cpu="12"))
    told = given_up(system, id_)
    assert (told["reason"], told["rank"], told["node"]) == ("PlacementRefused", 0, taken)
    assert "Insufficient cpu" in told["message"]
    assert [run for run in system.runs(id_) if run.attempt == 1] == []
    assert system.object(id_)["status"].get("avoidNodes") == [taken]
    system.operator.delete(f"{PODS}/{stranger['metadata']['name']}")
    system.wait_for(id_, "Running")
    assert len(own_pool.bound(id_)) == 2
    attempt = system.view(id_)["attempt"]
    assert condition(system, f"{id_}-{attempt}")["status"] == "True"


def test_rank_that_starts_again_is_in_no_group(own_pool: PoolUnderTest) -> None:
    """With `restart: rank` the other ranks run on: the new pod is placed alone, also when another rank has ended."""
    system = own_pool.system
    id_ = own_pool.launch(2, cpu="1", restart="rank", maxRestarts=1)
    system.wait_for(id_, "Running")
    first, failed = system.pods(id_)
    system.nodes.exit(first["metadata"]["uid"], 0)
    wait_until(
        lambda: system.operator.get(f"{PODS}/{first['metadata']['name']}")["status"]["phase"] == "Succeeded",
        "one rank has ended",
    )
    system.nodes.exit(failed["metadata"]["uid"], 3)

    def again() -> Json | None:
        pod = system.operator.find(f"{PODS}/{failed['metadata']['name']}")
        is_new = pod is not None and pod["metadata"]["uid"] != failed["metadata"]["uid"]
        return pod if pod is not None and is_new and pod["status"]["phase"] == "Running" else None

    back = wait_until(again, "the rank runs again")
    assert back is not None
    assert "schedulingGroup" not in back["spec"]
    assert system.view(id_)["attempt"] == 1
    system.nodes.exit(back["metadata"]["uid"], 0)
    system.ended(id_, "Succeeded")


def test_pods_of_a_group_have_their_own_claims(system: System) -> None:
    """A claim template makes a claim for each pod, and kube-scheduler allocates a device to each."""
    with a_pool_of_its_own(system, nodes=1, binding="delegate") as own_pool:
        template = make_toys(own_pool, own_pool.nodes[0], "group-toys", count=2)
        id_ = own_pool.launch(2, template=template)
        system.ended(id_, "Succeeded", timeout_s=60)
        assert {run.rank for run in system.runs(id_)} == {0, 1}
        assert system.object(id_)["status"]["attempt"] == 1


def test_group_of_somebody_else_is_left_alone(own_pool: PoolUnderTest) -> None:
    """When its name is in use, the launch is refused with the name in the way; the other group stays unchanged."""
    system = own_pool.system
    with own_pool.without_workers():
        id_ = own_pool.launch(2, cpu="1")
        system.wait_for(id_, "Assigned")
        theirs = own_pool.make(
            GROUPS, {"metadata": {"name": f"{id_}-1"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 9}}}}
        )
    view = system.ended(id_, "Invalid")
    assert f"PodGroup {id_}-1 exists and belongs to another owner" in view["message"]
    assert system.runs(id_) == []
    now = system.operator.get(f"{GROUPS}/{id_}-1")
    assert (now["metadata"]["uid"], now["spec"]) == (theirs["metadata"]["uid"], theirs["spec"])
