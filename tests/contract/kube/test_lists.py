"""Lists: selectors, pages, versions."""

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import a_config, a_widget

NAMES = ("a", "b", "d", "e")


async def _configs(kube: KubeHttp, ns: NamespacePaths) -> None:
    for name in NAMES:
        labels = {"own": "yes", "name": name, **({"even": "yes"} if name in "bd" else {})}
        await kube.post(ns.of("configmaps"), a_config(name, labels=labels))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("own=yes", ["a", "b", "d", "e"]),
        ("own==yes,even", ["b", "d"]),
        ("own,!even", ["a", "e"]),
        ("own,name!=a", ["b", "d", "e"]),
        ("name in (a, d)", ["a", "d"]),
        ("own,name notin (a,d)", ["b", "e"]),
        ("name=none", []),
    ],
)
async def test_label_selectors(kube: KubeHttp, ns: NamespacePaths, selector: str, names: list[str]) -> None:
    """Equality and set-based selectors select by labels."""
    await _configs(kube, ns)
    assert (await kube.get(ns.of("configmaps"), labelSelector=selector)).names == names


async def test_bad_label_selector_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A bad label selector gets 400."""
    assert (await kube.get(ns.of("configmaps"), labelSelector="a in (b")).code == 400


async def test_unknown_field_label_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An unknown field label gets 400, in the words of kinds with selectable fields and of kinds without."""
    answer = await kube.get(ns.of("configmaps"), fieldSelector="data.a=1")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert answer.message == ('"data.a" is not a known field selector: only "metadata.name", "metadata.namespace"')
    answer = await kube.get(ns.of("pods"), fieldSelector="spec.a=1")
    assert (answer.code, answer.message) == (400, "field label not supported: spec.a")


async def test_name_is_a_field_label_of_every_kind(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """metadata.name and metadata.namespace select objects of every kind, also over all namespaces."""
    await kube.post(widgets.widgets(), a_widget("unique-name"))
    everywhere = "/apis/contract.slipway.dev/v1/widgets"
    found = await kube.get(everywhere, fieldSelector=f"metadata.name=unique-name,metadata.namespace={widgets.name}")
    assert found.names == ["unique-name"]


async def test_selectable_fields_of_custom_resources(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """selectableFields are field labels, also of defaulted fields; other fields are refused."""
    await kube.post(widgets.widgets(), a_widget("one"))
    await kube.post(widgets.widgets(), a_widget("two", color="blue"))
    await kube.patch(widgets.widgets("two", "status"), {"status": {"phase": "Done"}})
    assert (await kube.get(widgets.widgets(), fieldSelector="status.phase=New")).names == ["one"]
    assert (await kube.get(widgets.widgets(), fieldSelector="status.phase!=New,spec.color=blue")).names == ["two"]
    assert (await kube.get(widgets.widgets(), fieldSelector="spec.size=1")).code == 400


async def test_list_has_a_kind_and_a_version(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A list's resourceVersion is at or above that of every item."""
    await _configs(kube, ns)
    answer = await kube.get(ns.of("configmaps"))
    assert answer.body["kind"] == "ConfigMapList"
    assert all(int(item["metadata"]["resourceVersion"]) <= int(answer.version) for item in answer.body["items"])


async def test_pages_cover_the_list_once(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Pages with limit and continue have all items, in order, with the remaining number."""
    await _configs(kube, ns)
    whole = (await kube.get(ns.of("configmaps"))).names
    first = await kube.get(ns.of("configmaps"), limit=2)
    assert first.body["metadata"]["remainingItemCount"] == len(whole) - 2
    found, token = first.names, first.body["metadata"]["continue"]
    while token:
        page = await kube.get(ns.of("configmaps"), limit=2, **{"continue": token})
        found += page.names
        token = page.body["metadata"].get("continue", "")
    assert found == whole


async def test_pages_show_one_version(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An object written between two pages is not in the second page."""
    await _configs(kube, ns)
    first = await kube.get(ns.of("configmaps"), limit=1, labelSelector="own")
    await kube.post(ns.of("configmaps"), a_config("c", labels={"own": "yes"}))
    await kube.delete(ns.of("configmaps", "e"))
    token = first.body["metadata"]["continue"]
    rest = await kube.get(ns.of("configmaps"), labelSelector="own", **{"continue": token})
    assert first.names + rest.names == ["a", "b", "d", "e"]
    assert rest.version == first.version


async def test_remaining_count_is_unknown_under_a_selector(kube: KubeHttp, ns: NamespacePaths) -> None:
    """With a selector the answer has no remainingItemCount."""
    await _configs(kube, ns)
    answer = await kube.get(ns.of("configmaps"), limit=1, labelSelector="own")
    assert answer.body["metadata"]["continue"]
    assert "remainingItemCount" not in answer.body["metadata"]


async def test_bad_continue_token_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A bad continue token gets 400."""
    assert (await kube.get(ns.of("configmaps"), limit=1, **{"continue": "nonsense"})).code == 400


async def test_list_at_an_exact_version(kube: KubeHttp, ns: NamespacePaths) -> None:
    """resourceVersionMatch=Exact returns the past state."""
    made = await kube.post(ns.of("configmaps"), a_config("a", labels={"own": "yes"}))
    await kube.post(ns.of("configmaps"), a_config("b", labels={"own": "yes"}))
    query = {"resourceVersion": made.version, "resourceVersionMatch": "Exact", "labelSelector": "own"}
    assert (await kube.get(ns.of("configmaps"), **query)).names == ["a"]


async def test_lists_are_ordered_by_namespace_and_name(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Lists are in key order: by namespace, then name."""
    for name in ("z", "m", "k"):
        await kube.post(ns.of("configmaps"), a_config(name, labels={"own": "yes"}))
    assert (await kube.get(ns.of("configmaps"), labelSelector="own")).names == ["k", "m", "z"]


async def test_path_of_no_resource_is_not_found(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The path of an unknown resource gets 404, not an empty list."""
    assert (await kube.get(ns.of("gadgets"))).code == 404
    assert (await kube.get("/apis/nowhere.dev/v1/things")).code == 404
