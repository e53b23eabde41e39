"""What a pod may request in its pool: the API server judges each pod as the Python code does.

The tests create pods with the podworker's own token, as dry runs, without the podworker's own check.
"""

import re
from collections.abc import Generator, Iterator

import httpx2
import msgspec
import pytest

from slipway.crd import podrules, podtemplate, workspacepods
from slipway.crd.fielderrors import Findings
from slipway.crd.images import IMAGE_PATTERN, is_allowed
from slipway.crd.meta import ANNOTATION_SECRETS, LABEL_POOL
from slipway.crd.v1alpha1 import ResourcePool
from slipway.errors import FieldError, InvalidError
from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.system import System, a_body, an_allocation
from tests.conformance.system.test_policies import RESTRICTED, a_pod, acting_as, refused, taken
from tests.support.images import ALLOWED, REFUSED
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

DEFAULT = "/api/v1/namespaces/default"
POOLS = f"{GROUP}/resourcepools"
DRY = {"dryRun": "All"}
TRIED = "tried-rules"
CLAIM: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


@pytest.fixture(scope="module")
def owner(system: System) -> Generator[Json]:
    """An allocation that never starts, as the owner of the pods that a test tries."""
    spec = {"kind": "command", "hold": True, "template": {"spec": {"containers": [{"name": "m", "command": ["true"]}]}}}
    named = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "rules"}}
    made = system.operator.create(f"{GROUP}/namespaces/default/allocations", {**named, "spec": spec})
    yield made["metadata"]
    system.operator.delete(f"{GROUP}/namespaces/default/allocations/rules")


@pytest.fixture
def pool(system: System) -> Generator[str]:
    """A pool of this test, which sets its rules."""
    named = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ResourcePool", "metadata": {"name": TRIED}}
    system.operator.create(POOLS, {**named, "spec": {}})
    yield f"{POOLS}/{TRIED}"
    system.operator.delete(f"{POOLS}/{TRIED}")


def in_pool(pod: Json, pool: str = TRIED, **spec: list[Json] | str) -> Json:
    """A pod as the podworker creates it for that pool; empty: as an older release created it, which named no pool."""
    meta = pod["metadata"]
    labels = meta["labels"] | ({LABEL_POOL: pool} if pool else {})
    return {**pod, "metadata": {**meta, "labels": labels}, "spec": {**pod["spec"], **spec}}


def running(owner: Json, *images: str, **spec: list[Json] | str) -> Json:
    """A pod of the pool whose containers run these images."""
    containers = [
        {"name": f"c{index}", "image": image, "securityContext": RESTRICTED} for index, image in enumerate(images)
    ]
    return in_pool(a_pod(owner), TRIED, containers=containers, **spec)


def judged(client: httpx2.Client, pod: Json) -> httpx2.Response:
    return client.post(f"{DEFAULT}/pods", json=pod, params=DRY)


def holds(client: httpx2.Client, pod: Json) -> None:
    """Wait until the policy has read the rules of the pool, under which this pod is refused."""
    wait_until(lambda: judged(client, pod).status_code == 403, "the policy knows the rules of the pool")


def test_the_api_server_reads_patterns_of_images_as_we_do(system: System, owner: Json, pool: str) -> None:
    """Each pattern is tried by itself, with images that it allows and images that it does not."""
    cases = sorted({*ALLOWED, *REFUSED})
    patterns = dict[str, list[str]]()
    for pattern, image in cases:
        assert re.search(IMAGE_PATTERN, pattern), pattern
        patterns.setdefault(pattern, []).append(image)
    wrong: list[tuple[str, str, str]] = []
    with acting_as(system, "podworker") as client:
        for pattern, images in patterns.items():
            # A name that only this pattern allows shows that the policy has read it.
            mark = f"seen.example/{abs(hash(pattern))}"
            system.operator.change(pool, {"spec": {"allowedImages": [pattern, mark]}})
            wait_until(
                lambda mark=mark: judged(client, running(owner, mark)).is_success, "the policy knows the pattern"
            )
            for image in images:
                answer = judged(client, running(owner, image))
                if answer.is_success is not is_allowed(image, [pattern]):
                    wrong.append((pattern, image, answer.text))
    assert wrong == []


def an_image_volume(reference: str) -> Json:
    return {"name": "v", "image": {"reference": reference}}


def test_every_image_of_a_pod_is_judged(system: System, owner: Json, pool: str) -> None:
    """Init containers, sidecars and volumes are judged too; a pod of an older release without a pool is judged by
    every pool."""
    system.operator.change(pool, {"spec": {"allowedImages": ["reg.example/team"]}})
    with acting_as(system, "podworker") as client:
        holds(client, running(owner, "evil/x"))
        taken(judged(client, running(owner, "reg.example/team/a", "reg.example/team/b:1")))
        refused(judged(client, running(owner, "reg.example/team/a", "evil/x")), "pools", "allowedImages")
        for more in ({}, {"restartPolicy": "Always"}):
            init = {"name": "i", "image": "evil/x", "securityContext": RESTRICTED, **more}
            pod = running(owner, "reg.example/team/a", initContainers=[init])
            refused(judged(client, pod), "pools", f"the pool {TRIED} does not allow")
        allowed, foreign = (an_image_volume(image) for image in ("reg.example/team/data:1", "evil/x"))
        taken(judged(client, running(owner, "reg.example/team/a", volumes=[allowed])))
        refused(judged(client, running(owner, "reg.example/team/a", volumes=[foreign])), "pools", "allowedImages")
        taken(judged(client, in_pool(a_pod(owner), "default")))
        refused(judged(client, in_pool(a_pod(owner), "")), "pools", f"the pool {TRIED} does not allow")


NAMED: list[tuple[str, Json]] = [
    ("allowedCsiDrivers", {"volumes": [{"name": "v", "csi": {"driver": "slipway-other"}}]}),
    ("allowedRuntimeClasses", {"runtimeClassName": "slipway-other"}),
    ("allowedTolerations", {"tolerations": [{"key": "slipway-other", "operator": "Exists"}]}),
]  # fmt: skip
"""A field of the pool, and a pod that uses `slipway-other`."""


@pytest.mark.parametrize(("field", "pod"), NAMED, ids=[field for field, _ in NAMED])
def test_a_pod_names_what_the_pool_lists(system: System, owner: Json, pool: str, field: str, pod: Json) -> None:
    """A pod may use nothing when the list of the pool is empty, else what the list contains."""
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    system.operator.create(classes, {"metadata": {"name": "slipway-other"}, "handler": "other"})
    try:
        with acting_as(system, "podworker") as client:

            def words() -> str:
                return str(judged(client, running(owner, "a", **pod)).json().get("message", ""))

            system.operator.change(pool, {"spec": {field: []}})
            wait_until(lambda: field in words(), "the policy knows the rules of the pool")
            taken(judged(client, running(owner, "a")))
            system.operator.change(pool, {"spec": {field: ["x", "slipway-other"]}})
            wait_until(lambda: field not in words(), "the policy knows what the pool lists")
            taken(judged(client, running(owner, "a", **pod)))
            system.operator.change(pool, {"spec": {field: ["x"]}})
            wait_until(lambda: field in words(), "the policy knows what the pool lists now")
    finally:
        system.operator.delete(f"{classes}/slipway-other")


TOLERATED: tuple[tuple[Json, Json, bool], ...] = (
    ({"allowedTolerations": []}, {}, True),
    ({"allowedTolerations": []}, {"operator": "Exists"}, False),
    ({"allowedTolerations": ["a*"]}, {"operator": "Exists"}, False),
    ({"allowedTolerations": ["a*"]}, {"key": "abc", "operator": "Exists"}, True),
    ({"allowedTolerations": ["a*"]}, {"key": "b", "operator": "Exists"}, False),
    ({"allowedTolerations": ["*"]}, {"operator": "Exists"}, True),
    ({"allowedTolerations": [], "tolerations": [{"operator": "Exists"}]}, {"operator": "Exists"}, True),
    ({"allowedTolerations": [], "tolerations": [{"key": "b", "operator": "Exists"}]}, {"key": "b", "value": "x"}, True),
)
"""The rules of a pool, a toleration of a pod (empty: none), and whether it is allowed."""


def test_tolerations_of_a_pod_are_judged(system: System, owner: Json, pool: str) -> None:
    """The API server judges tolerations by the pool's list and its own tolerations, as the Python code does."""
    wrong: list[tuple[Json, Json, str]] = []
    with acting_as(system, "podworker") as client:
        for number, (rules, toleration, is_fine) in enumerate(TOLERATED):
            # An image that only this case allows shows that the policy has read its rules.
            mark = f"seen.example/{number}"
            rules = {"tolerations": None, **rules, "allowedImages": [mark]}
            system.operator.change(pool, {"spec": rules})
            wait_until(lambda mark=mark: judged(client, running(owner, mark)).is_success, "the policy knows the rules")
            pod = running(owner, mark, **({"tolerations": [toleration]} if toleration else {}))
            known = {name: value for name, value in rules.items() if value is not None}
            findings = Findings()
            podrules.check(pod["spec"], "", msgspec.convert({"metadata": {}, "spec": known}, ResourcePool), findings)
            answer = judged(client, pod)
            if (answer.is_success, not findings.errors) != (is_fine, is_fine):
                wrong.append((rules, toleration, answer.text))
    assert wrong == []


PRIVILEGES: tuple[tuple[Json, Json, bool], ...] = (
    ({}, {}, True),
    ({}, {"hostIPC": True}, False),
    ({"allowedPrivileges": ["hostIPC"]}, {"hostIPC": True}, True),
    ({"allowedPrivileges": ["hostIPC"]}, {"hostNetwork": True}, False),
    ({"allowedPrivileges": ["hostNetwork"]}, {"hostNetwork": True}, True),
    ({"allowedPrivileges": ["hostIPC"]}, {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}, False),
    ({"allowedPrivileges": ["IPC_LOCK"]}, {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}, True),
    ({"allowedPrivileges": ["IPC_LOCK"]}, {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}, True),
    ({"allowedPrivileges": ["IPC_LOCK"]}, {"runAsUser": 0}, False),
    ({"allowedPrivileges": ["root"]}, {"runAsUser": 0, "runAsNonRoot": False}, True),
    ({"allowedPrivileges": []}, {"runAsNonRoot": False}, False),
)
"""The rules of a pool, what a pod requests (of the host, or in the context of its container), and whether it is
allowed."""
CEILING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/slipway-policy-pods"


def asking(pod: Json, asked: Json) -> Json:
    """The pod with the requested container context or host namespaces."""
    host = {name: value for name, value in asked.items() if name.startswith("host")}
    context = {**RESTRICTED, **{name: value for name, value in asked.items() if name not in host}}
    containers = [{**each, "securityContext": context} for each in pod["spec"]["containers"]]
    return {**pod, "spec": {**pod["spec"], **host, "containers": containers}}


@pytest.fixture
def ceiling(system: System) -> Generator[None]:
    """Set the privileges that the chart allows, as by `admissionPolicies.privileges`."""
    before = system.operator.get(CEILING)["spec"]["variables"]
    names = ["root", "hostIPC", "hostNetwork", "IPC_LOCK"]
    raised = [{**each, "expression": str(names)} if each["name"] == "privileges" else each for each in before]
    assert raised != before
    system.operator.change(CEILING, {"spec": {"variables": raised}})
    yield
    system.operator.change(CEILING, {"spec": {"variables": before}})


@pytest.mark.usefixtures("ceiling")
def test_privileges_of_a_pod_are_judged(system: System, owner: Json, pool: str) -> None:
    """The API server judges privileges by the pool's list, as the Python code does."""
    wrong: list[tuple[Json, Json, str]] = []
    with acting_as(system, "podworker") as client:
        system.operator.change(pool, {"spec": {"allowedPrivileges": ["hostIPC"]}})
        seen = asking(running(owner, "a"), {"hostIPC": True})
        wait_until(lambda: judged(client, seen).is_success, "the policy knows the list of the chart")
        for number, (rules, asked, is_fine) in enumerate(PRIVILEGES):
            # An image that only this case allows shows that the policy has read its rules.
            mark = f"seen.example/{number}"
            rules = {"allowedPrivileges": None, **rules, "allowedImages": [mark]}
            system.operator.change(pool, {"spec": rules})
            wait_until(lambda mark=mark: judged(client, running(owner, mark)).is_success, "the policy knows the rules")
            pod = asking(running(owner, mark), asked)
            known = {name: value for name, value in rules.items() if value is not None}
            findings = Findings()
            podrules.check(pod["spec"], "", msgspec.convert({"metadata": {}, "spec": known}, ResourcePool), findings)
            answer = judged(client, pod)
            if (answer.is_success, not findings.errors) != (is_fine, is_fine):
                wrong.append((rules, asked, answer.text))
    assert wrong == []


def test_no_pool_allows_a_privilege_that_the_chart_does_not_list(system: System, owner: Json, pool: str) -> None:
    """Neither the pool's list nor the pool that a pod names changes that."""
    with acting_as(system, "podworker") as client:
        every = ["root", "hostIPC", "hostNetwork", "IPC_LOCK"]
        rules = {"allowedPrivileges": every, "allowedImages": ["seen.example/"]}
        system.operator.change(pool, {"spec": rules})
        wait_until(lambda: judged(client, running(owner, "seen.example/a")).is_success, "the policy knows the rules")
        for asked in (asked for _, asked, _ in PRIVILEGES if asked and "NET_BIND_SERVICE" not in str(asked)):
            refused(judged(client, asking(running(owner, "seen.example/a"), asked)), "pods", "")
            refused(judged(client, asking(in_pool(a_pod(owner), "no-such-pool"), asked)), "pods", "")


ANNOTATED: tuple[tuple[Json, str, bool], ...] = (
    ({}, "note", True),
    ({}, "prometheus.io/scrape", True),
    ({}, "a.example/order", False),
    ({}, "a.example", False),
    ({"templateAnnotations": ["a.example/order"]}, "a.example/order", True),
    ({"templateAnnotations": ["a.example/*"]}, "a.example/order", True),
    ({"templateAnnotations": ["a.example/*"]}, "b.example/order", False),
    ({"privilegedTemplates": True}, "a.example/order", True),
)
"""The rules of a pool, an annotation of the claim of an ephemeral volume, and whether it is allowed."""


def test_annotations_of_claims_are_judged(system: System, owner: Json, pool: str) -> None:
    """The API server judges annotations of claims by the pool's list, as the Python code does."""
    wrong: list[tuple[Json, str, str]] = []
    with acting_as(system, "podworker") as client:
        for number, (rules, key, is_fine) in enumerate(ANNOTATED):
            # An image that only this case allows shows that the policy has read its rules.
            mark = f"seen.example/{number}"
            rules = {"templateAnnotations": None, "privilegedTemplates": None, **rules, "allowedImages": [mark]}
            system.operator.change(pool, {"spec": rules})
            wait_until(lambda mark=mark: judged(client, running(owner, mark)).is_success, "the policy knows the rules")
            claim = {"metadata": {"annotations": {key: "x"}}, "spec": CLAIM}
            pod = running(owner, mark, volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": claim}}])
            known = {name: value for name, value in rules.items() if value is not None}
            findings = Findings()
            podrules.check(pod["spec"], "", msgspec.convert({"metadata": {}, "spec": known}, ResourcePool), findings)
            answer = judged(client, pod)
            if (answer.is_success, not findings.errors) != (is_fine, is_fine):
                wrong.append((rules, key, answer.text))
    assert wrong == []


CLAIMED: tuple[tuple[Json, bool], ...] = (
    ({}, True),
    ({"spec": {"storageClassName": "fast", "volumeMode": "Filesystem"}}, True),
    ({"metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}}}, True),
    ({"spec": {"volumeName": "of-others"}}, False),
    ({"spec": {"selector": {"matchLabels": {"a": "b"}}}}, False),
    ({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "c"}}}, False),
    ({"spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "c"}}}, False),
    ({"spec": {"volumeAttributesClassName": "fast"}}, False),
    ({"spec": {"volumeMode": "Block"}}, False),
    ({"metadata": {"labels": {"slipway.dev/allocation": "a"}}}, False),
    ({"metadata": {"labels": {"app.kubernetes.io/managed-by": "a"}}}, False),
    ({"metadata": {"annotations": {"slipway.dev/main-container": "a"}}}, False),
)
"""The claim of an ephemeral volume, and whether it is allowed."""


def test_claims_of_a_pod_are_judged(system: System, owner: Json) -> None:
    """The claim of an ephemeral volume states a size and a class; the API server judges it as the Python code does."""
    wrong: list[tuple[Json, str]] = []
    with acting_as(system, "podworker") as client:
        for said, is_fine in CLAIMED:
            claim = {**said, "spec": {**CLAIM, **said.get("spec", {})}}
            pod = a_pod(owner, volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": claim}}])
            findings = Findings()
            podtemplate.check_template({"spec": {"volumes": pod["spec"]["volumes"]}}, "", findings)
            answer = judged(client, pod)
            if (answer.is_success, not findings.errors) != (is_fine, is_fine):
                wrong.append((claim, answer.text))
    assert wrong == []


def test_audiences_of_tokens_are_judged(system: System, owner: Json, pool: str) -> None:
    """The pool's list does not apply to Slipway's own token, which is accepted in a pool that allows no audience."""

    def with_token(volume: str) -> Json:
        token = {"serviceAccountToken": {"audience": "slipway", "path": "token", "expirationSeconds": 3600}}
        return running(owner, "a", volumes=[{"name": volume, "projected": {"sources": [token]}}])

    with acting_as(system, "podworker") as client:
        taken(judged(client, with_token("mine")))
        system.operator.change(pool, {"spec": {"allowedTokenAudiences": []}})
        holds(client, with_token("mine"))
        refused(judged(client, with_token("mine")), "pools", "allowedTokenAudiences")
        taken(judged(client, with_token("slipway-token")))
        system.operator.change(pool, {"spec": {"allowedTokenAudiences": ["slipway"]}})
        wait_until(lambda: judged(client, with_token("mine")).is_success, "the policy knows what the pool lists")


def naming(secret: str) -> Iterator[Json]:
    """Parts of a pod spec that name a Secret, each in another way; the first ones are of a container."""
    reference = {"name": secret, "key": "k"}
    for more in (
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": reference}}]},
        {"envFrom": [{"secretRef": {"name": secret}}]},
    ):
        yield {"containers": [{"name": "c", "image": "a", "securityContext": RESTRICTED, **more}]}
        yield {"initContainers": [{"name": "i", "image": "a", "securityContext": RESTRICTED, **more}]}
    for volume in (
        {"secret": {"secretName": secret}},
        {"csi": {"driver": "d", "nodePublishSecretRef": {"name": secret}}},
        {"csi": {"driver": "d", "volumeAttributes": {"share": "s", "secretName": secret}}},
        {"csi": {"driver": "d", "volumeAttributes": {"SECRET_NAME": secret}}},
        {"csi": {"driver": "d", "volumeAttributes": {"x.io/node-publish-secret-name": secret}}},
        {"projected": {"sources": [{"secret": {"name": secret}}]}},
    ):
        yield {"volumes": [{"name": "v", **volume}]}
    yield {"imagePullSecrets": [{"name": secret}]}


@pytest.mark.parametrize(
    ("marks", "released", "unreleased"),
    [
        ({}, ["any"], []),
        ({"slipway.dev/secrets": ""}, [], ["any"]),
        ({"slipway.dev/secrets": "one, tea*"}, ["one", "team"], ["two", "te", "ones"]),
    ],
    ids=["without", "empty", "listed"],
)
def test_secrets_of_a_pod_are_released_by_its_workspace(
    system: System, owner: Json, marks: Json, released: list[str], unreleased: list[str]
) -> None:
    """A pod may use a Secret that its workspace releases, in any of these ways, but never the secret values of
    another allocation. The Python code judges the same."""
    own, others = f"{podrules.VALUES_PREFIX}{owner['uid']}", f"{podrules.VALUES_PREFIX}other"
    wanted = workspacepods.read(marks).released
    wrong: list[tuple[str, Json, str]] = []
    system.operator.change(DEFAULT, {"metadata": {"annotations": {ANNOTATION_SECRETS: None, **marks}}})
    try:
        with acting_as(system, "podworker") as client:
            for name, is_fine in [
                *((name, True) for name in (*released, own)),
                *((name, False) for name in (*unreleased, others)),
            ]:
                for part in naming(name):
                    pod = a_pod(owner)
                    pod["spec"] |= part
                    findings = Findings()
                    podrules.check_secrets(pod["spec"], "", wanted, findings)
                    answer = judged(client, pod)
                    # No template names the values of its own allocation: the pod worker adds them.
                    is_named = is_fine and name != own
                    if name == own and "imagePullSecrets" in part:
                        continue
                    if (answer.is_success, not findings.errors) != (is_fine, is_named):
                        wrong.append((name, part, answer.text))
    finally:
        system.operator.change(DEFAULT, {"metadata": {"annotations": {ANNOTATION_SECRETS: None}}})
    assert wrong == []


def test_no_driver_is_told_where_secrets_are(system: System, owner: Json) -> None:
    """A volume may not tell a driver the name of a Secret, whatever the workspace releases, in any spelling; an
    empty namespace names none. The Python code judges the same."""
    wrong: list[tuple[str, str, str]] = []
    with acting_as(system, "podworker") as client:
        for key in ("secretNamespace", "SECRETNAMESPACE", "x.io/node-publish-secret-namespace"):
            for namespace, is_fine in (("other", False), ("", True)):
                attributes = {"share": "s", key: namespace}
                pod = a_pod(owner, volumes=[{"name": "v", "csi": {"driver": "d", "volumeAttributes": attributes}}])
                findings = Findings()
                podrules.check_secrets(pod["spec"], "", None, findings)
                answer = judged(client, pod)
                if (answer.is_success, not findings.errors) != (is_fine, is_fine):
                    wrong.append((key, namespace, answer.text))
    assert wrong == []


IDS: tuple[tuple[Json, Json, bool], ...] = (
    ({"runAsUser": 1001, "runAsGroup": 2001}, {}, True),
    ({"runAsUser": 7, "runAsGroup": 2001, "fsGroup": 2999, "supplementalGroups": [2000]}, {}, True),
    ({}, {"runAsUser": 1001, "runAsGroup": 2001}, True),
    ({"runAsUser": 2000, "runAsGroup": 2001}, {}, False),
    ({"runAsUser": 1001, "runAsGroup": 3000}, {}, False),
    ({"runAsUser": 1001, "runAsGroup": 2001, "fsGroup": 1}, {}, False),
    ({"runAsUser": 1001, "runAsGroup": 2001, "supplementalGroups": [2000, 1]}, {}, False),
    ({"runAsUser": 1001, "runAsGroup": 2001}, {"runAsUser": 999}, False),
    ({"runAsUser": 1001, "runAsGroup": 2001}, {"runAsGroup": 1}, False),
    ({"runAsUser": 1001}, {}, False),
    ({"runAsGroup": 2001}, {}, False),
)
"""The fields of a pod and its container, and whether they are allowed in a pool that allows users 7 and 1000 to
1999, groups from 2000 to 2999."""


def test_users_and_groups_of_a_pod_are_judged(system: System, owner: Json, pool: str) -> None:
    """The API server judges users and groups of the pod and of each container by the ranges of the pool, as the
    Python code does."""
    rules = {"allowedUsers": ["7", "1000-1999"], "allowedGroups": ["2000-2999"]}
    system.operator.change(pool, {"spec": rules})
    known = msgspec.convert({"metadata": {"name": TRIED}, "spec": rules}, ResourcePool)
    wrong: list[tuple[Json, Json, str]] = []
    with acting_as(system, "podworker") as client:
        holds(client, running(owner, "a"))
        for of_pod, of_container, is_fine in IDS:
            container = {"name": "c", "image": "a", "securityContext": {**RESTRICTED, **of_container}}
            pod = in_pool(a_pod(owner), TRIED)
            pod["spec"] |= {"containers": [container], "securityContext": of_pod}
            findings = Findings()
            podrules.check(pod["spec"], "", known, findings)
            answer = judged(client, pod)
            if (answer.is_success, not findings.errors) != (is_fine, is_fine):
                wrong.append((of_pod, of_container, answer.text))
    assert wrong == []


def test_a_pool_says_which_images_run_in_it(system: System) -> None:
    """A launch with another image is refused at its field; an applied allocation waits, and shows why."""
    default = f"{POOLS}/default"
    system.operator.change(default, {"spec": {"allowedImages": ["reg.example/team"]}})
    try:
        [field] = wait_until(lambda: _refused_fields(system), "the api knows the rules of the pool")
        assert field.pointer == "/template/spec/containers/0/image"
        assert "pool default does not allow the image" in field.detail
        assert "reg.example/team" in field.detail
        system.operator.apply(an_allocation("by-hand"))
        id_ = system.applied_id("by-hand")
        wait_until(lambda: "allowedImages" in str(system.get(f"/allocations/{id_}/explain")), "it says why it waits")
        assert system.pods(id_) == []
    finally:
        system.operator.delete(f"{GROUP}/namespaces/default/allocations/by-hand")
        system.operator.change(default, {"spec": {"allowedImages": None}})
        wait_until(lambda: not _refused_fields(system), "the api knows that any image may run again")


def _refused_fields(system: System) -> tuple[FieldError, ...]:
    """The fields for which a launch is refused; a launch that is accepted is ended again."""
    try:
        id_ = system.launch(a_body())
    except InvalidError as error:
        return error.fields
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    return ()


def test_images_are_pulled_with_the_secrets_of_the_workspace(system: System) -> None:
    """The command sets the secrets; a dry run and the pods show them after those of the pod template."""
    made = system.cli("workspace", "create", "pulls", "--pull-secret", "team", "--pull-secret", "own")
    assert made.code == 0, made.err
    try:
        body = a_body(workspace="pulls")
        body["template"]["spec"]["imagePullSecrets"] = [{"name": "own"}]
        url = f"{system.installation.url}/api/v1/allocations?dryRun=true"
        answer = httpx2.post(url, json=body, verify=NO_TLS, trust_env=False, timeout=30.0)
        shown = answer.json()["objects"][-1]["spec"]["imagePullSecrets"]
        id_ = system.launch(body)
        system.wait_for(id_, "Running")
        [pod] = system.pods(id_)
        assert pod["spec"]["imagePullSecrets"] == shown == [{"name": "own"}, {"name": "team"}]
        system.post(f"/allocations/{id_}/kill")
        system.wait_for(id_, "Terminated")
    finally:
        system.cli("workspace", "rm", "pulls")
        system.operator.delete("/api/v1/namespaces/pulls")
