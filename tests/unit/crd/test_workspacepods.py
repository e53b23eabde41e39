"""The settings of a workspace for its pods, as they are read from its annotations and applied to pod templates."""

import pytest

from slipway.crd.workspacepods import PULL_SECRETS_MAX, HomeTemplate, ReleasedSecrets, read, with_pull_secrets, written
from tests.support.allocations import Json, a_template, an_allocation

SECRETS = "slipway.dev/image-pull-secrets"


def names_of(template: Json | None) -> list[str]:
    return [item["name"] for item in (template or {})["spec"].get("imagePullSecrets", [])]


def test_what_is_written_is_read() -> None:
    """The annotations are read as they are written; a list without names is no annotation."""
    assert read({SECRETS: written(["a", "b"]) or ""}).pull_secrets == ("a", "b")
    assert (written([]), read({}).pull_secrets) == (None, ())
    assert read({"slipway.dev/service-accounts": "x, y*,"}).accounts == ("x", "y*")
    assert read({"slipway.dev/secrets": "x, y*,"}).secrets == ("x", "y*")


def test_without_an_annotation_every_secret_is_released() -> None:
    """Without an annotation every Secret is released; an empty one releases none."""
    assert read({}).released is None
    nothing = read({"slipway.dev/secrets": "", SECRETS: "pull"}).released
    assert nothing == ReleasedSecrets(names=(), for_images=("pull",))


def test_what_an_administrator_has_mistyped_stops_no_launch() -> None:
    """A mistyped list of an administrator stops no launch: invalid names are left out, and so are names above the
    limit."""
    many = ",".join(f"s{number}" for number in range(99))
    assert read({SECRETS: " a ,,A B,a,b"}).pull_secrets == ("a", "b")
    assert len(read({SECRETS: many}).pull_secrets) == PULL_SECRETS_MAX


def test_as_whom_launches_run_is_json() -> None:
    """The user of launches is stored as JSON; an invalid value is ignored."""
    assert read({"slipway.dev/run-as": '{"user": 7, "groups": [8]}'}).run_as.context == {
        "runAsUser": 7,
        "supplementalGroups": [8],
    }
    for wrong in ("", "7", "{", '{"user": "root"}'):
        assert read({"slipway.dev/run-as": wrong}).run_as.context == {}


def test_every_template_names_the_secrets_after_its_own() -> None:
    """Every template, also a role's own, gets the workspace's Secrets after its own; without Secrets nothing
    changes."""
    own = a_template(imagePullSecrets=[{"name": "b"}])
    spec = an_allocation(template=a_template(), ranks=[{"name": "r"}, {"name": "s", "template": own}]).spec
    made = with_pull_secrets(spec, ["a", "b"])
    assert (names_of(made.template), made.ranks[0].template, names_of(made.ranks[1].template)) == (
        ["a", "b"],
        None,
        ["b", "a"],
    )
    assert with_pull_secrets(spec, []) is spec


@pytest.mark.parametrize("wrong", ["", "x", "{}", '{"size": 3}', '{"size": "much"}', '{"size": "-1Gi"}', "[]"])
def test_a_template_of_homes_that_cannot_be_read_is_none(wrong: str) -> None:
    """A workspace whose annotation is wrong still launches; launches with a home are refused."""
    assert read({"slipway.dev/home": wrong}).home is None
    assert read({"slipway.dev/home": '{"size": "1Gi"}'}).home == HomeTemplate(size="1Gi")
