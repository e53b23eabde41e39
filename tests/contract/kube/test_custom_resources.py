"""Custom resources: definitions, structural validation, defaulting, pruning, rules."""

from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import CRDS, GROUP, VERSION, a_config, a_widget, definition


@pytest.mark.usefixtures("widgets")
async def test_definition_is_established(kube: KubeHttp) -> None:
    """Conditions Established and NamesAccepted become True."""
    found = await kube.get(f"{CRDS}/widgets.{GROUP}")
    conditions = {item["type"]: item["status"] for item in found.body["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert found.body["status"]["storedVersions"] == [VERSION]


BAD_SPECS: list[tuple[dict[str, Any], str, str]] = [
    ({"size": "big"}, "spec.size", "must be of type integer"),
    ({"size": 0}, "spec.size", "should be greater than or equal to 1"),
    ({"size": 101}, "spec.size", "should be less than or equal to 100"),
    ({"size": 1.5}, "spec.size", "must be of type integer"),
    ({"color": "green"}, "spec.color", 'Unsupported value: "green": supported values: "red", "blue"'),
    ({"code": "ABC"}, "spec.code", "should match '^[a-z]+$'"),
    ({"code": "abcdefghi"}, "spec.code", "Too long"),
    ({"parts": ["a", "b", "c", "d"]}, "spec.parts", "Too many: 4: must have at most 3 items"),
    ({"tags": ["a", "a"]}, "spec.tags[1]", "Duplicate value"),
    ({"doors": [{"name": "a"}, {"name": "a"}]}, "spec.doors[1]", "Duplicate value"),
    ({"doors": [{}]}, "spec.doors[0].name", "Required value"),
    ({"port": True}, "spec.port", "must be of type"),
    ({"labels": {"a": 1}}, "spec.labels.a", "must be of type string"),
]


@pytest.mark.parametrize(("spec", "field", "words"), BAD_SPECS)
async def test_structure_is_validated(
    kube: KubeHttp, widgets: NamespacePaths, spec: dict[str, Any], field: str, words: str
) -> None:
    """A wrong structure gets 422 with the field and the server's words."""
    answer = await kube.post(widgets.widgets(), a_widget(**spec))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert words in answer.message
    assert field in [cause["field"] for cause in answer.causes]
    assert answer.message.startswith(f'Widget.{GROUP} "w" is invalid: ')


async def test_required_fields(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A missing required field is named."""
    widget = a_widget()
    del widget["spec"]["size"]
    answer = await kube.post(widgets.widgets(), widget)
    assert answer.code == 422
    assert "spec.size: Required value" in answer.message


async def test_defaults_are_filled_in(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Defaults of spec, of list items and of status are stored."""
    made = await kube.post(widgets.widgets(), a_widget(doors=[{"name": "a"}]))
    assert made.body["spec"]["color"] == "red"
    assert made.body["spec"]["doors"] == [{"name": "a", "wide": False}]
    assert made.body["status"] == {"phase": "New"}


async def test_int_or_string_takes_both(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A field with x-kubernetes-int-or-string accepts both."""
    assert (await kube.post(widgets.widgets(), a_widget("i", port=80))).code == 201
    assert (await kube.post(widgets.widgets(), a_widget("s", port="http"))).code == 201


async def test_null_is_allowed_in_nullable_fields_only(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """null is kept in a nullable field; in a field with a default it becomes the default."""
    made = await kube.post(widgets.widgets(), a_widget(note=None, color=None))
    assert made.body["spec"]["note"] is None
    assert made.body["spec"]["color"] == "red"


async def test_unknown_fields_are_pruned(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Fields that the schema does not know are dropped, but not below preserve-unknown-fields."""
    made = await kube.post(widgets.widgets(), a_widget(foo=1, free={"any": {"thing": 1}}))
    assert made.code == 201
    assert "foo" not in made.body["spec"]
    assert made.body["spec"]["free"] == {"any": {"thing": 1}}


async def test_unknown_fields_give_a_warning(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """With fieldValidation=Warn (the default) the answer has a Warning header; with Ignore it has none."""
    warned = await kube.post(widgets.widgets(), a_widget("a", foo=1))
    ignored = await kube.post(widgets.widgets(), a_widget("b", foo=1), fieldValidation="Ignore")
    assert 'unknown field \\"spec.foo\\"' in warned.headers["warning"]
    assert "warning" not in ignored.headers


async def test_strict_validation_refuses_unknown_fields(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """With fieldValidation=Strict an unknown field gets 400 'strict decoding error'."""
    answer = await kube.post(widgets.widgets(), a_widget(foo=1), fieldValidation="Strict")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.foo"' in answer.message


async def test_rules_are_enforced(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A CEL rule that fails gets 422 with the rule's message at the field's path."""
    answer = await kube.post(widgets.widgets(), a_widget(range={"low": 2, "high": 1}))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.causes[0]["field"] == "spec.range"
    assert "low is above high" in answer.message


async def test_transition_rules_compare_with_the_old_value(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Transition rules run on updates only."""
    await kube.post(widgets.widgets(), a_widget(size=5))
    assert (await kube.patch(widgets.widgets("w"), {"spec": {"size": 6}})).code == 200
    answer = await kube.patch(widgets.widgets("w"), {"spec": {"size": 4}})
    assert answer.code == 422
    assert "a widget never shrinks" in answer.message


async def test_status_writes_are_validated(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """The schema applies to /status too."""
    await kube.post(widgets.widgets(), a_widget())
    answer = await kube.patch(widgets.widgets("w", "status"), {"status": {"seen": "x"}})
    assert answer.code == 422


async def test_wrong_kind_in_the_body_is_refused(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A wrong kind gets 422 for a custom kind, with all broken rules, and 400 for a built-in one."""
    answer = await kube.post(widgets.widgets(), {**a_widget(), "kind": "Gadget"})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.causes[0]["message"] == 'Invalid value: "Gadget": must be Widget'
    broken = await kube.post(widgets.widgets(), {**a_widget(range={"low": 2, "high": 1}), "kind": "Gadget"})
    assert [cause["field"] for cause in broken.causes] == ["kind", "spec.range"]
    built_in = await kube.post(widgets.of("configmaps"), {**a_config(), "kind": "Gadget"})
    assert (built_in.code, built_in.reason) == (400, "BadRequest")


async def test_definition_that_goes_takes_its_objects_along(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Deleting a definition deletes its objects and ends its paths."""
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{ns.name}/sprockets"
    assert (await kube.post(CRDS, definition("sprockets", "Sprocket"))).code == 201

    async def is_served() -> bool:
        return (await kube.get(path)).code == 200

    await eventually(is_served, "the new kind is served")
    made = await kube.post(path, {**a_widget(), "kind": "Sprocket"})
    assert made.code == 201
    await kube.delete(f"{CRDS}/sprockets.{GROUP}")

    async def is_gone() -> bool:
        definition_code = (await kube.get(f"{CRDS}/sprockets.{GROUP}")).code
        return definition_code == 404 and (await kube.get(path)).code == 404

    await eventually(is_gone, "definition and path are gone")


async def test_definition_needs_its_canonical_name(kube: KubeHttp) -> None:
    """metadata.name of a definition must be <plural>.<group>."""
    body = definition("levers", "Lever")
    body["metadata"]["name"] = "other.contract.slipway.dev"
    answer = await kube.post(CRDS, body)
    assert (answer.code, answer.reason) == (422, "Invalid")


async def test_tables_have_the_declared_columns(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A table has the additionalPrinterColumns after the name."""
    await kube.post(widgets.widgets(), a_widget())
    answer = await kube.get(widgets.widgets(), accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert answer.body["kind"] == "Table"
    assert [column["name"] for column in answer.body["columnDefinitions"]] == ["Name", "Size", "Phase"]
    assert answer.body["rows"][0]["cells"] == ["w", 1, "New"]
    assert answer.body["rows"][0]["object"]["metadata"]["name"] == "w"
