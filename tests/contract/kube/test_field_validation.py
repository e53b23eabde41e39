"""How the server treats fields that do not exist, are duplicated or have another type."""

import pytest

from tests.contract.kube.client import JSON_PATCH, MERGE, STRATEGIC, KubeHttp
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import Json, a_config, a_pod, a_widget

TWICE = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","name":"d"},"data":{"a":"1","a":"2"},"bar":1}'


def _pod() -> Json:
    pod = a_pod(schedulerName="nobody", nothing=1)
    pod["spec"]["containers"][0]["imag"] = "x"
    pod["metadata"]["labelz"] = {}
    return pod


async def test_strict_refuses_unknown_fields(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Unknown fields get 400, which names each with its path, in the order of the document; nothing is created."""
    answer = await kube.post(ns.of("pods"), _pod(), fieldValidation="Strict")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert answer.message == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "metadata.labelz", '
        'unknown field "spec.containers[0].imag", unknown field "spec.nothing"'
    )
    assert (await kube.get(ns.of("pods", "p"))).code == 404


@pytest.mark.parametrize("validation", ["Warn", ""])
async def test_warn_is_the_default(kube: KubeHttp, ns: NamespacePaths, validation: str) -> None:
    """The object is created without the field, and a Warning header names it."""
    query = {"fieldValidation": validation} if validation else {}
    answer = await kube.post(ns.of("configmaps"), {**a_config(), "nothing": 1}, **query)
    assert answer.code == 201
    assert answer.headers["warning"] == '299 - "unknown field \\"nothing\\""'
    assert "nothing" not in (await kube.get(ns.of("configmaps", "c"))).body


async def test_ignore_says_nothing(kube: KubeHttp, ns: NamespacePaths) -> None:
    """With Ignore the field is dropped without a warning."""
    answer = await kube.post(ns.of("configmaps"), {**a_config(), "nothing": 1}, fieldValidation="Ignore")
    assert (answer.code, "warning" in answer.headers, "nothing" in answer.body) == (201, False, False)


async def test_strict_refuses_duplicates(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Duplicate fields are named with the unknown ones, in the order of the document."""
    answer = await kube.send_raw("POST", ns.of("configmaps") + "?fieldValidation=Strict", TWICE, "application/json")
    assert answer.code == 400
    assert answer.message == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field '
        '"metadata.name", duplicate field "data.a", unknown field "bar"'
    )


async def test_last_duplicate_counts(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The last duplicate is stored, with a warning for each."""
    answer = await kube.send_raw("POST", ns.of("configmaps"), TWICE, "application/json")
    assert (answer.code, answer.body["metadata"]["name"], answer.body["data"]) == (201, "d", {"a": "2"})
    assert 'duplicate field \\"data.a\\"' in answer.headers["warning"]


async def test_unknown_validation_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An unknown fieldValidation gets 422 with a cause."""
    answer = await kube.post(ns.of("configmaps"), a_config(), fieldValidation="Often")
    assert (answer.code, answer.causes[0]["field"]) == (422, "fieldValidation")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"hostNetwork": "yes"}, "cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool"),
        (
            {"terminationGracePeriodSeconds": "5"},
            "cannot unmarshal string into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64",
        ),
        (
            {"nodeSelector": {"a": 1}},
            "cannot unmarshal number into Go struct field PodSpec.spec.nodeSelector of type string",
        ),
        (
            {"containers": {}},
            "cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            {"tolerations": [{"tolerationSeconds": 1.5}]},
            "cannot unmarshal number 1.5 into Go struct field Toleration.spec.tolerations.tolerationSeconds",
        ),
        (
            {"containers": [{"name": "a", "image": "b", "env": [{"name": "A", "value": 1}]}]},
            "cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string",
        ),
        (
            {"containers": [{"name": "a", "image": "b", "resources": {"limits": {"cpu": "xx"}}}]},
            "quantities must match the regular expression",
        ),
    ],
)
async def test_wrong_types_do_not_decode(kube: KubeHttp, ns: NamespacePaths, spec: Json, words: str) -> None:
    """A wrong type gets 400 in the words of the decoder, whatever the validation."""
    answer = await kube.post(ns.of("pods"), a_pod(schedulerName="nobody", **spec), fieldValidation="Ignore")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert words in answer.message


async def test_empty_values_are_left_out(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Values that Go omits when empty are not stored (empty lists and maps, false, empty texts); explicit pointers
    stay."""
    pod = a_pod(schedulerName="nobody", hostNetwork=False, nodeSelector={}, hostname="", shareProcessNamespace=False)
    pod["spec"]["containers"][0] |= {"env": [], "args": [], "tty": False}
    answer = await kube.post(ns.of("pods"), pod)
    spec = answer.body["spec"]
    assert not {"hostNetwork", "nodeSelector", "hostname"} & spec.keys()
    assert not {"env", "args", "tty"} & spec["containers"][0].keys()
    assert spec["shareProcessNamespace"] is False


async def test_quantities_are_normalised(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Quantities are stored in canonical form in every field: 1024Mi is 1Gi, 0.5 is 500m."""
    hard = {"limits.memory": "1024Mi", "limits.cpu": 0.5}
    answer = await kube.post(ns.of("resourcequotas"), {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    assert answer.body["spec"]["hard"] == {"limits.memory": "1Gi", "limits.cpu": "500m"}


async def test_strict_holds_for_custom_kinds(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Unknown fields of metadata are named first, then the others by path."""
    body: Json = {**a_widget(nothing=1), "bar": 2}
    body["metadata"]["labelz"] = {}
    answer = await kube.post(widgets.widgets(), body, fieldValidation="Strict")
    assert answer.code == 400
    assert answer.message == (
        'Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "metadata.labelz", '
        'unknown field "bar", unknown field "spec.nothing"'
    )


async def test_nulls_of_custom_kinds_are_pruned(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A null is dropped, unless its field is nullable or has no schema; a required field is then missing."""
    answer = await kube.post(widgets.widgets(), a_widget(code=None, note=None, color=None))
    assert answer.body["spec"] == {"size": 1, "note": None, "color": "red"}
    free = await kube.post(widgets.widgets(), a_widget("free", free=None))
    assert "free" not in free.body["spec"]
    within = await kube.post(widgets.widgets(), a_widget("within", free={"a": None}))
    assert within.body["spec"]["free"] == {"a": None}
    missing = await kube.post(widgets.widgets(), a_widget("other", size=None))
    assert (missing.code, missing.causes[0]) == (
        422, {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.size"},
    )  # fmt: skip


async def test_metadata_of_custom_kinds_has_types(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A wrong type in metadata gets 400 in the words of the decoder."""
    body = a_widget()
    body["metadata"]["finalizers"] = "x"
    answer = await kube.post(widgets.widgets(), body)
    assert answer.code == 400
    assert "cannot unmarshal string into Go struct field ObjectMeta.finalizers of type []string" in answer.message


async def test_strict_patch_is_refused(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A strict patch of any type gets 422 when its result has an unknown field."""
    await kube.post(widgets.widgets(), a_widget())
    await kube.post(widgets.of("configmaps"), a_config(labels={"a": "b"}))
    merged = await kube.patch(widgets.widgets("w"), {"spec": {"no": 1}}, MERGE, fieldValidation="Strict")
    added = [{"op": "add", "path": "/spec/no", "value": 1}]
    listed = await kube.patch(widgets.widgets("w"), added, JSON_PATCH, fieldValidation="Strict")
    strategic = await kube.patch(widgets.of("configmaps", "c"), {"no": 1}, STRATEGIC, fieldValidation="Strict")
    for answer, field in ((merged, "spec.no"), (listed, "spec.no"), (strategic, "no")):
        assert (answer.code, answer.reason, answer.causes[0]["field"]) == (422, "Invalid", "patch")
        assert answer.message.endswith(f'strict decoding error: unknown field "{field}"')


async def test_patch_of_a_wrong_type_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A patch with a wrong type gets 422, and the object stays."""
    await kube.post(ns.of("configmaps"), a_config(data={"a": "1"}))
    answer = await kube.patch(ns.of("configmaps", "c"), {"data": {"a": 1}})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "cannot unmarshal number into Go struct field ConfigMap.data of type string" in answer.message


async def test_patch_warns_of_unknown_fields(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A patch with an unknown field applies the rest, with a warning."""
    await kube.post(ns.of("configmaps"), a_config())
    answer = await kube.patch(ns.of("configmaps", "c"), {"data": {"a": "1"}, "no": 1})
    assert (answer.code, answer.body["data"]) == (200, {"a": "1"})
    assert answer.headers["warning"] == '299 - "unknown field \\"no\\""'
