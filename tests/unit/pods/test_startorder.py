"""Roles that start in order, in the manifests: one more init container in the roles that wait."""

from typing import Any

import msgspec
import pytest

from slipway.crd.resolve import resolve
from slipway.crd.roleresources import WAITING_CONTAINER
from slipway.crd.v1alpha1 import RoleSpec
from slipway.pods.podspec import PROGRAM_KEY, START_PROGRAM, TaskOptions
from tests.support.allocations import a_pool
from tests.support.builders import an_allocation
from tests.unit.pods.test_manifest import made

SERVER = {"name": "server", "count": 1, "resources": {"cpu": "1"}}
GPU_WORKER = {
    "name": "worker",
    "count": 2,
    "resources": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1},
    "dependsOn": [{"role": "server", "until": "ready"}],
}


def pods_of(**spec: Any) -> list[dict[str, Any]]:
    return [pod.manifest["spec"] for pod in made(roles=[SERVER, GPU_WORKER], **spec).pods]


def test_only_the_ranks_of_the_role_that_waits_have_it() -> None:
    """Only the ranks of the waiting role have the init container, which runs the program in the ConfigMap as the user
    of the main container."""
    manifests = made(roles=[SERVER, GPU_WORKER])
    assert manifests.configmap["data"] == {PROGRAM_KEY: START_PROGRAM}
    first, *workers = [pod.manifest["spec"] for pod in manifests.pods]
    assert "initContainers" not in first
    assert len(workers) == 2
    for pod in workers:
        (waiting,) = pod["initContainers"]
        assert waiting["name"] == WAITING_CONTAINER
        assert waiting["command"] == ["python3", "/run/slipway/inside/start.py"]
        assert {"name": "SLIPWAY_API", "value": "http://api:8080"} in waiting["env"]
        assert waiting["securityContext"] == pod["containers"][0]["securityContext"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["slipway-inside"]["configMap"]["items"] == [{"key": PROGRAM_KEY, "path": "start.py"}]


def test_it_needs_no_more_than_the_main_container() -> None:
    """The init container needs no more than the main container, and no device, so the planned resources are enough."""
    (waiting,) = pods_of()[1]["initContainers"]
    assert waiting["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}


def test_files_are_put_in_place_before_it_waits() -> None:
    """Files are put in place before the wait, so that everything is ready when the other roles are. One volume has both
    programs."""
    pod = pods_of(context="ab" * 32)[1]
    assert [each["name"] for each in pod["initContainers"]] == ["slipway-context", WAITING_CONTAINER]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "slipway-inside"]
    assert [item["path"] for item in volume["configMap"]["items"]] == ["fetch.py", "start.py"]


def test_image_and_python_are_settings() -> None:
    """Image and Python are the settings of the container that fetches files; the defaults are the rank's own image and
    `python3`."""
    options = TaskOptions(api_url="http://api", token_audience="slipway", context_image="tools:1", context_python="/py")
    (waiting,) = pods_of(options=options)[1]["initContainers"]
    assert (waiting["image"], waiting["command"][0]) == ("tools:1", "/py")
    assert "/run/slipway/token" in {mount["mountPath"] for mount in waiting["volumeMounts"]}


@pytest.mark.parametrize(
    ("roles", "pointer", "detail"),
    [
        (
            [GPU_WORKER, SERVER],
            "/ranks/0/dependsOn/0/role",
            "there is no role server above role worker (it is the first",
        ),
        (
            [SERVER, {**GPU_WORKER, "dependsOn": [{"role": "worker"}]}],
            "/ranks/1/dependsOn/0/role",
            "there is no role worker above role worker (above it: server); move that role up",
        ),
        (
            [SERVER, {**GPU_WORKER, "dependsOn": [{"role": "server"}, {"role": "sever"}]}],
            "/ranks/1/dependsOn/1/role",
            "there is no role sever above role worker (above it: server); move that role up",
        ),
    ],
)
def test_a_role_depends_on_roles_above_it(roles: list[dict[str, Any]], pointer: str, detail: str) -> None:
    """A role depends only on roles above it, so that no two wait for each other, and none for itself."""
    story = an_allocation().with_spec(ranks=msgspec.convert(roles, list[RoleSpec]))
    errors = [each for each in resolve(story.it, a_pool()).errors if "dependsOn" in each.pointer]
    assert [(each.pointer, each.detail.startswith(detail)) for each in errors] == [(pointer, True)]
