"""How late and second writers are refused: by versions, uids and tests in a patch; and expired versions."""

import asyncio

from tests.contract.kube.client import JSON_PATCH, STRATEGIC, KubeHttp
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import CRDS, GROUP, VERSION, Json, a_config, a_widget, definition

NOBODY = "00000000-0000-0000-0000-000000000000"


async def test_of_racing_writers_one_wins(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Of ten PUTs under one version, one gets 200 and nine get 409."""
    made = await kube.post(ns.of("configmaps"), a_config())
    wanted = [{**made.body, "data": {"winner": str(index)}} for index in range(10)]
    answers = await asyncio.gather(*(kube.put(ns.of("configmaps", "c"), each) for each in wanted))
    assert sorted(answer.code for answer in answers) == [200, *[409] * 9]


async def test_of_racing_creators_one_wins(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Of ten creates of one name, one gets 201 and nine get AlreadyExists."""
    answers = await asyncio.gather(*(kube.post(ns.of("configmaps"), a_config()) for _ in range(10)))
    assert sorted((answer.code, answer.reason) for answer in answers) == [(201, ""), *[(409, "AlreadyExists")] * 9]


async def test_stale_strategic_patch_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A resourceVersion in a patch is a precondition, whatever the patch's type."""
    made = await kube.post(ns.of("configmaps"), a_config())
    await kube.patch(ns.of("configmaps", "c"), {"data": {"a": "1"}})
    change: Json = {"metadata": {"resourceVersion": made.version}, "data": {"a": "2"}}
    assert (await kube.patch(ns.of("configmaps", "c"), change, STRATEGIC)).code == 409


async def test_failed_test_in_a_patch_changes_nothing(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A JSON patch whose `test` fails gets 422."""
    await kube.post(ns.of("configmaps"), a_config(data={"a": "1"}))
    operations = [{"op": "test", "path": "/data/a", "value": "9"}, {"op": "replace", "path": "/data/a", "value": "2"}]
    answer = await kube.patch(ns.of("configmaps", "c"), operations, JSON_PATCH)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert (await kube.get(ns.of("configmaps", "c"))).body["data"] == {"a": "1"}


async def test_patch_can_not_change_the_uid(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A patch of the uid gets 422, because it is immutable; so a patch meant for another object of this name fails."""
    await kube.post(widgets.widgets(), a_widget())
    answer = await kube.patch(widgets.widgets("w"), {"metadata": {"uid": NOBODY}})
    assert (answer.code, answer.causes[0]["field"]) == (422, "metadata.uid")


async def test_replace_needs_a_name(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A replace without a name gets 400: the path alone does not name the object."""
    await kube.post(ns.of("configmaps"), a_config())
    answer = await kube.put(ns.of("configmaps", "c"), {"data": {}})
    assert answer.code == 400
    assert "name must be provided" in answer.message


async def test_replace_under_another_name_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A replace with another name gets 400."""
    await kube.post(ns.of("configmaps"), a_config())
    answer = await kube.put(ns.of("configmaps", "c"), a_config("d"))
    assert answer.code == 400
    assert "does not match the name on the URL" in answer.message


async def test_delete_of_a_changed_object_is_a_conflict(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A delete with an old version or another uid as a precondition is refused; the answer names the kind."""
    made = await kube.post(widgets.widgets(), a_widget())
    await kube.patch(widgets.widgets("w", "status"), {"status": {"seen": 1}})
    for condition in ({"resourceVersion": made.version}, {"uid": NOBODY}):
        answer = await kube.delete(widgets.widgets("w"), {"preconditions": condition})
        assert (answer.code, answer.body["details"]["kind"]) == (409, "Widget")
    assert (await kube.delete(widgets.widgets("w"), {"preconditions": {"uid": made.uid}})).code == 200


async def test_wrong_propagation_policy_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A wrong policy gets 422 with a cause, and the object stays."""
    await kube.post(ns.of("configmaps"), a_config())
    answer = await kube.delete(ns.of("configmaps", "c"), {"propagationPolicy": "Sideways"})
    assert (answer.code, answer.causes[0]["field"]) == (422, "propagationPolicy")
    assert (await kube.get(ns.of("configmaps", "c"))).code == 200


async def test_watch_from_a_version_that_is_gone_expires(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """The watch answers 200 with an ERROR event that contains a 410 Status, and ends."""
    # The kind is newer than version 1: how far back a server remembers an older kind depends on when it was started.
    async with kube.watch(widgets.widgets(), resourceVersion="1") as events:
        found = await events.rest()
    assert [event["type"] for event in found] == ["ERROR"]
    assert (found[0]["object"]["code"], found[0]["object"]["reason"]) == (410, "Expired")


async def test_watch_from_before_its_definition_was_made_again_expires(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The events of the kind are lost with the old definition, so the watch gets 410 and ends, and is never silent."""
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{ns.name}/cogs"

    async def answers(code: int) -> None:
        async def does() -> bool:
            return (await kube.get(path)).code == code

        await eventually(does, f"the kind answers {code}")

    await kube.post(CRDS, definition("cogs", "Cog"))
    await answers(200)
    seen = (await kube.post(path, {**a_widget(), "kind": "Cog"})).version
    await kube.delete(f"{CRDS}/cogs.{GROUP}")
    await answers(404)
    await eventually(lambda: _is_missing(kube, f"{CRDS}/cogs.{GROUP}"), "the definition is gone")
    await kube.post(CRDS, definition("cogs", "Cog"))
    await answers(200)
    async with kube.watch(path, resourceVersion=seen) as events:
        found = await events.rest()
    await kube.delete(f"{CRDS}/cogs.{GROUP}")
    assert [(event["type"], event["object"]["reason"]) for event in found] == [("ERROR", "Expired")]


async def _is_missing(kube: KubeHttp, path: str) -> bool:
    return (await kube.get(path)).code == 404


async def test_list_of_a_version_to_come_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A list at a future version gets 504 with the cause ResourceVersionTooLarge and a time to wait."""
    version = int((await kube.get(ns.of("configmaps"))).version) + 1_000_000
    answer = await kube.get(ns.of("configmaps"), resourceVersion=version)
    assert (answer.code, answer.causes[0]["reason"]) == (504, "ResourceVersionTooLarge")
    assert answer.headers["retry-after"] == "1"


async def test_match_of_a_version_needs_a_version(kube: KubeHttp, ns: NamespacePaths) -> None:
    """resourceVersionMatch alone gets 422, and so does an unknown value."""
    alone = await kube.get(ns.of("configmaps"), resourceVersionMatch="Exact")
    wrong = await kube.get(ns.of("configmaps"), resourceVersionMatch="About", resourceVersion="5")
    for answer in (alone, wrong):
        assert (answer.code, answer.causes[0]["field"]) == (422, "resourceVersionMatch")


async def test_initial_events_need_their_match(kube: KubeHttp, ns: NamespacePaths) -> None:
    """sendInitialEvents without resourceVersionMatch=NotOlderThan gets 422."""
    answer = await kube.get(ns.of("configmaps"), watch="true", sendInitialEvents="true", timeoutSeconds="1")
    assert (answer.code, answer.causes[0]["field"]) == (422, "resourceVersionMatch")


async def test_watch_without_asking_has_no_bookmarks(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Only a client that requests bookmarks gets them."""
    made = await kube.post(widgets.widgets(), a_widget())
    async with kube.watch(widgets.widgets(), resourceVersion=made.version, timeoutSeconds="1") as events:
        assert await events.rest() == []
