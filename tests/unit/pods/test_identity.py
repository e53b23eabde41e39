"""The home and the user name of a rank, which images without an entry for its uid need."""

from typing import Any

import pytest

from slipway.crd.homes import login_of
from slipway.crd.kinds import HOME_PATH
from slipway.pods import identity
from tests.support.allocations import a_template
from tests.support.builders import an_allocation
from tests.unit.pods.test_manifest import env_of, made, manifests_of

MAIN = {"name": "main", "image": "i", "command": ["c"]}


def mounts_of(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    """{path: volume} of a container."""
    return {item["mountPath"]: item["name"] for item in pod["containers"][container].get("volumeMounts") or ()}


def test_the_main_container_has_a_name_and_a_home_that_its_uid_can_write() -> None:
    """The main container has a user name and a writable home: an empty volume of the pod, which every uid may write."""
    manifests = made(1)
    pod = manifests.pods[0].manifest["spec"]
    assert pod["securityContext"]["runAsUser"] == 1000
    env = env_of(manifests)
    assert (env["HOME"], env["USER"], env["LOGNAME"]) == (HOME_PATH, env["LOGNAME"], env["USER"])
    assert mounts_of(pod)[HOME_PATH] == identity.HOME_VOLUME
    assert {"name": identity.HOME_VOLUME, "emptyDir": {}} in pod["volumes"]


def test_the_name_is_that_of_who_launched_it() -> None:
    """The user name is that of the launching user, so that experiment trackers, which read it, name a person."""
    story = an_allocation(template=a_template()).with_spec()
    allocation = story.assigned().it
    allocation.metadata.annotations["slipway.dev/user"] = "ada@lab.org"
    env = env_of(manifests_of(allocation))
    assert (env["USER"], env["LOGNAME"]) == ("ada", "ada")


@pytest.mark.parametrize(
    ("user", "login"),
    [
        ("ada", "ada"),
        ("Ada.L@lab.org", "Ada.L"),
        ("system:serviceaccount:team:ci-bot", "ci-bot"),
        ("oidc:ada lovelace", "ada-lovelace"),
        ("", "user"),
        ("@@", "user"),
        ("ада", "user"),
        ("x" * 99, "x" * 32),
    ],
)
def test_a_caller_becomes_a_plain_user_name(user: str, login: str) -> None:
    """A caller becomes a user name of letters, digits, dots and hyphens, which is safe in a path and a shell."""
    assert login_of(user) == login


def test_what_the_template_or_the_launch_sets_wins() -> None:
    """A name or home in the template or the launch wins; without our HOME there is no volume for it."""
    container = {**MAIN, "env": [{"name": "HOME", "value": "/data"}]}
    manifests = made(1, template=a_template(container), env={"USER": "me"})
    env = env_of(manifests)
    assert (env["HOME"], env["USER"]) == ("/data", "me")
    pod = manifests.pods[0].manifest["spec"]
    assert HOME_PATH not in mounts_of(pod)
    assert identity.HOME_VOLUME not in {volume["name"] for volume in pod.get("volumes") or ()}


def test_values_of_the_user_may_refer_to_the_home() -> None:
    """HOME is before the user's variables, because Kubernetes expands `$(HOME)` only after HOME."""
    listed = made(1, env={"CACHE": "$(HOME)/cache"}).pods[0].manifest["spec"]["containers"][0]["env"]
    names = [item["name"] for item in listed]
    assert names.index("HOME") < names.index("CACHE")


def test_a_volume_mounted_as_a_home_is_the_home() -> None:
    """One writable claim below /home is the home; with several, or a read-only one, the home is unchanged."""
    volumes: list[dict[str, Any]] = [{"name": "a", "emptyDir": {}}]

    def home(*mounts: dict[str, Any]) -> str:
        container = {**MAIN, "volumeMounts": list(mounts)}
        return str(env_of(made(1, template=a_template(container, volumes=volumes)))["HOME"])

    assert home({"name": "a", "mountPath": "/home/ada/"}) == "/home/ada"
    assert home({"name": "a", "mountPath": "/home/ada", "readOnly": True}) == HOME_PATH
    assert home({"name": "a", "mountPath": "/home/ada"}, {"name": "a", "mountPath": "/home/bob"}) == HOME_PATH
    assert home({"name": "a", "mountPath": "/home/ada/data"}) == HOME_PATH
    for source in ({"configMap": {"name": "c"}}, {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}}):
        volumes[0] = {"name": "a", **source}
        assert home({"name": "a", "mountPath": "/home/ada"}) == HOME_PATH


def test_a_user_of_the_image_and_root_keep_their_home() -> None:
    """A user of the image keeps its home, which the image defines; so does root, whose home is in every image."""
    pool = {"privilegedTemplates": True}
    for context in ({}, {"runAsUser": 0}):
        env = env_of(made(1, pool=pool, template=a_template({**MAIN, "securityContext": context})))
        assert not {"HOME", "USER", "LOGNAME"} & env.keys()
    asked = made(1, pool=pool, template=a_template({**MAIN, "securityContext": {"runAsUser": 7}}))
    assert env_of(asked)["HOME"] == HOME_PATH


@pytest.mark.parametrize("setup", ["", "pip install x"])
def test_a_program_of_ours_looks_for_the_home_of_the_image_first(setup: str) -> None:
    """A notebook gets the folder without the variable, because Jupyter's images have a home with settings. A pod that
    runs the user's program gets the variable."""
    ours = made(1, kind="notebook", template={}, setup=setup)
    pod = ours.pods[0].manifest["spec"]
    assert "HOME" not in env_of(ours)
    assert env_of(ours)["USER"]
    assert mounts_of(pod)[HOME_PATH] == identity.HOME_VOLUME
    assert "home.py" in " ".join(ours.configmap["data"])
    assert env_of(made(1, kind="notebook", template=a_template(MAIN)))["HOME"] == HOME_PATH


def test_other_containers_keep_what_their_images_say() -> None:
    """Other containers keep the settings of their images, because a sidecar is a finished program."""
    manifests = made(1, template=a_template(MAIN, {"name": "side", "image": "s"}))
    assert "HOME" not in env_of(manifests, container=1)
    assert HOME_PATH not in mounts_of(manifests.pods[0].manifest["spec"], 1)
