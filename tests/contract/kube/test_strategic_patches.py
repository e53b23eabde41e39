"""Strategic merge patch of built-in kinds: lists merge by key, directives, and their order."""

import pytest

from tests.contract.kube.client import STRATEGIC, KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import Json, a_pod

NAMES = ("contract.slipway.dev/a", "contract.slipway.dev/b")


def _condition(kind: str, status: str) -> Json:
    return {"type": kind, "status": status}


async def _service(kube: KubeHttp, ns: NamespacePaths, ports: list[Json]) -> str:
    """Create a service whose ports are the list to patch; return its path."""
    spec = {"clusterIP": "None", "selector": {"a": "1", "b": "1"}, "ports": ports}
    made = await kube.post(ns.of("services"), {"metadata": {"name": "s"}, "spec": spec})
    assert made.code == 201, made.message
    return ns.of("services", "s")


def _port(number: int, name: str = "") -> Json:
    return {"name": name or f"p{number}", "port": number}


def _ports(answer: Reply) -> list[tuple[int, str]]:
    assert answer.code == 200, answer.message
    return [(port["port"], port["name"]) for port in answer.body["spec"]["ports"]]


async def test_items_merge_by_their_key(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An item with a known key changes that item; fields that it does not name stay."""
    path = await _service(kube, ns, [_port(1), _port(2)])
    answer = await kube.patch(path, {"spec": {"ports": [{"port": 2, "name": "two"}]}}, STRATEGIC)
    assert sorted(_ports(answer)) == [(1, "p1"), (2, "two")]


async def test_new_items_go_before_those_the_patch_does_not_name(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The patch's items come first, unless the patch states their order."""
    path = await _service(kube, ns, [_port(1), _port(2)])
    answer = await kube.patch(path, {"spec": {"ports": [_port(3)]}}, STRATEGIC)
    assert _ports(answer) == [(3, "p3"), (1, "p1"), (2, "p2")]


async def test_item_is_deleted_by_directive(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An item with `$patch: delete` and the key deletes that item."""
    path = await _service(kube, ns, [_port(1), _port(2)])
    answer = await kube.patch(path, {"spec": {"ports": [{"port": 1, "$patch": "delete"}]}}, STRATEGIC)
    assert _ports(answer) == [(2, "p2")]


async def test_list_is_replaced_by_directive(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An item `$patch: replace` replaces the list."""
    path = await _service(kube, ns, [_port(1), _port(2)])
    answer = await kube.patch(path, {"spec": {"ports": [{"$patch": "replace"}, _port(9)]}}, STRATEGIC)
    assert _ports(answer) == [(9, "p9")]


async def test_order_of_a_list_can_be_given(kube: KubeHttp, ns: NamespacePaths) -> None:
    """`$setElementOrder/ports` sets the order."""
    path = await _service(kube, ns, [_port(1), _port(2), _port(3)])
    order = [{"port": 3}, {"port": 1}, {"port": 2}]
    answer = await kube.patch(path, {"spec": {"$setElementOrder/ports": order}}, STRATEGIC)
    assert _ports(answer) == [(3, "p3"), (1, "p1"), (2, "p2")]


async def test_order_and_changes_go_together(kube: KubeHttp, ns: NamespacePaths) -> None:
    """`kubectl apply` sends the order, the changes and a deletion in one patch."""
    path = await _service(kube, ns, [_port(1), _port(2)])
    change: Json = {
        "$setElementOrder/ports": [{"port": 3}, {"port": 2}],
        "ports": [_port(3), {"port": 1, "$patch": "delete"}],
    }
    assert _ports(await kube.patch(path, {"spec": change}, STRATEGIC)) == [(3, "p3"), (2, "p2")]


async def test_map_is_replaced_by_directive(kube: KubeHttp, ns: NamespacePaths) -> None:
    """`$patch: replace` inside a map replaces the map."""
    path = await _service(kube, ns, [_port(1)])
    answer = await kube.patch(path, {"spec": {"selector": {"$patch": "replace", "c": "1"}}}, STRATEGIC)
    assert answer.body["spec"]["selector"] == {"c": "1"}


async def test_only_some_keys_are_retained(kube: KubeHttp, ns: NamespacePaths) -> None:
    """`$retainKeys` drops every key that it does not name."""
    path = await _service(kube, ns, [_port(1)])
    change = {"spec": {"selector": {"$retainKeys": ["b", "c"], "c": "2"}}}
    answer = await kube.patch(path, change, STRATEGIC)
    assert answer.body["spec"]["selector"] == {"b": "1", "c": "2"}


async def test_null_removes_a_field_and_adds_none(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A null removes a field, and adds none, also below a map that does not exist yet."""
    path = await _service(kube, ns, [_port(1)])
    change = {"spec": {"selector": {"a": None}}, "metadata": {"labels": {"x": "1", "y": None}}}
    answer = await kube.patch(path, change, STRATEGIC)
    assert answer.body["spec"]["selector"] == {"b": "1"}
    assert answer.body["metadata"]["labels"] == {"x": "1"}


async def test_sets_of_words_merge(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Finalizers are added, not replaced; `$deleteFromPrimitiveList` removes one."""
    first, second = NAMES
    await kube.post(ns.of("configmaps"), {"metadata": {"name": "c", "finalizers": [first]}})
    path = ns.of("configmaps", "c")
    both = await kube.patch(path, {"metadata": {"finalizers": [second]}}, STRATEGIC)
    assert sorted(both.body["metadata"]["finalizers"]) == [first, second]
    less = await kube.patch(path, {"metadata": {"$deleteFromPrimitiveList/finalizers": [first]}}, STRATEGIC)
    assert less.body["metadata"]["finalizers"] == [second]
    await kube.patch(path, {"metadata": {"finalizers": None}})


async def test_lists_without_a_strategy_are_replaced(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An atomic list is one value: a container's command."""
    pod = a_pod(schedulerName="nobody", schedulingGates=[{"name": "contract.slipway.dev/wait"}])
    pod["spec"]["tolerations"] = [{"key": "a", "operator": "Exists"}]
    await kube.post(ns.of("pods"), pod)
    kept = (await kube.get(ns.of("pods", "p"))).body["spec"]["tolerations"]
    change = {"spec": {"tolerations": [*kept, {"key": "b", "operator": "Exists"}]}}
    answer = await kube.patch(ns.of("pods", "p"), change, STRATEGIC)
    assert [each["key"] for each in answer.body["spec"]["tolerations"]] == [*(each["key"] for each in kept), "b"]


async def test_conditions_of_a_status_merge_by_type(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Each writer patches its own condition without changing others."""
    await kube.post(ns.of("pods"), a_pod(schedulerName="nobody"))
    path = ns.of("pods", "p", "status")
    for kind, status in (("Ready", "False"), ("Other", "True"), ("Ready", "True")):
        answer = await kube.patch(path, {"status": {"conditions": [_condition(kind, status)]}}, STRATEGIC)
        assert answer.code == 200, answer.message
    found = {each["type"]: each["status"] for each in answer.body["status"]["conditions"]}
    assert found == {"Ready": "True", "Other": "True"}


async def test_item_without_its_key_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An item without its key is refused, because it matches no item."""
    path = await _service(kube, ns, [_port(1)])
    answer = await kube.patch(path, {"spec": {"ports": [{"name": "x"}]}}, STRATEGIC)
    assert answer.code == 500
    assert "does not contain declared merge key: port" in answer.message


@pytest.mark.parametrize("document", [[], "text", 3])
async def test_patch_that_is_no_object_is_refused(kube: KubeHttp, ns: NamespacePaths, document: object) -> None:
    """A patch that is no object gets 400."""
    await kube.post(ns.of("configmaps"), {"metadata": {"name": "c"}})
    answer = await kube.patch(ns.of("configmaps", "c"), document, STRATEGIC)
    assert (answer.code, answer.reason) == (400, "BadRequest")
