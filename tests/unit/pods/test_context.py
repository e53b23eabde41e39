"""A context in the manifests: one more init container, a writable working directory, no further requests."""

from typing import Any

from slipway.crd.resolve import resolve
from slipway.pods.context import CONTAINER, PROGRAM, PROGRAM_KEY
from slipway.pods.podspec import TaskOptions
from tests.support.allocations import a_pool, a_template
from tests.support.builders import an_allocation
from tests.unit.pods.test_manifest import made

DIGEST = "ab" * 32
FILES = [{"path": "train.py", "content": "print(1)"}]


def spec_of(**spec: Any) -> dict[str, Any]:
    """The spec of the only pod."""
    found: dict[str, Any] = made(context=DIGEST, **spec).pods[0].manifest["spec"]
    return found


def a_main(**container: Any) -> dict[str, Any]:
    """A template with these fields of its main container."""
    template = a_template()
    template["spec"]["containers"][0] |= container
    return template


def mounts_of(container: dict[str, Any]) -> dict[str, str]:
    """{path: volume}; a path that is mounted twice fails."""
    listed = [(item["mountPath"], item["name"]) for item in container["volumeMounts"]]
    assert len(dict(listed)) == len(listed)
    return dict(listed)


def test_the_program_travels_in_the_configmap() -> None:
    """The program of the init container is in the ConfigMap; its arguments are the folder and the digest."""
    manifests = made(context=DIGEST)
    assert manifests.configmap["data"] == {PROGRAM_KEY: PROGRAM}
    pod = manifests.pods[0].manifest["spec"]
    first = pod["initContainers"][0]
    assert first["name"] == CONTAINER
    assert first["command"] == ["python3", "/run/slipway/inside/fetch.py", "/run/slipway/work", DIGEST]
    assert {"name": "SLIPWAY_API", "value": "http://api:8080"} in first["env"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["slipway-inside"]["configMap"]["items"] == [{"key": PROGRAM_KEY, "path": "fetch.py"}]
    assert volumes["slipway-work"] == {"name": "slipway-work", "emptyDir": {}}


def test_both_containers_share_the_working_directory() -> None:
    """Both containers share the working directory: the main container works where the files are, unless it sets its own
    directory."""
    pod = spec_of()
    main = pod["containers"][0]
    assert main["workingDir"] == "/run/slipway/work"
    assert mounts_of(main)["/run/slipway/work"] == mounts_of(pod["initContainers"][0])["/run/slipway/work"]
    own = spec_of(template=a_main(workingDir="/src"))
    assert own["containers"][0]["workingDir"] == "/src"
    assert mounts_of(own["containers"][0])["/src"] == "slipway-work"
    assert own["initContainers"][0]["command"][2] == "/src"


def test_files_lie_on_top_of_it() -> None:
    """Small files and an archive can be combined: one working directory contains all files."""
    pod = spec_of(files=FILES)
    mounts = mounts_of(pod["containers"][0])
    assert mounts["/run/slipway/work"] == "slipway-work"
    assert mounts["/run/slipway/work/train.py"] == "slipway-files"
    names = [volume["name"] for volume in pod["volumes"]]
    assert len(set(names)) == len(names)


def test_it_needs_no_more_than_the_main_container() -> None:
    """The init container needs neither devices, more CPU nor another user than the main container, so the planned
    resources are enough."""
    role = {"name": "worker", "count": 1, "resources": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1}}
    pod = made(context=DIGEST, roles=[role]).pods[0].manifest["spec"]
    first, main = pod["initContainers"][0], pod["containers"][0]
    assert "nvidia.com/gpu" in main["resources"]["requests"]
    assert first["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
    assert first["securityContext"] == main["securityContext"]


def test_image_and_python_are_settings() -> None:
    """Image and Python are settings; the defaults are the rank's own image and `python3`. The container has a token
    when ranks have one."""
    options = TaskOptions(api_url="http://api", token_audience="slipway", context_image="tools:1", context_python="/py")
    first = made(context=DIGEST, options=options).pods[0].manifest["spec"]["initContainers"][0]
    assert (first["image"], first["command"][0]) == ("tools:1", "/py")
    assert "/run/slipway/token" in mounts_of(first)


def test_it_goes_before_the_users_own() -> None:
    """The container runs before the user's init containers, which may use the files."""
    template = a_template()
    template["spec"]["initContainers"] = [{"name": "prepare", "image": "a", "command": ["true"]}]
    assert [item["name"] for item in spec_of(template=template)["initContainers"]] == [CONTAINER, "prepare"]


def test_without_a_context_nothing_changes() -> None:
    """Without a context there is no program, no init container and no volume."""
    manifests = made()
    assert manifests.configmap["data"] == {}
    assert "initContainers" not in manifests.pods[0].manifest["spec"]


def test_the_working_directory_must_be_free() -> None:
    """A volume of the user at the working directory is refused with its pointer; so is the root as working
    directory."""

    def pointers(template: dict[str, Any]) -> list[str]:
        story = an_allocation(context=DIGEST, template=template)
        return [error.pointer for error in resolve(story.it, a_pool()).errors]

    mount = {"name": "home", "mountPath": "/home/me/"}
    taken = a_main(workingDir="/home/me", volumeMounts=[mount])
    taken["spec"]["volumes"] = [{"name": "home", "emptyDir": {}}]
    assert pointers(taken) == ["/template/spec/containers/0/volumeMounts/0/mountPath"]
    assert pointers(a_main(workingDir="/")) == ["/template/spec/containers/0/workingDir"]
    assert pointers(a_main(workingDir="/src")) == []
