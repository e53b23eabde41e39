"""The generated CRDs: legal structural schemas, with what selectors, columns and rules need."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from slipway.crd import rules, schema
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, RoleSpec

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = {manifest["spec"]["names"]["kind"]: manifest for manifest in schema.crd_manifests()}
TYPES = {"object", "array", "string", "integer", "number", "boolean"}


def version_of(kind: str) -> dict[str, Any]:
    return MANIFESTS[kind]["spec"]["versions"][0]


def root_of(kind: str) -> dict[str, Any]:
    return version_of(kind)["schema"]["openAPIV3Schema"]


def every_node(node: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield at, node
    for name, child in node.get("properties", {}).items():
        yield from every_node(child, f"{at}/{name}")
    for below in ("items", "additionalProperties"):
        if below in node:
            yield from every_node(node[below], f"{at}/{below}")


def test_there_are_five_kinds_with_their_names() -> None:
    """Kinds, short names and scopes are a contract with every kubectl."""
    names = {kind: manifest["spec"]["names"]["shortNames"] for kind, manifest in MANIFESTS.items()}
    assert names == {
        "Allocation": ["alloc"],
        "ResourcePool": ["rpool"],
        "Queue": ["sq"],
        "Job": ["sjob"],
        "Template": ["stmpl"],
    }
    cluster = {kind for kind, manifest in MANIFESTS.items() if manifest["spec"]["scope"] == "Cluster"}
    assert cluster == {"ResourcePool", "Queue"}
    assert all(manifest["spec"]["names"]["categories"] == ["slipway"] for manifest in MANIFESTS.values())


@pytest.mark.parametrize("kind", MANIFESTS)
def test_schemas_are_structural(kind: str) -> None:
    """Schemas are structural: every node has a type, or preserves unknown fields; none contains what Kubernetes
    forbids."""
    for at, node in every_node(root_of(kind)):
        is_free = node.get("x-kubernetes-preserve-unknown-fields") or node.get("x-kubernetes-int-or-string")
        assert node.get("type") in TYPES or is_free, at
        assert not ("properties" in node and "additionalProperties" in node), at
        assert not {"$ref", "oneOf", "allOf", "nullable", "uniqueItems", "definitions"} & node.keys(), at


@pytest.mark.parametrize("kind", MANIFESTS)
def test_everything_is_bounded(kind: str) -> None:
    """Every list, map and string is bounded, because the estimated cost of the rules is a product of the bounds."""
    for at, node in every_node(root_of(kind)):
        if at in ("/apiVersion", "/kind"):
            continue
        match node.get("type"):
            case "string":
                assert "maxLength" in node or "enum" in node, at
            case "array":
                assert "maxItems" in node, at
            case "object" if "additionalProperties" in node:
                assert "maxProperties" in node, at
            case _:
                pass


@pytest.mark.parametrize("kind", MANIFESTS)
def test_every_rule_is_in_its_place(kind: str) -> None:
    """Every rule of the table is at its place in the CRDs, and there are no others."""
    placed = [
        rule["rule"] for _, node in every_node(root_of(kind)) for rule in node.get("x-kubernetes-validations", [])
    ]
    assert sorted(placed) == sorted(rule.rule for rule in rules.RULES if rule.kind == kind)


def test_every_rule_names_a_field_that_exists() -> None:
    """`fieldPath` of a rule must be in the schema below it; the server refuses the CRD otherwise."""
    for rule in rules.RULES:
        node = root_of(rule.kind)
        for step in rule.path:
            node = node["items"] if step == "*" else node["properties"][step]
        for step in rule.field.split(".")[1:]:
            node = node["properties"][step]


def test_the_status_of_an_allocation_is_never_unset() -> None:
    """The status of an allocation is always set, because field selectors and rules ignore an unset one."""
    status = root_of("Allocation")["properties"]["status"]
    assert status["default"] == {"phase": "Pending", "seq": 0, "attempt": 1}
    defaults = {name: status["properties"][name]["default"] for name in ("phase", "seq", "attempt", "ready", "slots")}
    assert defaults == {"phase": "Pending", "seq": 0, "attempt": 1, "ready": False, "slots": 0}
    assert version_of("Allocation")["subresources"] == {"status": {}}


def test_defaults_of_the_schema_are_those_of_the_structs() -> None:
    """Defaults of the schema equal those of the structs: our encoder omits defaults, and the server must add the same
    ones."""
    for struct, node in (
        (AllocationSpec, root_of("Allocation")["properties"]["spec"]),
        (RoleSpec, root_of("Allocation")["properties"]["spec"]["properties"]["ranks"]["items"]),
    ):
        defaults = {name: child["default"] for name, child in node["properties"].items() if "default" in child}
        required = {"kind": "training"} if struct is AllocationSpec else {}
        assert msgspec.convert({**required, **defaults}, struct) == msgspec.convert(required, struct)


def test_an_allocation_needs_a_spec_with_a_kind_and_no_more() -> None:
    """Only `kind` is required; the rest has defaults."""
    assert root_of("Allocation")["required"] == ["metadata", "spec"]
    assert root_of("Allocation")["properties"]["spec"]["required"] == ["kind"]
    assert all(root_of(kind)["required"] == ["metadata"] for kind in MANIFESTS if kind != "Allocation")


def test_kubectl_get_shows_what_matters() -> None:
    """`kubectl get alloc`, also with `-o wide`, has these columns."""
    columns = version_of("Allocation")["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    wide = [column["name"] for column in columns if column.get("priority")]
    assert narrow == ["Kind", "Queue", "Priority", "Phase", "Ready", "Slots", "Position", "Age"]
    assert wide == ["Reason", "Nodes", "User", "Duration"]


def test_selectable_fields_exist_and_are_scalars() -> None:
    """Selectable fields exist and are scalars: R0 mode lists by phase, and the server accepts only string, boolean and
    integer fields."""
    paths = [field["jsonPath"] for field in version_of("Allocation")["selectableFields"]]
    assert paths == [".status.phase", ".spec.pool", ".spec.queue"]
    for path in paths:
        node = root_of("Allocation")
        for step in path.split(".")[1:]:
            node = node["properties"][step]
        assert node["type"] == "string"


def test_shapes_that_types_alone_do_not_say() -> None:
    """The schema has shapes that types alone do not express: quantities accept numbers and strings, alternatives are
    enums, templates are free, conditions merge by type."""
    spec = root_of("Allocation")["properties"]["spec"]["properties"]
    status = root_of("Allocation")["properties"]["status"]["properties"]
    assert spec["kind"]["enum"] == ["notebook", "shell", "command", "tensorboard", "training"]
    assert spec["desired"]["enum"] == ["Running", "Stopped"]
    assert spec["template"]["x-kubernetes-preserve-unknown-fields"] is True
    assert spec["priority"]["maximum"] == 1000
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert status["ranks"]["x-kubernetes-list-type"] == "atomic"
    assert status["ranks"]["maxItems"] == 4096
    assert status["ranks"]["items"]["required"] == ["podUID"]
    quantity = root_of("Queue")["properties"]["spec"]["properties"]["nominal"]["additionalProperties"]
    assert quantity["x-kubernetes-int-or-string"] is True


def test_fields_explain_themselves() -> None:
    """Fields have descriptions: `kubectl explain` shows the text below the field in the source."""
    properties = root_of("Allocation")["properties"]["spec"]["properties"]
    assert "PodTemplateSpec" in properties["template"]["description"]
    assert properties["maxRuntime"]["description"] == "such as 90s, 30m or 2h45m"


def test_the_charts_copies_are_fresh() -> None:
    """`make generate` was run: the chart installs what the code expects."""
    assert schema.main(["--check", str(ROOT / "helm" / "files" / "crds")]) == 0


def test_files_are_written_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files are written and checked: `--check` reports missing, changed and superfluous files."""
    assert schema.main([str(tmp_path)]) == 0
    assert schema.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "jobs.slipway.dev.yaml").write_text("other")
    (tmp_path / "old.yaml").write_text("")
    (tmp_path / "queues.slipway.dev.yaml").unlink()
    assert schema.main(["--check", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert all(name in told for name in ("jobs.slipway.dev.yaml", "old.yaml", "queues.slipway.dev.yaml"))
    assert schema.main([]) == 2


def test_yaml_is_what_other_readers_read() -> None:
    """The YAML is unambiguous for other readers: kubectl reads a bare `n` as false, so the files quote it."""
    text = schema.crd_files()["allocations.slipway.dev.yaml"]
    assert text.startswith("# Generated")
    assert "'n':" in text
    assert yaml.safe_load(text) == MANIFESTS["Allocation"]


def test_a_struct_with_no_structural_form_is_refused() -> None:
    """A struct without a structural form is refused at generation, before the server would refuse it."""

    class Odd(msgspec.Struct):
        value: int | list[int]

    with pytest.raises(TypeError, match="no structural schema"):
        schema.schema_of(Odd)


def test_what_the_server_stores_decodes() -> None:
    """An object with every default filled in is the object without them."""
    bare = {"metadata": {"name": "a"}, "spec": {"kind": "command"}}
    spec = root_of("Allocation")["properties"]["spec"]["properties"]
    full = {**bare, "spec": {"kind": "command", **{n: c["default"] for n, c in spec.items() if "default" in c}}}
    assert msgspec.convert(full, Allocation) == msgspec.convert(bare, Allocation)
