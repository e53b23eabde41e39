"""Replicas on a local cluster: a file of two groups, imported, launched, added to, and ended."""

from pathlib import Path

import yaml

from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

SERVICES = "/api/v1/namespaces/default/services"
PODS = "/api/v1/namespaces/default/pods"
GROUPS = Path(__file__).parent.parent / "imports/leaderworkerset/vllm.yaml"


def test_groups_of_a_file_stand_behind_one_service(stack: RunningStack, tmp_path: Path) -> None:
    """The Service selects each leader and no worker; a third group joins; the Service is deleted with the last
    group."""
    launch, name = tmp_path / "launch.yaml", fresh("groups")
    imported = stack.command("import", str(GROUPS), "--output", str(launch), "--report", "none")
    assert imported.code == 0, imported.err
    body = yaml.safe_load(launch.read_text("utf-8"))
    body |= {"name": name, "service": {"name": name, "port": 8080}}
    for role in body["ranks"]:
        role.pop("dependsOn", None)
        role["resources"] = {"cpu": "100m"}
        (container,) = role["template"]["spec"]["containers"]
        container |= {"image": "busybox:1.37", "command": ["sleep", "600"]}
        container.pop("readinessProbe", None)

    def behind() -> list[tuple[str, str]]:
        (found,) = [item for item in stack.kubernetes("GET", SERVICES)["items"] if item["metadata"]["name"] == name]
        selector = ",".join(f"{key}={value}" for key, value in found["spec"]["selector"].items())
        pods = stack.kubernetes("GET", f"{PODS}?labelSelector={selector}")["items"]
        labels = [pod["metadata"]["labels"] for pod in pods if pod["status"]["phase"] == "Running"]
        return sorted((each["slipway.dev/allocation"].rpartition("-")[0], each["slipway.dev/role"]) for each in labels)

    for count in (2, 3):
        launch.write_text(yaml.safe_dump({**body, "replicas": count}), "utf-8")
        applied = stack.command("apply", "-f", str(launch))
        assert applied.code == 0, applied.err
        assert len(applied.out.splitlines()) == count
        for index in range(count):
            stack.wait_for(f"{name}-{index}", "Running")
        assert behind() == [(f"{name}-{index}", "leader") for index in range(count)]
    described = stack.command("describe", f"{name}-0").out
    assert f"{name}.default.svc:8080" in described
    killed = stack.command("kill", "-l", f"slipway.dev/service={name}", "--yes")
    assert killed.code == 0, killed.err

    def is_gone() -> bool:
        return name not in [item["metadata"]["name"] for item in stack.kubernetes("GET", SERVICES)["items"]]

    wait_until(is_gone, "the Service is gone")
