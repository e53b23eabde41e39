"""Launching again in a browser: every field of a spec, a role, a pod and a container reaches the new launch."""

import io
import tarfile
from collections.abc import Generator
from typing import Any

import httpx2
import pytest

from slipway.crd.v1alpha1 import AllocationSpec, RoleSpec
from tests.browser.chromium import Page
from tests.browser.test_launch_page import written
from tests.browser.test_pages import Visit
from tests.support.local_stack import RunningStack

Json = dict[str, Any]
PLACE = "again"
"""The workspace, pool and queue in which everything is allowed that a row needs."""
GIVEN_UP = {
    "requestHash",
    "signals",
    "desired",
    "hold",
    "queuePosition",
    "maxRuntimeOverride",
    "secretVariables",
    "after",
}
"""Fields of a spec that belong to the first launch only."""
TERMS = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}}}
SPREAD = [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
TOLERATION = [{"key": "slow", "operator": "Exists", "effect": "NoSchedule"}]
PROBE = {"exec": {"command": ["true"]}}
CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
CHIEF = {"name": "chief", "count": 1}

SPEC: dict[str, Json] = {
    "kind": {"kind": "training"},
    "pool": {"pool": PLACE},
    "queue": {"pool": PLACE, "queue": PLACE},
    "job": {"job": PLACE},
    "priority": {"priority": 0},
    "preemptible": {"preemptible": True},
    "ranks": {"ranks": [{"count": 2}]},
    "topology": {"topology": {"key": "zone"}},
    "flavors": {"pool": PLACE, "flavors": ["b"]},
    "minAvailable": {"ranks": [{"count": 3}], "minAvailable": 2},
    "template": {"template": {"metadata": {"labels": {"team": "a"}}}},
    "setup": {"setup": "\ncd /\n"},
    "home": {"home": True},
    "shmSize": {"shmSize": "64Mi"},
    "files": {"files": [{"path": "a.txt", "content": "a"}]},
    "context": {},
    "env": {"env": {"LINES": "a\nb", "PLAIN": " c "}},
    "ports": {"ports": [{"name": "web", "port": 80}]},
    "service": {"service": {"name": "again", "port": 80}},
    "idleTimeout": {"kind": "shell", "idleTimeout": "1h"},
    "maxRuntime": {"maxRuntime": "1h"},
    "pendingTimeout": {"pendingTimeout": "1h"},
    "preemptionGrace": {"preemptionGrace": "30s"},
    "maxRestarts": {"maxRestarts": 2},
    "restart": {"restart": "rank"},
    "failurePolicy": {"failurePolicy": {"rules": [{"action": "fail", "exitCodes": [3]}]}},
    "successPolicy": {"successPolicy": {"targets": [{"role": "worker"}]}},
}
"""{field of the spec: launch}"""
ROLE: dict[str, Json] = {
    "name": {"name": "trainer"},
    "count": {"count": 2},
    "minAvailable": {"count": 2, "minAvailable": 1},
    "resources": {"resources": {"requests": {"cpu": 1, "ephemeral-storage": "1Gi"}, "limits": {"cpu": 2}}},
    "nodeSelector": {"nodeSelector": {"zone": "a"}},
    "affinity": {"affinity": AFFINITY},
    "topologySpreadConstraints": {"topologySpreadConstraints": SPREAD},
    "tolerations": {"tolerations": TOLERATION},
    "topology": {"topology": {"key": "zone"}},
    "template": {"template": {"spec": {"containers": [{"name": "main", "image": "own", "command": ["own"]}]}}},
    "dependsOn": {"dependsOn": [{"role": "chief"}]},
    "daemon": {"daemon": True},
}
"""{field of a role: role}"""
POD: dict[str, Any] = {
    "initContainers": [{"name": "first", "image": "local", "command": ["true"]}],
    "volumes": CLAIM,
    "nodeSelector": {"zone": "a"},
    "affinity": AFFINITY,
    "tolerations": TOLERATION,
    "topologySpreadConstraints": SPREAD,
    "terminationGracePeriodSeconds": 5,
    "securityContext": {"runAsUser": 2000},
    "imagePullSecrets": [{"name": "hub"}],
    "dnsConfig": {"searches": ["a"]},
    "dnsPolicy": "None",
    "hostAliases": [{"ip": "127.0.0.9", "hostnames": ["a"]}],
    "runtimeClassName": "other",
    "serviceAccountName": "robot",
    "shareProcessNamespace": True,
}
"""{field of a pod: value}"""
CONTAINER: dict[str, Any] = {
    "name": "own",
    "imagePullPolicy": "Always",
    "command": ["sh", "-c", "echo $(SLIPWAY_RANK)"],
    "args": ["a"],
    "workingDir": "/tmp",
    "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "a"}}}],
    "envFrom": [{"configMapRef": {"name": "a"}}],
    "ports": [{"containerPort": 80}],
    "resources": {"limits": {"ephemeral-storage": "1Gi"}},
    "livenessProbe": PROBE,
    "readinessProbe": PROBE,
    "startupProbe": PROBE,
    "lifecycle": {"preStop": PROBE},
    "securityContext": {"readOnlyRootFilesystem": True},
    "stdin": True,
    "tty": True,
    "terminationMessagePolicy": "FallbackToLogsOnError",
}
"""{field of a container: value}"""


def with_main(spec: Json, **fields: Any) -> Json:
    """A launch whose pod template has more fields than the form."""
    main = {"name": "main", "image": "local", "command": ["true"], **fields}
    return {"template": {"spec": {**spec, "containers": [main]}}}


def with_role(field: str, role: Json) -> Json:
    """A launch whose last role has the field; some fields need another role before it."""
    return {"ranks": [*([CHIEF] if field in ("dependsOn", "daemon") else []), {"name": "worker", **role}]}


LAUNCHES: dict[str, Json] = {
    **SPEC,
    **{f"role {field}": with_role(field, role) for field, role in ROLE.items()},
    **{f"pod {field}": with_main({field: value}) for field, value in POD.items()},
    **{f"container {field}": with_main({}, **{field: value}) for field, value in CONTAINER.items()},
    "host network": {"pool": PLACE, **with_main({"hostNetwork": True})},
    "capability": {"pool": PLACE, **with_main({}, securityContext={"capabilities": {"add": ["SYS_PTRACE"]}})},
    "mount": with_main({"volumes": CLAIM}, volumeMounts=[{"name": "data", "mountPath": "/data"}]),
    "second container": {
        "template": {"spec": {"containers": [{"name": name, "image": "local"} for name in ("main", "b")]}}
    },
    "arguments alone": {"args": ["a"]},
    "words of a shell": {"command": ["sh", "-c", "echo $(date) $$ '$HOME'"]},
    "its own program": {"kind": "notebook"},
}
"""{tested field: launch}"""
NO_COMMAND = {"arguments alone", "second container", "its own program"}


@pytest.fixture(scope="module")
def context(stack: RunningStack) -> Generator[str]:
    """Workspace, pool, queue and job, and the id of an uploaded archive."""
    slipway = "/apis/slipway.dev/v1alpha1"
    flavors = [{"name": name, "nodeLabels": {"gpu": name}} for name in ("a", "b")]
    pool = {"flavors": flavors, "privilegedTemplates": True}
    stack.ask(lambda api: api.post("/workspaces", {"name": PLACE, "home": {"size": "1Gi"}}))
    accounts = {"metadata": {"annotations": {"slipway.dev/service-accounts": "robot"}}}
    stack.kubernetes("PATCH", f"/api/v1/namespaces/{PLACE}", accounts)
    for plural, kind, spec in (("resourcepools", "ResourcePool", pool), ("queues", "Queue", {"pool": PLACE})):
        made = {"apiVersion": "slipway.dev/v1alpha1", "kind": kind, "metadata": {"name": PLACE}, "spec": spec}
        stack.kubernetes("POST", f"{slipway}/{plural}", made)
    stack.ask(lambda api: api.post("/jobs", {"name": PLACE, "workspace": PLACE}))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        packed.addfile(tarfile.TarInfo("empty"), io.BytesIO())
    headers = {**stack.headers, "content-type": "application/gzip"}
    url = f"{stack.url}/api/v1/contexts?workspace={PLACE}"
    answer = httpx2.put(url, content=archive.getvalue(), headers=headers, trust_env=False).raise_for_status()
    yield str(answer.json()["id"])
    for plural in ("queues", "resourcepools"):
        stack.kubernetes("DELETE", f"{slipway}/{plural}/{PLACE}")


@pytest.fixture
def visit(stack: RunningStack, page: Page) -> Visit:
    return Visit(stack, page)


def test_every_field_is_tried() -> None:
    """A new field of a spec or of a role needs a row here, so that launching again cannot lose it."""
    assert {*SPEC} == {*AllocationSpec.__struct_encode_fields__} - GIVEN_UP
    assert {*ROLE} == {*RoleSpec.__struct_encode_fields__}


@pytest.mark.matrix(most=12)
@pytest.mark.parametrize("name", list(LAUNCHES))
def test_launch_again_keeps_the_field(stack: RunningStack, visit: Visit, context: str, name: str) -> None:
    """The second launch has the spec of the first, also for fields that the form does not have."""
    body = {"kind": "command", "image": "local", "workspace": PLACE, "hold": True, **LAUNCHES[name]}
    if "template" in body and name != "template":
        del body["image"]
    elif name not in NO_COMMAND:
        body.setdefault("command", ["true"])
    if name == "context":
        body["context"] = context
    id_ = stack.launch(body)
    try:
        first = stack.view(id_)["spec"]
        visit.go(f"/launch?from={id_}&as=yaml")
        visit.page.wait_for("!!document.querySelector('.outcome .state')")
        again = written(visit)
    finally:
        stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    foreseen = stack.ask(lambda api: api.post("/allocations", again, {"dryRun": "true"}))["spec"]
    for field in GIVEN_UP:
        first.pop(field, None)
        foreseen.pop(field, None)
    assert foreseen == first
    visit.is_clean()


def test_a_plain_launch_fills_the_form(stack: RunningStack, visit: Visit) -> None:
    """The form shows everything of a launch that it can express, and keeps the other short fields."""
    plain = {"kind": "training", "image": "local", "command": ["sh", "-c", "echo $(date)"], "setup": "true"}
    ranks = [{"name": "trainer", "count": 2, "resources": {"cpu": "100m", "memory": "64Mi"}}]
    body = {**plain, "workspace": "default", "ranks": ranks, "labels": {"team": "a"}, "preemptible": True}
    id_ = stack.launch({**body, "hold": True})
    try:
        visit.go(f"/launch?from={id_}")
        visit.shows("the form does not show these fields")
        values = visit.page.run("[...document.querySelectorAll('form [name]')].map(each => [each.name, each.value])")
        visit.press("YAML")
        visit.page.wait_for("!!document.querySelector('[name=yaml]')")
        again = written(visit)
    finally:
        stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    shown = {name: value for name, value in values if value}
    assert {name: shown[name] for name in ("command", "setup", "image", "ranks", "cpu", "memory")} == {
        "command": "sh -c 'echo $(date)'",
        "setup": "true",
        "image": "local",
        "ranks": "2",
        "cpu": "100m",
        "memory": "64Mi",
    }
    assert again == {**body, "queue": "default", "priority": 50}
    visit.is_clean()
