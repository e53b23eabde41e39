"""The layers of a launch: pool < workspace < template < request; objects merge, lists replace, null removes."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.api.launch.overlays import Layer, merge_layers, merged, with_sources
from slipway.errors import FieldError, InvalidError
from slipway.kube.resources import NAMESPACES, QUEUES, RESOURCE_POOLS
from tests.support.api_world import ApiWorld

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("under", "over", "expected"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3, "z": 4}}, {"a": {"x": 1, "y": 3, "z": 4}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": [1, 2]}, {"a": []}, {"a": []}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": None}}, {"a": {"y": 2}}),
        ({"a": {"x": 1}}, {"a": 5}, {"a": 5}),
        ({"a": 5}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({}, {"a": {"x": None, "y": 1}}, {"a": {"y": 1}}),
        ({"a": 1}, {"a": {}}, {"a": {}}),
        ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}),
        ({"a": None}, {}, {}),
        ({"command": ["a"], "args": ["b"]}, {"command": ["c"]}, {"command": ["c"]}),
        ({"command": ["a"], "args": ["b"]}, {"command": ["c"], "args": ["d"]}, {"command": ["c"], "args": ["d"]}),
        ({"command": ["a"], "args": ["b"]}, {"args": ["d"]}, {"command": ["a"], "args": ["d"]}),
        ({"command": ["a"], "args": ["b"]}, {"command": None}, {"args": ["b"]}),
        ({"command": ["a"], "args": ["b"]}, {"run": "c"}, {"run": "c"}),
        ({"run": "a"}, {"command": ["c"]}, {"command": ["c"]}),
    ],
)
def test_the_rules(under: Json, over: Json, expected: Json) -> None:
    """Each case is one rule of the merge."""
    assert merged(under, over) == expected


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
_BODIES = st.dictionaries(st.sampled_from("abc"), _VALUES, max_size=3)


@given(_BODIES, _BODIES, _BODIES)
def test_every_value_has_one_source(first: Json, second: Json, third: Json) -> None:
    """The sources name each leaf of the result and nothing else; the source is the highest layer that sets the leaf."""
    layers = [Layer(source=name, body=body) for name, body in (("1", first), ("2", second), ("3", third))]
    body, sources = merge_layers(layers)
    assert {at for at in sources if not _is_empty(body, at)} == set(_leaves(body, ""))
    assert "None" not in str(_leaves(body, ""))


@given(_BODIES, _BODIES)
def test_applying_an_overlay_twice_changes_nothing(under: Json, over: Json) -> None:
    """A layer is idempotent."""
    once = merged(under, over)
    assert merged(once, over) == once


def _leaves(body: Any, at: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in body.items():
        if isinstance(value, dict):
            found |= _leaves(value, f"{at}/{name}")
        else:
            found[f"{at}/{name}"] = value
    return found


def _is_empty(root: Any, at: str) -> bool:
    body: Any = root
    for step in at.split("/")[1:]:
        if not isinstance(body, dict) or step not in body:
            return True
        body = cast("Any", body[step])
    return isinstance(body, dict)


def test_errors_name_the_overlay_that_caused_them() -> None:
    """An error in a template's value names the template; an error in the client's own value is not changed."""
    sources = {"/image": "template base", "/ranks": "request"}
    error = InvalidError("", fields=(FieldError("/image", "bad"), FieldError("/ranks/0/count", "bad")))
    found = {field.pointer: field.detail for field in with_sources(error, sources, "the launch").fields}
    assert found == {"/image": "bad (it comes from template base)", "/ranks/0/count": "bad"}


# --- through the API --------------------------------------------------------------------------------------------------


async def a_second_pool(world: ApiWorld, **spec: Any) -> None:
    """Create the pool `gpu` with a queue of its name."""
    await world.kube.create(RESOURCE_POOLS, {"metadata": {"name": "gpu"}, "spec": spec})
    await world.kube.create(QUEUES, {"metadata": {"name": "gpu"}, "spec": {"pool": "gpu"}})


async def annotate(world: ApiWorld, **marks: str) -> None:
    """Set defaults of the workspace `default`."""
    found = {f"slipway.dev/default-{name}": value for name, value in marks.items()}
    await world.kube.patch(NAMESPACES, "default", {"metadata": {"annotations": found}})


async def dry(world: ApiWorld, **body: Any) -> Json:
    """A dry run that must be accepted."""
    response = await world.post("/allocations?dryRun=true", body)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_pool_then_workspace_then_template_then_request(world: ApiWorld) -> None:
    """Each layer wins over those before it, and is named as the source."""
    defaults = {"command": {"image": "of-pool", "command": ["pool"], "env": {"A": "pool", "B": "pool"}}}
    await a_second_pool(world, defaults=defaults)
    await annotate(world, pool="gpu", template="team")
    await world.post("/templates", {"name": "team", "body": {"env": {"B": "team", "C": "team"}, "priority": 10}})
    await world.post("/templates", {"name": "mine", "body": {"env": {"C": "mine", "D": "mine"}, "priority": 20}})
    found = await dry(world, kind="command", template="mine", env={"D": "request"})
    spec, sources = found["spec"], found["sources"]
    assert (spec["pool"], spec["queue"], spec["priority"]) == ("gpu", "gpu", 20)
    assert spec["env"] == {"A": "pool", "B": "team", "C": "mine", "D": "request"}
    assert spec["template"]["spec"]["containers"][0]["image"] == "of-pool"
    assert sources["/pool"] == "workspace default"
    assert sources["/env/B"] == "template team of workspace default"
    assert sources["/env/C"] == "template mine"
    assert sources["/env/D"] == "request"
    assert sources["/image"] == "pool gpu"
    assert sources["/queue"] == "pool gpu"


async def test_null_takes_a_value_of_a_template_away(world: ApiWorld) -> None:
    """Then the value below the template applies again."""
    await world.post("/templates", {"name": "mine", "body": {"image": "a", "priority": 20, "env": {"A": "1"}}})
    found = await dry(world, kind="command", command=["x"], template="mine", priority=None, env={"A": None})
    assert found["spec"]["priority"] == 50
    assert "env" not in found["spec"]


async def test_a_command_gets_no_arguments_of_a_template(world: ApiWorld) -> None:
    """The arguments of a template are for its own command, also those in its pod template; no source names them."""
    pod = {"spec": {"containers": [{"name": "main", "image": "a", "command": ["serve"], "args": ["--port", "80"]}]}}
    await world.post("/templates", {"name": "words", "body": {"image": "a", "command": ["serve"], "args": ["--slow"]}})
    await world.post("/templates", {"name": "pods", "body": {"template": pod}})
    for template in ("words", "pods"):
        found = await dry(world, kind="command", template=template, command=["train"])
        [container] = found["spec"]["template"]["spec"]["containers"]
        assert (container["command"], container.get("args", [])) == (["train"], [])
        assert found["sources"].get("/args") != f"template {template}"
    kept = await dry(world, kind="command", template="pods")
    [container] = kept["spec"]["template"]["spec"]["containers"]
    assert (container["command"], container["args"]) == (["serve"], ["--port", "80"])


async def test_a_queue_of_the_workspace_in_another_pool(world: ApiWorld) -> None:
    """A launch that names another pool does not get the default queue, which is not in that pool."""
    await a_second_pool(world)
    await annotate(world, pool="gpu", queue="gpu")
    assert (await dry(world, kind="command", image="a", command=["x"]))["spec"]["queue"] == "gpu"
    found = await dry(world, kind="command", image="a", command=["x"], pool="default")
    assert (found["spec"]["pool"], found["spec"]["queue"]) == ("default", "default")
    asked = {"kind": "command", "image": "a", "command": ["x"], "pool": "gpu", "queue": "default"}
    named = await world.http.post("/api/v1/allocations?dryRun=true", json=asked)
    assert [error["pointer"] for error in named.json()["errors"]] == ["/queue"]


async def test_a_default_template_that_is_gone(world: ApiWorld) -> None:
    """The launch gets 422 at the workspace, with the template's name."""
    await annotate(world, template="gone")
    response = await world.post("/allocations", {"kind": "command", "image": "a", "command": ["x"]})
    (error,) = response.json()["errors"]
    assert (response.status_code, error["pointer"]) == (422, "/workspace")
    assert "default template gone is missing" in error["detail"]


async def test_what_a_template_says_wrong_is_its_own(world: ApiWorld) -> None:
    """The error states from which template the value comes."""
    await world.post("/templates", {"name": "mine", "body": {"ranks": [{"resources": {"cpu": "12x"}}]}})
    response = await world.post("/allocations", {"kind": "command", "image": "a", "command": ["x"], "template": "mine"})
    (error,) = response.json()["errors"]
    assert error["pointer"] == "/ranks/0/resources/cpu"
    assert error["detail"].endswith("(it comes from template mine)")


async def test_a_pool_that_is_not_for_the_workspace(world: ApiWorld) -> None:
    """The launch gets 422 at /pool with the pools of the workspace; also for a name that no pool has."""
    await a_second_pool(world, workspaces=["elsewhere"])
    for pool, said in (
        ("gpu", "is not for workspace default; there are: default"),
        ("No Pool", ""),
        ("none", "there is no pool"),
    ):
        response = await world.post("/allocations", {"kind": "command", "image": "a", "command": ["x"], "pool": pool})
        (error,) = response.json()["errors"]
        assert (response.status_code, error["pointer"]) == (422, "/pool")
        assert said in error["detail"]
