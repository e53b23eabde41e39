"""`slipway doctor` on a real API server with the chart installed and its services running under their own accounts."""

import json
import os
import subprocess

from tests.conformance.system.operator import Json
from tests.conformance.system.system import System
from tests.support import chart
from tests.support.local_stack import cli_words
from tests.support.wait import wait_until

POLICY_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{chart.NAMESPACE}/roles/slipway-watcher"
META = ("name", "namespace", "labels", "annotations")


def look(system: System) -> tuple[int, dict[str, Json]]:
    """The exit code, and the findings by check."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    words = cli_words("doctor", "--server", system.installation.url, "-o", "json", "--kubeconfig")
    done = subprocess.run(
        [*words, str(system.operator.cluster.kubeconfig)], env=env, capture_output=True, text=True, check=False
    )
    told = json.loads(done.stdout)
    return done.returncode, {each["check"]: each for each in told["findings"]}


def failed(found: dict[str, Json]) -> set[str]:
    """The failed checks except Deployments: here their pods are processes of this machine, which no controller sees."""
    return {name for name, each in found.items() if each["state"] == "failed" and not name.startswith("service ")}


def test_the_doctor_finds_nothing_in_a_working_release(system: System) -> None:
    """The doctor finds no fault: the rights of every account, as the API server judges them, stored schemas, its
    clock, leases, Redis."""
    _, found = look(system)
    assert failed(found) == set(), found
    for name in ("kubernetes", "clock of kubernetes", "admission policies", "lease slipway-feed", "redis eviction"):
        assert found[name]["state"] == "ok", found[name]
    assert [found[f"rights of {name}"]["state"] for name in chart.SERVICES] == ["ok"] * 4
    assert found["crd allocations.slipway.dev"]["state"] == "ok"


def test_each_removed_part_is_named_by_the_doctor(system: System) -> None:
    """The doctor names a missing policy binding and a missing Role, and its exit code is 1."""
    binding = next(iter(system.operator.items(POLICY_BINDINGS, "app.kubernetes.io/part-of=slipway")))
    role = system.operator.get(ROLE)
    name = binding["metadata"]["name"]
    system.operator.delete(f"{POLICY_BINDINGS}/{name}")
    with system.audit.excluded():
        system.operator.delete(ROLE)
        try:
            wait_until(lambda: "rights of watcher" in failed(look(system)[1]), "the authorizer knows it")
            code, found = look(system)
            assert code == 1
            # The watcher can no longer renew its lease; whether that shows already is a matter of seconds.
            assert failed(found) - {"lease slipway-feed"} == {"admission policies", "rights of watcher"}
            assert name in found["admission policies"]["found"]
            assert "leases.coordination.k8s.io" in found["rights of watcher"]["found"]
        finally:
            system.operator.create(POLICY_BINDINGS, again(binding))
            system.operator.create(ROLE.rpartition("/")[0], again(role))
    wait_until(lambda: failed(look(system)[1]) == set(), "all is well again")


def again(item: Json) -> Json:
    """The object as a body for a new create."""
    meta = {name: value for name, value in item["metadata"].items() if name in META}
    return {**{name: value for name, value in item.items() if name != "status"}, "metadata": meta}
