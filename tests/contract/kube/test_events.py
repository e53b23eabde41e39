"""Events: one collection, served by the core API and by events.k8s.io."""

from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import Json

NOW, LATER = "2026-11-21T12:00:00.000000Z", "2026-11-21T12:00:05.000000Z"


def _news(ns: NamespacePaths, name: str = "") -> str:
    base = f"/apis/events.k8s.io/v1/namespaces/{ns.name}/events"
    return f"{base}/{name}" if name else base


def _pod(ns: NamespacePaths, name: str = "p") -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "namespace": ns.name, "name": name, "uid": f"uid-of-{name}"}


def an_old(ns: NamespacePaths, name: str = "e", **fields: Any) -> Json:
    fixed = {"involvedObject": _pod(ns), "reason": "Pulling", "message": "pulling the image"}
    times = {"firstTimestamp": "2026-11-21T12:00:00Z", "lastTimestamp": "2026-11-21T12:00:01Z", "count": 2}
    return {"metadata": {"name": name}, **fixed, **times, "source": {"component": "kubelet", "host": "n"}, **fields}


def a_new(ns: NamespacePaths, name: str = "e", **fields: Any) -> Json:
    fixed = {"regarding": _pod(ns), "reason": "Binding", "note": "bound", "type": "Normal", "action": "Bind"}
    reporter = {"reportingController": "slipway.dev/scheduler", "reportingInstance": "scheduler-0"}
    return {"metadata": {"name": name}, "eventTime": NOW, **fixed, **reporter, **fields}


async def test_old_form_is_read_in_the_new(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Fields that the new form no longer has are shown with the prefix deprecated."""
    made = await kube.post(ns.of("events"), an_old(ns, type="Warning"))
    assert (made.code, made.body.get("type")) == (201, "Warning")
    found = await kube.get(_news(ns, "e"))
    assert (found.body["apiVersion"], found.body["kind"]) == ("events.k8s.io/v1", "Event")
    assert (found.uid, found.version) == (made.uid, made.version)
    shown = {field: found.body[field] for field in ("regarding", "reason", "note", "type", "deprecatedCount")}
    assert shown == {
        "regarding": _pod(ns),
        "reason": "Pulling",
        "note": "pulling the image",
        "type": "Warning",
        "deprecatedCount": 2,
    }
    assert found.body["deprecatedSource"] == {"component": "kubelet", "host": "n"}
    assert found.body["deprecatedFirstTimestamp"] == "2026-11-21T12:00:00Z"
    assert "message" not in found.body


async def test_type_is_not_guessed(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An event of the core form may have no type."""
    made = await kube.post(ns.of("events"), an_old(ns))
    assert (made.code, "type" in made.body) == (201, False)


async def test_new_form_is_read_in_the_old(kube: KubeHttp, ns: NamespacePaths) -> None:
    """In the old form reportingController is called reportingComponent."""
    made = await kube.post(_news(ns), a_new(ns))
    assert made.code == 201, made.body
    found = (await kube.get(ns.of("events", "e"))).body
    assert (found["apiVersion"], found["involvedObject"], found["message"]) == ("v1", _pod(ns), "bound")
    assert (found["reportingComponent"], found["reportingInstance"]) == ("slipway.dev/scheduler", "scheduler-0")
    assert (found["eventTime"], found["action"]) == (NOW, "Bind")
    listed = await kube.get(ns.of("events"))
    assert listed.names == ["e"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("involvedObject.name=p", ["a"]),
        ("involvedObject.name=p,involvedObject.kind=Pod,involvedObject.uid=uid-of-p", ["a"]),
        ("involvedObject.name!=p", ["b"]),
        ("reason=Pulling", ["a"]),
        ("type=Warning", ["b"]),
        ("source=kubelet", ["a"]),
        ("involvedObject.fieldPath=spec.containers{main}", ["b"]),
    ],
)
async def test_field_selectors_of_the_old_form(
    kube: KubeHttp, ns: NamespacePaths, selector: str, names: list[str]
) -> None:
    """The field selectors of `kubectl describe` and `kubectl get events` work."""
    await kube.post(ns.of("events"), an_old(ns, "a"))
    other = {**_pod(ns, "q"), "fieldPath": "spec.containers{main}"}
    fields: Json = {"involvedObject": other, "type": "Warning", "reason": "Failed", "source": {"component": "x"}}
    await kube.post(ns.of("events"), an_old(ns, "b", **fields))
    assert (await kube.get(ns.of("events"), fieldSelector=selector)).names == names


@pytest.mark.parametrize(
    ("selector", "names"),
    [("regarding.name=p", ["a"]), ("regarding.kind=Pod,reason=Binding", ["a", "b"]), ("regarding.uid=uid-of-q", ["b"])],
)
async def test_field_selectors_of_the_new_form(
    kube: KubeHttp, ns: NamespacePaths, selector: str, names: list[str]
) -> None:
    """The new form selects by regarding, not by involvedObject."""
    await kube.post(_news(ns), a_new(ns, "a"))
    await kube.post(_news(ns), a_new(ns, "b", regarding=_pod(ns, "q")))
    assert (await kube.get(_news(ns), fieldSelector=selector)).names == names
    refused = await kube.get(_news(ns), fieldSelector="involvedObject.name=p")
    assert (refused.code, refused.message) == (400, "field label not supported: involvedObject.name")


async def test_watch_of_either_form_sees_both(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A watch of either form gets the events of both, each in the watched form."""
    start = (await kube.get(_news(ns))).version
    async with kube.watch(_news(ns), resourceVersion=start) as watched:
        await kube.post(ns.of("events"), an_old(ns, "a"))
        await kube.post(_news(ns), a_new(ns, "b"))
        events = [await watched.next(), await watched.next()]
    assert [event["object"]["apiVersion"] for event in events] == ["events.k8s.io/v1"] * 2
    assert [event["object"]["note"] for event in events] == ["pulling the image", "bound"]


async def test_watch_of_the_new_form_begins_with_the_present(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The watch selects by the fields of the new form, and shows present events in it."""
    await kube.post(ns.of("events"), an_old(ns, "a"))
    await kube.post(_news(ns), a_new(ns, "b", regarding=_pod(ns, "q")))
    async with kube.watch(_news(ns), fieldSelector="regarding.name=q") as watched:
        first = await watched.next()
    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "b")
    assert (first["object"]["apiVersion"], first["object"]["note"]) == ("events.k8s.io/v1", "bound")


async def test_series_is_patched(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A recorder that repeats an event counts it in the series."""
    await kube.post(_news(ns), a_new(ns))
    series = {"series": {"count": 2, "lastObservedTime": LATER}}
    patched = await kube.patch(_news(ns, "e"), series)
    assert (patched.code, patched.body["series"]) == (200, {"count": 2, "lastObservedTime": LATER})
    assert (await kube.get(ns.of("events", "e"))).body["series"]["count"] == 2


async def test_new_form_does_not_change(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Another note in an event of the new form gets 422."""
    await kube.post(_news(ns), a_new(ns))
    refused = await kube.patch(_news(ns, "e"), {"note": "something else"})
    assert (refused.code, refused.reason) == (422, "Invalid")
    assert "field is immutable" in refused.message


async def test_old_form_changes(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An event of the old form may change its count and time, as old recorders do."""
    await kube.post(ns.of("events"), an_old(ns))
    change = {"count": 3, "lastTimestamp": "2026-11-21T12:01:00Z"}
    patched = await kube.patch(ns.of("events", "e"), change)
    assert (patched.code, patched.body["count"]) == (200, 3)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"eventTime": None}, "eventTime"),
        ({"type": "Loud"}, "type"),
        ({"action": ""}, "action"),
        ({"reason": ""}, "reason"),
        ({"reportingController": ""}, "reportingController"),
        ({"reportingInstance": ""}, "reportingInstance"),
        ({"note": "x" * 1025}, "message"),
        ({"deprecatedCount": 1}, "count"),
        ({"series": {"count": 1, "lastObservedTime": LATER}}, "series.count"),
    ],
)
async def test_new_form_is_checked_strictly(kube: KubeHttp, ns: NamespacePaths, fields: Json, field: str) -> None:
    """An invalid event of the new form gets 422 with the field."""
    answer = await kube.post(_news(ns), a_new(ns, **fields))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert field in [cause["field"] for cause in answer.causes]


async def test_event_is_in_the_namespace_of_its_object(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An event is in the object's namespace; events of cluster-scoped objects are in `default`."""
    wrong = await kube.post(ns.of("events"), an_old(ns, involvedObject={**_pod(ns), "namespace": "other"}))
    assert (wrong.code, wrong.causes[0]["field"]) == (422, "involvedObject.namespace")
    node = {"kind": "Node", "name": "n"}
    nowhere = await kube.post(ns.of("events"), an_old(ns, involvedObject=node))
    assert nowhere.code == 422
    name = f"contract-{ns.name}"
    right = await kube.post("/api/v1/namespaces/default/events", an_old(ns, name, involvedObject=node))
    assert right.code == 201
    await kube.delete(f"/api/v1/namespaces/default/events/{name}")


async def test_collection_goes_at_once(kube: KubeHttp, ns: NamespacePaths) -> None:
    """deletecollection works through either form, by selector."""
    await kube.post(ns.of("events"), an_old(ns, "a"))
    await kube.post(_news(ns), a_new(ns, "b"))
    gone = await kube.delete(_news(ns), fieldSelector="reason=Binding")
    assert (gone.code, gone.names) == (200, ["b"])
    assert gone.body["apiVersion"] == "events.k8s.io/v1"
    assert (await kube.get(ns.of("events"))).names == ["a"]
