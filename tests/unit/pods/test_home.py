"""Persistent home directories: their users, and where a rank finds its own."""

import pytest

from slipway.crd.homes import claim_name
from slipway.crd.kinds import HOME_PATH
from slipway.pods.identity import HOME_VOLUME
from tests.support.allocations import a_template
from tests.unit.pods.test_identity import mounts_of
from tests.unit.pods.test_manifest import env_of, made

ALIKE = ["ada", "ada@lab.org", "Ada", "system:serviceaccount:team:ada", "aDa", "ada-", "ada@other.org"]


def test_a_name_of_a_claim_says_whose_it_is() -> None:
    """The name of a claim identifies its user, and is always the same."""
    assert claim_name("Ada.Lovelace@lab.org") == claim_name("Ada.Lovelace@lab.org")
    assert claim_name("Ada.Lovelace@lab.org").startswith("home-ada-lovelace-")


@pytest.mark.parametrize("user", [*ALIKE, "", "☃", "-", "x" * 300])
def test_a_name_of_a_claim_is_one_of_kubernetes(user: str) -> None:
    """The name of a claim is valid for Kubernetes with any user name; users with similar names have different
    claims."""
    name = claim_name(user)
    assert name.replace("-", "a").isalnum()
    assert name.isascii()
    assert name == name.lower()
    assert len(name) <= 63
    assert len({claim_name(each) for each in ALIKE}) == len(ALIKE)


@pytest.mark.parametrize("kind", ["training", "notebook"])
def test_home_is_the_claim_of_the_user(kind: str) -> None:
    """HOME is the claim of the user in the main container, for our own programs too."""
    manifests = made(1, kind=kind, home=True)
    pod = manifests.pods[0].manifest["spec"]
    assert env_of(manifests)["HOME"] == HOME_PATH
    assert mounts_of(pod)[HOME_PATH] == HOME_VOLUME
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == HOME_VOLUME]
    assert volume["persistentVolumeClaim"]["claimName"].startswith("home-")


def test_home_is_kept_for_root_too() -> None:
    """Root has the persistent home too: its home in the image would be lost with the pod."""
    root = a_template({"name": "main", "image": "i", "command": ["c"], "securityContext": {"runAsUser": 0}})
    manifests = made(1, pool={"privilegedTemplates": True}, home=True, template=root)
    assert env_of(manifests)["HOME"] == HOME_PATH
    assert mounts_of(manifests.pods[0].manifest["spec"])[HOME_PATH] == HOME_VOLUME
