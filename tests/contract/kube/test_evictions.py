"""Evictions: a pod is evicted if its disruption budget allows it, or stays with a reason."""

from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import Json, a_config, a_pod, owned_by

APP: Json = {"app": "web"}
READY: Json = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
UNREADY: Json = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}


def _budgets(ns: NamespacePaths, name: str = "") -> str:
    base = f"/apis/policy/v1/namespaces/{ns.name}/poddisruptionbudgets"
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


class ApplicationPods:
    """Pods of one application, and the calls on them."""

    def __init__(self, kube: KubeHttp, ns: NamespacePaths) -> None:
        self.kube = kube
        self.ns = ns

    async def add(self, *names: str, status: Json = READY, meta: Json | None = None) -> None:
        for name in names:
            made = await self.kube.post(self.ns.of("pods"), a_pod(name, {"labels": APP, **(meta or {})}))
            assert made.code == 201, made.body
            bound = {"target": {"kind": "Node", "name": "contract-nowhere"}}
            await self.kube.post(self.ns.of("pods", name, "binding"), {"metadata": {"name": name}, **bound})
            await self.kube.patch(self.ns.of("pods", name, "status"), status)

    async def evict(self, name: str = "p", **options: Any) -> Reply:
        return await self.kube.post(self.ns.of("pods", name, "eviction"), an_eviction(name, **options))

    async def guard(self, allowed: int, **spec: Any) -> None:
        """Create a budget, and write the controller's number of allowed disruptions."""
        made = await self.kube.post(_budgets(self.ns), a_budget(**spec))
        assert made.code == 201, made.body
        await self.wait_allowed(allowed)

    async def wait_allowed(self, allowed: int, name: str = "b") -> None:
        async def check() -> bool:
            found = (await self.kube.get(_budgets(self.ns, name))).body
            status = found["status"]
            is_seen = status.get("observedGeneration") == found["metadata"]["generation"]
            return is_seen and status["disruptionsAllowed"] == allowed

        await eventually(check, f"{allowed} may go")

    async def pod(self, name: str = "p") -> Json:
        return (await self.kube.get(self.ns.of("pods", name))).body

    async def budget(self, name: str = "b") -> Json:
        return (await self.kube.get(_budgets(self.ns, name))).body


@pytest.fixture
def app_pods(kube: KubeHttp, ns: NamespacePaths) -> ApplicationPods:
    return ApplicationPods(kube, ns)


async def test_without_a_budget_the_pod_goes(app_pods: ApplicationPods) -> None:
    """An eviction gets 201, deletes the pod with the pod's own grace, and sets a condition with the reason."""
    await app_pods.add("p")
    answer = await app_pods.evict()
    pod = await app_pods.pod()
    assert (answer.code, answer.body["status"], answer.body["code"]) == (201, "Success", 201)
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    target = next(item for item in pod["status"]["conditions"] if item["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")
    assert target["message"] == "Eviction API: evicting"
    assert target["lastTransitionTime"]


async def test_delete_options_are_obeyed(app_pods: ApplicationPods) -> None:
    """Grace 0 removes the pod at once."""
    await app_pods.add("p")
    assert (await app_pods.evict(gracePeriodSeconds=0)).code == 201
    assert (await app_pods.pod())["code"] == 404


async def test_dry_run_changes_nothing(app_pods: ApplicationPods, kube: KubeHttp) -> None:
    """A dry run by query or by delete options changes nothing."""
    await app_pods.add("p")
    before = await app_pods.pod()
    asked = await kube.post(app_pods.ns.of("pods", "p", "eviction"), an_eviction(), dryRun="All")
    also = await app_pods.evict(dryRun=["All"])
    assert (asked.code, also.code) == (201, 201)
    assert await app_pods.pod() == before


async def test_name_must_match_the_path(app_pods: ApplicationPods, kube: KubeHttp) -> None:
    """Another name in the body gets 400 with the server's words."""
    await app_pods.add("p")
    answer = await kube.post(app_pods.ns.of("pods", "p", "eviction"), an_eviction("q"))
    assert (answer.code, answer.message) == (400, "name in URL does not match name in Eviction object")


async def test_discovery_names_the_eviction(kube: KubeHttp) -> None:
    """Discovery names the group: kubectl drain evicts only where pods/eviction has the kind policy/v1 Eviction."""
    listed = {each["name"]: each for each in (await kube.get("/api/v1")).body["resources"]}
    found = {field: listed["pods/eviction"][field] for field in ("group", "version", "kind", "verbs")}
    assert found == {"group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]}
    token = listed["serviceaccounts/token"]
    assert (token["group"], token["kind"]) == ("authentication.k8s.io", "TokenRequest")


async def test_absent_pod(app_pods: ApplicationPods) -> None:
    """An eviction of a missing pod gets 404."""
    assert (await app_pods.evict("none")).code == 404


async def test_preconditions_hold(app_pods: ApplicationPods) -> None:
    """Another uid or another version gets 409, and the pod is unchanged."""
    await app_pods.add("p")
    before = await app_pods.pod()
    other = await app_pods.evict(preconditions={"uid": "11111111-1111-1111-1111-111111111111"})
    older = await app_pods.evict(preconditions={"resourceVersion": "1"})
    assert [(answer.code, answer.reason) for answer in (other, older)] == [(409, "Conflict")] * 2
    assert "the UID in the precondition" in other.message
    assert "the ResourceVersion in the precondition (1) does not match" in older.message
    assert (await app_pods.pod()) == before
    right = {"uid": before["metadata"]["uid"], "resourceVersion": before["metadata"]["resourceVersion"]}
    assert (await app_pods.evict(preconditions=right)).code == 201


async def test_budget_is_written_with_an_empty_status(app_pods: ApplicationPods, kube: KubeHttp) -> None:
    """The status that a client sends is dropped; generation is 1."""
    sent = {**a_budget(minAvailable=1), "status": {"disruptionsAllowed": 7}}
    made = await kube.post(_budgets(app_pods.ns), sent)
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
async def test_invalid_budgets(app_pods: ApplicationPods, kube: KubeHttp, spec: Json, field: str, words: str) -> None:
    """An invalid budget gets 422 with the field."""
    answer = await kube.post(_budgets(app_pods.ns), a_budget(**spec))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.causes[0]["field"] == field
    assert words in answer.causes[0]["message"]


@pytest.mark.usefixtures("controllers")
async def test_status_counts_the_pods(app_pods: ApplicationPods) -> None:
    """The status has the healthy, desired, expected and allowed numbers and a condition, and follows the pods."""
    await app_pods.add("p", "q")
    await app_pods.add("sick", status=UNREADY)
    await app_pods.guard(1, minAvailable=1)
    status = (await app_pods.budget())["status"]
    counts = {field: status[field] for field in ("currentHealthy", "desiredHealthy", "expectedPods")}
    condition = status["conditions"][0]
    assert counts == {"currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 3}
    assert [condition[field] for field in ("type", "status", "reason")] == [
        "DisruptionAllowed",
        "True",
        "SufficientPods",
    ]
    await app_pods.kube.patch(app_pods.ns.of("pods", "q", "status"), UNREADY)
    await app_pods.wait_allowed(0)
    condition = (await app_pods.budget())["status"]["conditions"][0]
    assert [condition[field] for field in ("status", "reason")] == ["False", "InsufficientPods"]


@pytest.mark.usefixtures("controllers")
async def test_an_exhausted_disruption_budget_refuses(app_pods: ApplicationPods) -> None:
    """A spent budget answers 429 TooManyRequests with the cause DisruptionBudget and no Retry-After; the pod stays."""
    await app_pods.add("p")
    await app_pods.guard(0, minAvailable=1)
    answer = await app_pods.evict()
    assert (answer.code, answer.reason) == (429, "TooManyRequests")
    assert answer.message == "Cannot evict pod as it would violate the pod's disruption budget."
    words = "The disruption budget b needs 1 healthy pods and has 1 currently"
    assert answer.causes == [{"reason": "DisruptionBudget", "message": words}]
    assert "retry-after" not in answer.headers
    assert "deletionTimestamp" not in (await app_pods.pod())["metadata"]


@pytest.mark.usefixtures("controllers")
async def test_a_disruption_budget_allows_one_eviction(app_pods: ApplicationPods) -> None:
    """One pod is evicted; the next is refused until the budget allows it again."""
    await app_pods.add("p", "q", "r")
    await app_pods.guard(1, minAvailable=2)
    first = await app_pods.evict("p")
    second = await app_pods.evict("q")
    assert (first.code, second.code) == (201, 429)
    assert "deletionTimestamp" in (await app_pods.pod("p"))["metadata"]
    assert "deletionTimestamp" not in (await app_pods.pod("q"))["metadata"]
    await app_pods.add("s")
    await app_pods.wait_allowed(1)
    assert (await app_pods.evict("q")).code == 201


@pytest.mark.usefixtures("controllers")
async def test_dry_run_asks_the_budget(app_pods: ApplicationPods) -> None:
    """A dry eviction is refused as a real one would be, and uses up no disruption."""
    await app_pods.add("p", "q")
    await app_pods.guard(1, minAvailable=1)
    assert [(await app_pods.evict(name, dryRun=["All"])).code for name in ("p", "q", "p")] == [201, 201, 201]
    assert (await app_pods.budget())["status"]["disruptionsAllowed"] == 1
    assert (await app_pods.evict("p")).code == 201
    assert (await app_pods.evict("q", dryRun=["All"])).code == 429


@pytest.mark.usefixtures("controllers")
async def test_pods_that_do_not_run_are_not_guarded(app_pods: ApplicationPods) -> None:
    """Pending and ended pods are evicted whatever the budget."""
    await app_pods.add("waiting", status={"status": {"phase": "Pending"}})
    await app_pods.add("done", status={"status": {"phase": "Succeeded"}})
    await app_pods.guard(0, minAvailable=5)
    assert [(await app_pods.evict(name)).code for name in ("waiting", "done")] == [201, 201]


@pytest.mark.usefixtures("controllers")
async def test_unhealthy_pods_are_evicted_while_the_budget_is_met(app_pods: ApplicationPods) -> None:
    """A pod that is not ready is evicted when enough others are healthy, and uses up no disruption."""
    await app_pods.add("p")
    await app_pods.add("sick", status=UNREADY)
    await app_pods.guard(0, minAvailable=1)
    assert (await app_pods.evict("sick")).code == 201
    assert (await app_pods.evict("p")).code == 429


@pytest.mark.usefixtures("controllers")
async def test_unhealthy_pods_are_not_evicted_while_the_budget_is_violated(app_pods: ApplicationPods) -> None:
    """By default a pod that is not ready stays; with AlwaysAllow it is evicted."""
    await app_pods.add("sick", status=UNREADY)
    await app_pods.guard(0, minAvailable=2)
    assert (await app_pods.evict("sick")).code == 429
    await app_pods.kube.patch(_budgets(app_pods.ns, "b"), {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})
    assert (await app_pods.evict("sick")).code == 201


@pytest.mark.usefixtures("controllers")
async def test_two_budgets_for_one_pod_are_an_error(app_pods: ApplicationPods, kube: KubeHttp) -> None:
    """The answer is a failure, because the eviction cannot tell which budget applies."""
    await app_pods.add("p")
    await app_pods.guard(1, minAvailable=0)
    await kube.post(_budgets(app_pods.ns), a_budget("c", minAvailable=0))
    answer = await app_pods.evict()
    assert (answer.code, answer.body["status"]) == (500, "Failure")
    assert answer.message.startswith("This pod has more than one PodDisruptionBudget")


@pytest.mark.usefixtures("controllers")
async def test_an_empty_selector_covers_all_pods_and_a_missing_one_covers_none(
    app_pods: ApplicationPods, kube: KubeHttp
) -> None:
    """`selector: {}` selects every pod of the namespace; a missing one selects no pod."""
    await app_pods.add("p")
    await kube.post(_budgets(app_pods.ns), {**a_budget("b"), "spec": {"minAvailable": 1}})
    assert (await app_pods.evict("p", dryRun=["All"])).code == 201
    await kube.post(_budgets(app_pods.ns), a_budget("all", selector={}, minAvailable=1))
    await app_pods.wait_allowed(0, "all")
    assert (await app_pods.evict("p")).code == 429


@pytest.mark.usefixtures("controllers")
async def test_shares_need_a_controller_with_a_scale(app_pods: ApplicationPods, kube: KubeHttp) -> None:
    """maxUnavailable over pods whose owner has no scale allows no disruption, and the budget shows why."""
    owner = (await kube.post(app_pods.ns.of("configmaps"), a_config("owner"))).body
    await app_pods.add("p", meta={"ownerReferences": [owned_by(owner, controller=True)]})
    await kube.post(_budgets(app_pods.ns), a_budget(maxUnavailable=1))

    async def has_failed() -> bool:
        conditions = (await app_pods.budget())["status"].get("conditions", [])
        return [item["reason"] for item in conditions] == ["SyncFailed"]

    await eventually(has_failed, "the budget cannot be counted")
    answer = await app_pods.evict()
    assert answer.code == 429


@pytest.mark.usefixtures("controllers")
async def test_eviction_is_retried_after_a_new_generation(app_pods: ApplicationPods, kube: KubeHttp) -> None:
    """While the status is older than the spec, the answer is 429 with Retry-After, or the answer to the new spec."""
    await app_pods.add("p")
    await app_pods.guard(1, minAvailable=0)
    await kube.patch(_budgets(app_pods.ns, "b"), {"spec": {"minAvailable": 1}})
    answer = await app_pods.evict()
    assert answer.code == 429
    if "still being processed" in answer.causes[0]["message"]:
        assert answer.headers["retry-after"] == "10"
        assert answer.body["details"]["retryAfterSeconds"] == 10
