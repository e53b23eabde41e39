"""LimitRanges: the defaults that a new pod gets in its namespace, and the pods that are refused there."""

from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import Json, a_pod

ANNOTATION = "kubernetes.io/limit-ranger"


async def _grant(kube: KubeHttp, ns: NamespacePaths, *items: Json, name: str = "bounds") -> Reply:
    """Create a LimitRange, and wait until admission uses it."""
    made = await kube.post(ns.of("limitranges"), {"metadata": {"name": name}, "spec": {"limits": [*items]}})
    assert made.code == 201, made.body

    async def is_known() -> bool:
        probe = await kube.post(ns.of("pods"), a_pod("probe"), dryRun="All")
        return probe.code != 201 or ANNOTATION in probe.body["metadata"].get("annotations", {})

    if any(item["type"] == "Container" for item in items):
        await eventually(is_known, "the LimitRange applies")
    return made


def _a_container(name: str = "main", **resources: Json) -> Json:
    return {"name": name, "image": "i:1", "resources": resources}


async def _resources(kube: KubeHttp, ns: NamespacePaths, *containers: Json, **spec: Any) -> Json:
    made = await kube.post(ns.of("pods"), a_pod(containers=[*containers], **spec))
    assert made.code == 201, made.body
    return made.body["spec"]["containers"][0]["resources"]


async def test_a_limit_range_is_stored_with_its_defaults(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A default limit is the max when not set; a default request is the default limit, else the min."""
    item = {"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "64Mi"}, "default": {"memory": "1Gi"}}
    made = await _grant(kube, ns, item)
    assert made.body["spec"]["limits"] == [
        {
            "type": "Container",
            "max": {"cpu": "2"},
            "min": {"memory": "64Mi"},
            "default": {"cpu": "2", "memory": "1Gi"},
            "defaultRequest": {"cpu": "2", "memory": "1Gi"},
        }
    ]


@pytest.mark.parametrize(
    ("stated", "given"),
    [
        ({}, {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}),
        ({"requests": {"cpu": "100m"}}, {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}),
        ({"limits": {"cpu": "300m"}}, {"requests": {"cpu": "300m"}, "limits": {"cpu": "300m"}}),
        (
            {"requests": {"memory": "1Gi"}},
            {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1"}},
        ),
        ({"requests": {"cpu": "0"}}, {"requests": {"cpu": "0"}, "limits": {"cpu": "1"}}),
    ],
)
async def test_a_container_is_given_what_it_does_not_state(
    kube: KubeHttp, ns: NamespacePaths, stated: Json, given: Json
) -> None:
    """A container's own limit becomes its request before a default does."""
    await _grant(kube, ns, {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m"}})
    assert await _resources(kube, ns, _a_container(**stated)) == given


async def test_init_containers_and_sidecars_are_given_it_too_and_an_annotation_says_so(
    kube: KubeHttp, ns: NamespacePaths
) -> None:
    await _grant(kube, ns, {"type": "Container", "defaultRequest": {"cpu": "200m", "memory": "1Gi"}})
    sidecar = {**_a_container("beside"), "restartPolicy": "Always"}
    made = await kube.post(ns.of("pods"), a_pod(initContainers=[_a_container("first"), sidecar]))
    spec = made.body["spec"]
    assert [each["resources"] for each in (*spec["initContainers"], *spec["containers"])] == [
        {"requests": {"cpu": "200m", "memory": "1Gi"}}
    ] * 3
    assert made.body["metadata"]["annotations"][ANNOTATION] == (
        "LimitRanger plugin set: cpu, memory request for container main; "
        "cpu, memory request for init container first; cpu, memory request for init container beside"
    )


async def test_a_limit_range_ends_best_effort_quality_of_service(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The quality of service is computed from the pod with its defaults."""
    await _grant(kube, ns, {"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}})
    made = await kube.post(ns.of("pods"), a_pod())
    assert made.body["status"]["qosClass"] == "Guaranteed"


async def test_defaulted_fields_are_not_owned_by_the_creator(kube: KubeHttp, ns: NamespacePaths) -> None:
    await _grant(kube, ns, {"type": "Container", "defaultRequest": {"cpu": "200m"}})
    made = await kube.post(ns.of("pods"), a_pod())
    assert not any("f:limit" in str(each) or "f:cpu" in str(each) for each in made.body["metadata"]["managedFields"])


_MAX = {"type": "Container", "max": {"memory": "1Gi"}}
_MIN = {"type": "Container", "min": {"cpu": "100m"}}
_RATIO = {"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}
_POD = {"type": "Pod", "max": {"cpu": "2"}}


_REFUSED: list[tuple[Json, list[Json], str]] = [
    (_MAX, [{"limits": {"memory": "2Gi"}}], "maximum memory usage per Container is 1Gi, but limit is 2Gi"),
    (
        _MAX,
        [{"limits": {"memory": "3Gi"}}, {"limits": {"memory": "2Gi"}}],
        "[maximum memory usage per Container is 1Gi, but limit is 3Gi, "
        "maximum memory usage per Container is 1Gi, but limit is 2Gi]",
    ),
    (_MIN, [{"requests": {"cpu": "50m"}}], "minimum cpu usage per Container is 100m, but request is 50m"),
    (
        _RATIO,
        [{"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}],
        "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
    ),
    (
        _RATIO,
        [{"requests": {"cpu": "1"}}],
        "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
    ),
    (
        _RATIO,
        [{}],
        "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
    ),
    (
        _POD,
        [{"limits": {"cpu": "1500m"}}, {"limits": {"cpu": "1"}}],
        "maximum cpu usage per Pod is 2, but limit is 2500m",
    ),
    (_POD, [{}], "maximum cpu usage per Pod is 2.  No limit is specified"),
    ({"type": "Pod", "min": {"cpu": "1"}}, [{}], "minimum cpu usage per Pod is 1.  No request is specified"),
]


@pytest.mark.parametrize(
    ("item", "containers", "why"),
    _REFUSED,
)
async def test_what_is_out_of_range_is_refused(
    kube: KubeHttp, ns: NamespacePaths, item: Json, containers: list[Json], why: str
) -> None:
    """A pod out of range gets 403 with these words; it may take a moment until admission uses the LimitRange."""
    await _grant(kube, ns, item)
    pod = a_pod(containers=[_a_container(f"c{number}", **each) for number, each in enumerate(containers)])
    answers = list[Reply]()

    async def is_refused() -> bool:
        answers.append(await kube.post(ns.of("pods"), pod, dryRun="All"))
        return answers[-1].code == 403

    await eventually(is_refused, "the pod is refused")
    assert answers[-1].reason == "Forbidden"
    assert answers[-1].message == f'pods "p" is forbidden: {why}'


async def test_a_request_above_the_limit_that_it_is_given_is_invalid(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A request above the default limit gets 422: the default is not raised to the request."""
    await _grant(kube, ns, {"type": "Container", "default": {"cpu": "1"}})
    answer = await kube.post(ns.of("pods"), a_pod(containers=[_a_container(requests={"cpu": "2"})]))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "must be less than or equal to cpu limit" in answer.message


async def test_init_steps_raise_what_a_pod_uses(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The largest init step is used where it is more than the sum of the containers; sidecars are added to both."""
    await _grant(kube, ns, {"type": "Container", "defaultRequest": {"ephemeral-storage": "1Mi"}}, _POD)
    sidecar = {**_a_container("beside", limits={"cpu": "500m"}), "restartPolicy": "Always"}
    step = _a_container("step", limits={"cpu": "1600m"})
    answer = await kube.post(
        ns.of("pods"),
        a_pod(containers=[_a_container(limits={"cpu": "1"})], initContainers=[sidecar, step]),
    )
    assert answer.message == 'pods "p" is forbidden: maximum cpu usage per Pod is 2, but limit is 2100m'


async def test_a_volume_claim_is_held_to_its_range(kube: KubeHttp, ns: NamespacePaths) -> None:
    await _grant(
        kube,
        ns,
        {"type": "Container", "defaultRequest": {"cpu": "1m"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}},
    )
    claim = {
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
    }
    answer = await kube.post(ns.of("persistentvolumeclaims"), claim)
    assert answer.code == 403
    assert "maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi" in answer.message


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}}], "spec.limits[0].min[cpu]"),
        ([{"type": "Container", "default": {"cpu": "2"}, "max": {"cpu": "1"}}], "spec.limits[0].default[cpu]"),
        (
            [{"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}],
            "spec.limits[0].defaultRequest[cpu]",
        ),
        ([{"type": "Pod", "default": {"cpu": "2"}}], "spec.limits[0].default"),
        (
            [{"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}}],
            "spec.limits[0].maxLimitRequestRatio[cpu]",
        ),
        ([{"type": "Pod"}, {"type": "Pod"}], "spec.limits[1].type"),
        ([{"max": {"cpu": "1"}}], "spec.limits[0].type"),
    ],
)
async def test_a_range_that_contradicts_itself_is_invalid(
    kube: KubeHttp, ns: NamespacePaths, items: list[Json], field: str
) -> None:
    """A contradictory range gets 422 with the field in a cause."""
    answer = await kube.post(ns.of("limitranges"), {"metadata": {"name": "bounds"}, "spec": {"limits": items}})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert field in [cause["field"] for cause in answer.causes]
