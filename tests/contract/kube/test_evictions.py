"""Evictions: a pod is evicted if its disruption budget allows it, or stays with a reason."""

from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp, Reply
from tests.contract.kube.conftest import Place, eventually
from tests.contract.kube.samples import Json, a_config, a_pod, owned_by

APP: Json = {"app": "web"}
READY: Json = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
UNREADY: Json = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}


def _budgets(place: Place, name: str = "") -> str:
    base = f"/apis/policy/v1/namespaces/{place.name}/poddisruptionbudgets"
    return f"{base}/{name}" if name else base


def a_budget(name: str = "b", selector: Json | None = None, **spec: Any) -> Json:
    chosen = {"matchLabels": APP} if selector is None else selector
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"selector": chosen, **spec},
    }


def an_eviction(name: str = "p", **options: Any) -> Json:
    body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return {**body, "deleteOptions": options} if options else body


class Crowd:
    """Pods of one application, and the calls on them."""

    def __init__(self, kube: KubeHttp, place: Place) -> None:
        self.kube = kube
        self.place = place

    async def add(self, *names: str, status: Json = READY, meta: Json | None = None) -> None:
        for name in names:
            made = await self.kube.post(self.place.of("pods"), a_pod(name, {"labels": APP, **(meta or {})}))
            assert made.code == 201, made.body
            bound = {"target": {"kind": "Node", "name": "contract-nowhere"}}
            await self.kube.post(self.place.of("pods", name, "binding"), {"metadata": {"name": name}, **bound})
            await self.kube.patch(self.place.of("pods", name, "status"), status)

    async def evict(self, name: str = "p", **options: Any) -> Reply:
        return await self.kube.post(self.place.of("pods", name, "eviction"), an_eviction(name, **options))

    async def guard(self, allowed: int, **spec: Any) -> None:
        """Create a budget, and write the controller's number of allowed disruptions."""
        made = await self.kube.post(_budgets(self.place), a_budget(**spec))
        assert made.code == 201, made.body
        await self.wait_allowed(allowed)

    async def wait_allowed(self, allowed: int, name: str = "b") -> None:
        async def check() -> bool:
            found = (await self.kube.get(_budgets(self.place, name))).body
            status = found["status"]
            is_seen = status.get("observedGeneration") == found["metadata"]["generation"]
            return is_seen and status["disruptionsAllowed"] == allowed

        await eventually(check, f"{allowed} may go")

    async def pod(self, name: str = "p") -> Json:
        return (await self.kube.get(self.place.of("pods", name))).body

    async def budget(self, name: str = "b") -> Json:
        return (await self.kube.get(_budgets(self.place, name))).body


@pytest.fixture
def crowd(kube: KubeHttp, place: Place) -> Crowd:
    return Crowd(kube, place)


async def test_without_a_budget_the_pod_goes(crowd: Crowd) -> None:
    """An eviction gets 201, deletes the pod with the pod's own grace, and sets a condition with the reason."""
    await crowd.add("p")
    answer = await crowd.evict()
    pod = await crowd.pod()
    assert (answer.code, answer.body["status"], answer.body["code"]) == (201, "Success", 201)
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    target = next(item for item in pod["status"]["conditions"] if item["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")
    assert target["message"] == "Eviction API: evicting"
    assert target["lastTransitionTime"]


async def test_delete_options_are_obeyed(crowd: Crowd) -> None:
    """Grace 0 removes the pod at once."""
    await crowd.add("p")
    assert (await crowd.evict(gracePeriodSeconds=0)).code == 201
    assert (await crowd.pod())["code"] == 404


async def test_dry_run_changes_nothing(crowd: Crowd, kube: KubeHttp) -> None:
    """A dry run by query or by delete options changes nothing."""
    await crowd.add("p")
    before = await crowd.pod()
    asked = await kube.post(crowd.place.of("pods", "p", "eviction"), an_eviction(), dryRun="All")
    also = await crowd.evict(dryRun=["All"])
    assert (asked.code, also.code) == (201, 201)
    assert await crowd.pod() == before


async def test_name_must_match_the_path(crowd: Crowd, kube: KubeHttp) -> None:
    """Another name in the body gets 400 with the server's words."""
    await crowd.add("p")
    answer = await kube.post(crowd.place.of("pods", "p", "eviction"), an_eviction("q"))
    assert (answer.code, answer.message) == (400, "name in URL does not match name in Eviction object")


async def test_discovery_names_the_eviction(kube: KubeHttp) -> None:
    """Discovery names the group: kubectl drain evicts only where pods/eviction has the kind policy/v1 Eviction."""
    listed = {each["name"]: each for each in (await kube.get("/api/v1")).body["resources"]}
    found = {field: listed["pods/eviction"][field] for field in ("group", "version", "kind", "verbs")}
    assert found == {"group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]}
    token = listed["serviceaccounts/token"]
    assert (token["group"], token["kind"]) == ("authentication.k8s.io", "TokenRequest")


async def test_absent_pod(crowd: Crowd) -> None:
    """An eviction of a missing pod gets 404."""
    assert (await crowd.evict("none")).code == 404


async def test_preconditions_hold(crowd: Crowd) -> None:
    """Another uid or another version gets 409, and the pod is unchanged."""
    await crowd.add("p")
    before = await crowd.pod()
    other = await crowd.evict(preconditions={"uid": "11111111-1111-1111-1111-111111111111"})
    older = await crowd.evict(preconditions={"resourceVersion": "1"})
    assert [(answer.code, answer.reason) for answer in (other, older)] == [(409, "Conflict")] * 2
    assert "the UID in the precondition" in other.message
    assert "the ResourceVersion in the precondition (1) does not match" in older.message
    assert (await crowd.pod()) == before
    right = {"uid": before["metadata"]["uid"], "resourceVersion": before["metadata"]["resourceVersion"]}
    assert (await crowd.evict(preconditions=right)).code == 201


async def test_budget_is_written_with_an_empty_status(crowd: Crowd, kube: KubeHttp) -> None:
    """The status that a client sends is dropped; generation is 1."""
    sent = {**a_budget(minAvailable=1), "status": {"disruptionsAllowed": 7}}
    made = await kube.post(_budgets(crowd.place), sent)
    assert made.code == 201
    assert made.body["metadata"]["generation"] == 1
    zero = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}
    assert made.body["status"] == zero


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"minAvailable": 1, "maxUnavailable": 1}, "spec", "minAvailable and maxUnavailable cannot be both set"),
        ({"minAvailable": -1}, "spec.minAvailable", "must be greater than or equal to 0"),
        ({"minAvailable": "120%"}, "spec.minAvailable", "must not be greater than 100%"),
        ({"maxUnavailable": "some"}, "spec.maxUnavailable", "a valid percent string must be a numeric string"),
        ({"unhealthyPodEvictionPolicy": "Never"}, "spec.unhealthyPodEvictionPolicy", "Unsupported value"),
    ],
)
async def test_invalid_budgets(crowd: Crowd, kube: KubeHttp, spec: Json, field: str, words: str) -> None:
    """An invalid budget gets 422 with the field."""
    answer = await kube.post(_budgets(crowd.place), a_budget(**spec))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.causes[0]["field"] == field
    assert words in answer.causes[0]["message"]


@pytest.mark.usefixtures("controllers")
async def test_status_counts_the_pods(crowd: Crowd) -> None:
    """The status has the healthy, desired, expected and allowed numbers and a condition, and follows the pods."""
    await crowd.add("p", "q")
    await crowd.add("sick", status=UNREADY)
    await crowd.guard(1, minAvailable=1)
    status = (await crowd.budget())["status"]
    counts = {field: status[field] for field in ("currentHealthy", "desiredHealthy", "expectedPods")}
    condition = status["conditions"][0]
    assert counts == {"currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 3}
    assert [condition[field] for field in ("type", "status", "reason")] == [
        "DisruptionAllowed",
        "True",
        "SufficientPods",
    ]
    await crowd.kube.patch(crowd.place.of("pods", "q", "status"), UNREADY)
    await crowd.wait_allowed(0)
    condition = (await crowd.budget())["status"]["conditions"][0]
    assert [condition[field] for field in ("status", "reason")] == ["False", "InsufficientPods"]


@pytest.mark.usefixtures("controllers")
async def test_spent_budget_refuses(crowd: Crowd) -> None:
    """A spent budget answers 429 TooManyRequests with the cause DisruptionBudget and no Retry-After; the pod stays."""
    await crowd.add("p")
    await crowd.guard(0, minAvailable=1)
    answer = await crowd.evict()
    assert (answer.code, answer.reason) == (429, "TooManyRequests")
    assert answer.message == "Cannot evict pod as it would violate the pod's disruption budget."
    words = "The disruption budget b needs 1 healthy pods and has 1 currently"
    assert answer.causes == [{"reason": "DisruptionBudget", "message": words}]
    assert "retry-after" not in answer.headers
    assert "deletionTimestamp" not in (await crowd.pod())["metadata"]


@pytest.mark.usefixtures("controllers")
async def test_budget_lets_one_go_and_no_more(crowd: Crowd) -> None:
    """One pod is evicted; the next is refused until the budget allows it again."""
    await crowd.add("p", "q", "r")
    await crowd.guard(1, minAvailable=2)
    first = await crowd.evict("p")
    second = await crowd.evict("q")
    assert (first.code, second.code) == (201, 429)
    assert "deletionTimestamp" in (await crowd.pod("p"))["metadata"]
    assert "deletionTimestamp" not in (await crowd.pod("q"))["metadata"]
    await crowd.add("s")
    await crowd.wait_allowed(1)
    assert (await crowd.evict("q")).code == 201


@pytest.mark.usefixtures("controllers")
async def test_dry_run_asks_the_budget(crowd: Crowd) -> None:
    """A dry eviction is refused as a real one would be, and uses up no disruption."""
    await crowd.add("p", "q")
    await crowd.guard(1, minAvailable=1)
    assert [(await crowd.evict(name, dryRun=["All"])).code for name in ("p", "q", "p")] == [201, 201, 201]
    assert (await crowd.budget())["status"]["disruptionsAllowed"] == 1
    assert (await crowd.evict("p")).code == 201
    assert (await crowd.evict("q", dryRun=["All"])).code == 429


@pytest.mark.usefixtures("controllers")
async def test_pods_that_do_not_run_are_not_guarded(crowd: Crowd) -> None:
    """Pending and ended pods are evicted whatever the budget."""
    await crowd.add("waiting", status={"status": {"phase": "Pending"}})
    await crowd.add("done", status={"status": {"phase": "Succeeded"}})
    await crowd.guard(0, minAvailable=5)
    assert [(await crowd.evict(name)).code for name in ("waiting", "done")] == [201, 201]


@pytest.mark.usefixtures("controllers")
async def test_unhealthy_pods_go_while_the_budget_is_whole(crowd: Crowd) -> None:
    """A pod that is not ready is evicted when enough others are healthy, and uses up no disruption."""
    await crowd.add("p")
    await crowd.add("sick", status=UNREADY)
    await crowd.guard(0, minAvailable=1)
    assert (await crowd.evict("sick")).code == 201
    assert (await crowd.evict("p")).code == 429


@pytest.mark.usefixtures("controllers")
async def test_unhealthy_pods_stay_under_a_broken_budget(crowd: Crowd) -> None:
    """By default a pod that is not ready stays; with AlwaysAllow it is evicted."""
    await crowd.add("sick", status=UNREADY)
    await crowd.guard(0, minAvailable=2)
    assert (await crowd.evict("sick")).code == 429
    await crowd.kube.patch(_budgets(crowd.place, "b"), {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})
    assert (await crowd.evict("sick")).code == 201


@pytest.mark.usefixtures("controllers")
async def test_two_budgets_for_one_pod_are_an_error(crowd: Crowd, kube: KubeHttp) -> None:
    """The answer is a failure, because the eviction cannot tell which budget applies."""
    await crowd.add("p")
    await crowd.guard(1, minAvailable=0)
    await kube.post(_budgets(crowd.place), a_budget("c", minAvailable=0))
    answer = await crowd.evict()
    assert (answer.code, answer.body["status"]) == (500, "Failure")
    assert answer.message.startswith("This pod has more than one PodDisruptionBudget")


@pytest.mark.usefixtures("controllers")
async def test_empty_selector_guards_everything_and_none_guards_nothing(crowd: Crowd, kube: KubeHttp) -> None:
    """`selector: {}` selects every pod of the namespace; a missing one selects no pod."""
    await crowd.add("p")
    await kube.post(_budgets(crowd.place), {**a_budget("b"), "spec": {"minAvailable": 1}})
    assert (await crowd.evict("p", dryRun=["All"])).code == 201
    await kube.post(_budgets(crowd.place), a_budget("all", selector={}, minAvailable=1))
    await crowd.wait_allowed(0, "all")
    assert (await crowd.evict("p")).code == 429


@pytest.mark.usefixtures("controllers")
async def test_shares_need_a_controller_with_a_scale(crowd: Crowd, kube: KubeHttp) -> None:
    """maxUnavailable over pods whose owner has no scale allows no disruption, and the budget shows why."""
    owner = (await kube.post(crowd.place.of("configmaps"), a_config("owner"))).body
    await crowd.add("p", meta={"ownerReferences": [owned_by(owner, controller=True)]})
    await kube.post(_budgets(crowd.place), a_budget(maxUnavailable=1))

    async def has_failed() -> bool:
        conditions = (await crowd.budget())["status"].get("conditions", [])
        return [item["reason"] for item in conditions] == ["SyncFailed"]

    await eventually(has_failed, "the budget cannot be counted")
    answer = await crowd.evict()
    assert answer.code == 429


@pytest.mark.usefixtures("controllers")
async def test_new_generation_asks_to_come_again(crowd: Crowd, kube: KubeHttp) -> None:
    """While the status is older than the spec, the answer is 429 with Retry-After, or the answer to the new spec."""
    await crowd.add("p")
    await crowd.guard(1, minAvailable=0)
    await kube.patch(_budgets(crowd.place, "b"), {"spec": {"minAvailable": 1}})
    answer = await crowd.evict()
    assert answer.code == 429
    if "still being processed" in answer.causes[0]["message"]:
        assert answer.headers["retry-after"] == "10"
        assert answer.body["details"]["retryAfterSeconds"] == 10
