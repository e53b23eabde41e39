"""Limits and consistency of a spec; each error points at the offending field."""

from typing import Any

import pytest

from slipway.crd.fielderrors import ERRORS_MAX, Findings, pointer
from slipway.crd.resolve import resolve
from slipway.crd.v1alpha1 import SPEC_BYTES_MAX, Allocation
from slipway.crd.validate import check_spec
from tests.support.allocations import Json, a_pool, a_template, an_allocation


def findings_of(**spec: Any) -> Findings:
    findings = Findings()
    check_spec(an_allocation(**spec).spec, findings)
    return findings


def refused(**spec: Any) -> list[str]:
    return [error.pointer for error in findings_of(**spec).errors]


def test_an_ordinary_spec_passes() -> None:
    """An ordinary spec, the launch body of the documentation, passes."""
    assert not refused(
        env={"EPOCHS": "3"},
        minAvailable=4,
        ranks=[
            {
                "count": 4,
                "resources": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 1},
                "topology": {"key": "rack"},
                "nodeSelector": {"kubernetes.io/arch": "amd64", "empty": ""},
            }
        ],
        idleTimeout="30m",
        maxRuntime="2h",
        preemptionGrace="0s",
        files=[{"path": "src/train.py", "content": "print(1)"}],
        ports=[{"name": "http", "port": 80}],
    )


def test_a_spec_has_a_size() -> None:
    """A spec has a maximum size, because above it etcd would refuse the status, which still grows."""
    assert refused(files=[{"path": "a", "content": "x" * SPEC_BYTES_MAX}]) == [""]


def test_a_gang_has_a_size() -> None:
    """A gang has at most 4,096 ranks over all roles."""
    roles = [{"name": "a", "count": 4000}, {"name": "b", "count": 97}]
    assert refused(ranks=roles) == ["/ranks"]


@pytest.mark.parametrize(
    ("spec", "at"),
    [
        ({"minAvailable": 3, "ranks": [{"count": 2}]}, "/minAvailable"),
        ({"minAvailable": 2}, "/minAvailable"),
        ({"ranks": [{"count": 2, "minAvailable": 3}]}, "/ranks/0/minAvailable"),
        ({"ranks": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}, "/ranks/2/name"),
    ],
)
def test_minima_are_within_the_ranks_and_roles_differ(spec: Json, at: str) -> None:
    """A gang that can never be whole is refused at once."""
    assert refused(**spec) == [at]


RESOURCES: list[tuple[Json, str]] = [
    ({"cpu": "lots"}, "cpu"),
    ({"cpu": "-1"}, "cpu"),
    ({"memory": "1GB"}, "memory"),
    ({"cpu": None}, "cpu"),
    ({"cpu": True}, "cpu"),
    ({"gpu": 1}, "gpu"),
    ({"nvidia.com/gpu": "0.5"}, "nvidia.com~1gpu"),
    ({"slipway.dev/gpu-milli": 1500}, "slipway.dev~1gpu-milli"),
    ({"a b/c": 1}, "a b~1c"),
    ({"requests": {"cpu": "x"}}, "requests/cpu"),
    ({"requests": {"cpu": 2}, "limits": {"cpu": 1}}, "requests/cpu"),
    ({"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}}, "requests/nvidia.com~1gpu"),
    ({"requests": {"cpu": 2}, "memory": "1Gi"}, "requests"),
    ({"requests": "all"}, "requests"),
    ({"memory": "1e30"}, "memory"),
]


@pytest.mark.parametrize(("resources", "at"), RESOURCES)
def test_quantities_are_quantities(resources: Json, at: str) -> None:
    """Quantities are valid in both spellings; devices are whole numbers, and limits not below requests."""
    assert refused(ranks=[{}, {"name": "b", "resources": resources}]) == [f"/ranks/1/resources/{at}"]


@pytest.mark.parametrize("milli", [{"slipway.dev/gpu-milli": 500}, {"limits": {"slipway.dev/gpu-milli": "500"}}])
def test_whole_gpus_and_a_part_of_one_exclude_each_other(milli: Json) -> None:
    """Whole GPUs and a part of one exclude each other, also when the template requests one and the role the other."""
    main = {"name": "main", "image": "i", "command": ["c"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    own = a_template(main)
    spec = an_allocation(template=a_template(), ranks=[{}, {"name": "b", "resources": milli, "template": own}])
    errors = resolve(spec, a_pool()).errors
    assert [error.pointer for error in errors] == ["/ranks/1/resources/slipway.dev~1gpu-milli"]


def test_a_part_of_a_gpu_is_a_slot() -> None:
    findings = Findings()
    check_spec(an_allocation(ranks=[{"resources": {"slipway.dev/gpu-milli": 1}}]).spec, findings, slots_per_pod_max=0)
    assert [error.pointer for error in findings.errors] == ["/ranks/0/resources"]


def test_a_resource_that_does_not_exist_gets_a_hint() -> None:
    """An unknown resource that is a common mistake gets a hint."""
    (error,) = findings_of(ranks=[{"resources": {"gpu": 1}}]).errors
    assert "did you mean nvidia.com/gpu?" in error.detail


@pytest.mark.parametrize("field", ["idleTimeout", "maxRuntime", "pendingTimeout", "preemptionGrace"])
def test_durations_are_bounded(field: str) -> None:
    """Durations are bounded; the type checks their grammar."""
    assert refused(**{field: "99999d"}) == [f"/{field}"]
    assert refused(**{field: "0s"}) == ([] if field == "preemptionGrace" else [f"/{field}"])
    assert refused(**{field: "90s"}) == []


@pytest.mark.parametrize("name", ["", "1A", "A=B", "A B", "Ä", "A\n"])
def test_bad_names_of_variables(name: str) -> None:
    """Names of variables that a pod cannot have are refused."""
    assert refused(env={name: "1"}) == [pointer("env", name)]


def test_our_own_variables_are_warned_of() -> None:
    """Our own variables cause a warning, because they are overwritten, not refused."""
    findings = findings_of(env={"SLIPWAY_RANK": "7"})
    assert findings.errors == ()
    assert "SLIPWAY_RANK" in findings.warnings[0]


def test_values_of_variables_hold_no_nul() -> None:
    """Values of variables contain no NUL, because no process could be started with one."""
    assert refused(env={"A": "x\0y"}) == ["/env/A"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a//b", "a/", "a\0"])
def test_files_stay_in_the_working_directory(path: str) -> None:
    """Paths of files are relative and without `..`."""
    assert refused(files=[{"path": path, "content": ""}]) == ["/files/0/path"]


def test_files_differ_and_decode() -> None:
    """Each path of a file occurs once, and base64 content is valid."""
    assert refused(files=[{"path": "a", "content": ""}, {"path": "a", "content": ""}]) == ["/files/1/path"]
    assert refused(files=[{"path": "a", "content": "?", "encoding": "base64"}]) == ["/files/0/content"]
    assert refused(files=[{"path": "a", "content": "aGk=", "encoding": "base64"}]) == []


def test_ports_differ() -> None:
    """Ports differ by name and by number."""
    ports = [{"name": "a", "port": 1}, {"name": "a", "port": 2}, {"name": "b", "port": 1}]
    assert refused(ports=ports) == ["/ports/1/name", "/ports/2/port"]


@pytest.mark.parametrize(
    ("name", "at"),
    [("llm", []), ("llm-0", []), ("run-0123abcd-1", ["/service/name"]), ("a-b-0123abcd-12", ["/service/name"])],
)
def test_a_shared_service_has_no_name_of_a_gangs_own(name: str, at: list[str]) -> None:
    """A shared Service must not have a name that a gang's own Service could have: a gang of that AllocationID would
    find its name in use."""
    assert refused(service={"name": name, "port": 80}) == at


@pytest.mark.parametrize(
    ("role", "at"),
    [
        ({"nodeSelector": {"a b": "c"}}, "nodeSelector/a b"),
        ({"nodeSelector": {"a": "b c"}}, "nodeSelector/a"),
        ({"nodeSelector": {"a": "b" * 64}}, "nodeSelector/a"),
        ({"topology": {"key": "not a key"}}, "topology/key"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "tolerations/0/value"),
        ({"tolerations": [{"value": "b"}]}, "tolerations/0/key"),
        ({"tolerations": [{"key": "a b"}]}, "tolerations/0/key"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 3}]}, "tolerations/0/tolerationSeconds"),
    ],
)
def test_placement_wishes_are_well_formed(role: Json, at: str) -> None:
    """Placement fields are well-formed: a selector that no node can ever match is refused."""
    assert refused(ranks=[role]) == [f"/ranks/0/{at}"]


@pytest.mark.parametrize("resources", [{"nvidia.com/gpu": 9}, {"limits": {"nvidia.com/gpu": 9}}])
def test_a_pool_bounds_the_slots_of_a_rank(resources: Json) -> None:
    """The pool limits the slots of a rank, because no node of the pool has more."""
    allocation = an_allocation(template=a_template(), ranks=[{"resources": resources}])
    assert [error.pointer for error in resolve(allocation, a_pool(maxSlotsPerPod=8)).errors] == ["/ranks/0/resources"]
    assert resolve(allocation, a_pool(maxSlotsPerPod=9)).errors == ()


def graced(at: str, grace_s: int | None) -> Json:
    """A template whose pod, or a probe of it, has that grace."""
    template = a_template()
    parts = {
        "terminationGracePeriodSeconds": template["spec"],
        "containers/0/livenessProbe/terminationGracePeriodSeconds": template["spec"]["containers"][0].setdefault(
            "livenessProbe", {"exec": {"command": ["true"]}}
        ),
    }
    parts[at]["terminationGracePeriodSeconds"] = grace_s
    return template


@pytest.mark.parametrize(
    "at", ["terminationGracePeriodSeconds", "containers/0/livenessProbe/terminationGracePeriodSeconds"]
)
@pytest.mark.parametrize("of_role", [False, True])
def test_a_pool_bounds_the_grace_of_pods(at: str, of_role: bool) -> None:
    """A longer one is refused at its field with the number that fits, in the template of a role too."""
    pool = a_pool(terminationGraceMax="5m")

    def asked(grace_s: int) -> Allocation:
        template = graced(at, grace_s)
        return an_allocation(ranks=[{"template": template}]) if of_role else an_allocation(template=template)

    (error,) = resolve(asked(301), pool).errors
    assert error.pointer == f"{'/ranks/0/template' if of_role else '/template'}/spec/{at}"
    assert error.detail.startswith("must be at most 300: this is the limit of the pool")
    assert resolve(asked(300), pool).errors == ()
    assert resolve(asked(86_400), a_pool()).errors == ()


def test_what_names_no_grace_has_at_most_that_of_the_pool() -> None:
    """A template without a grace gets at most that of the pool, instead of Kubernetes' 30 seconds."""
    spec = resolve(an_allocation(template=a_template()), a_pool(terminationGraceMax="10s")).spec
    assert spec.template["spec"]["terminationGracePeriodSeconds"] == 10
    plain = resolve(an_allocation(template=a_template()), a_pool(terminationGraceMax="5m")).spec
    assert "terminationGracePeriodSeconds" not in plain.template["spec"]


def test_an_answer_is_bounded() -> None:
    """The number of reported errors is bounded."""
    assert len(refused(env={f"{index}": "" for index in range(200)})) == ERRORS_MAX


def test_each_error_is_told_once() -> None:
    """Each error is reported once, whichever check found it."""
    findings = Findings()
    findings.refuse("/a", "x")
    findings.refuse("/a", "x")
    assert len(findings.errors) == 1
