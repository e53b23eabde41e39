"""`slipway rerun`: the same launch again, and the options that change it; `slipway attach`."""

from typing import Any

import pytest

from slipway.cli import main
from slipway.cli.verbs.rerun import changed
from slipway.crd.transitions import id_of
from slipway.errors import InvalidError
from slipway.kube.resources import RESOURCE_POOLS
from slipway.model.lifecycle import Event, Kind
from slipway.model.reasons import Result
from slipway.streams.logpacks import LogLine
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser
from tests.support.logs import end_logs, store_lines

RUN = ("run", "--detach", "--image", "python:3.11", "--name", "first")
MANY = ("--ranks", "2", "--cpus", "1", "--env", "A=1", "--env", "B=2", "--label", "team=vision", "--priority", "70")


async def spec_of_the_second(world: ApiWorld) -> Any:
    """The spec of the second allocation."""
    [name] = [name for name in await world.names() if name != "first"]
    return await world.stored(name)


async def test_the_same_is_launched_again(world: ApiWorld, cli_user: CliUser) -> None:
    """A rerun launches the same body with another name, also when the first allocation has ended."""
    assert (await cli_user.run(*RUN, *MANY, "--", "python", "train.py")).code == main.OK
    first = await world.stored("first")
    await world.step("first", Event.TERMINATED, result=Result.FAILED)
    done = await cli_user.run("rerun", "first", "--detach")
    assert done.code == main.OK, done.err
    second = await spec_of_the_second(world)
    for field in ("kind", "ranks", "min_available", "env", "template", "priority", "queue"):
        assert getattr(second.spec, field) == getattr(first.spec, field), field
    assert second.metadata.labels["team"] == "vision"
    assert second.metadata.name.startswith("run-")


async def test_another_type_of_gpus_replaces_the_flavors(world: ApiWorld, cli_user: CliUser) -> None:
    """`--gpu-type` sets the only accepted flavor."""
    flavors = [{"name": name, "nodeLabels": {"gpu": name}} for name in ("h100", "a100")]
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"flavors": flavors}})
    await cli_user.run(*RUN, "--flavor", "a100", "--flavor", "h100", "--", "true")
    done = await cli_user.run("rerun", "first", "--detach", "--gpu-type", "h100")
    assert done.code == main.OK, done.err
    assert (await spec_of_the_second(world)).spec.flavors == ["h100"]


async def test_options_change_what_they_name(world: ApiWorld, cli_user: CliUser) -> None:
    """Variables and labels are added, resources and ranks set, another command drops the old arguments."""
    await cli_user.run(*RUN, *MANY, "--", "python", "train.py")
    options = ("--env", "B=3", "--label", "try=2", "--gpus", "1", "--ranks", "3", "--image", "python:3.12", "--hold")
    done = await cli_user.run("rerun", "first", "--detach", *options, "--", "python", "other.py")
    assert done.code == main.OK, done.err
    second = await spec_of_the_second(world)
    assert second.spec.env == {"A": "1", "B": "3"}
    assert {name: second.metadata.labels[name] for name in ("team", "try")} == {"team": "vision", "try": "2"}
    [role] = second.spec.ranks
    assert (role.count, role.min_available, second.spec.min_available) == (3, 3, 3)
    requests = role.resources["requests"]
    assert (requests["cpu"], requests["nvidia.com/gpu"]) == ("1", "1")
    [container] = second.spec.template["spec"]["containers"]
    assert (container["image"], container["command"]) == ("python:3.12", ["python", "other.py"])
    assert "args" not in container
    assert second.spec.hold
    assert second.spec.priority == 70


async def test_a_shell_is_launched_again_and_not_waited_for(world: ApiWorld, cli_user: CliUser) -> None:
    """A rerun of a shell, which has no end of its own, launches a shell and returns at once."""
    await world.launch(name="first", kind="shell", command=[])
    done = await cli_user.run("rerun", "first")
    assert done.code == main.OK, done.err
    assert (await spec_of_the_second(world)).spec.kind is Kind.SHELL


async def test_a_rerun_is_looked_at_first(world: ApiWorld, cli_user: CliUser) -> None:
    """`--dry-run` shows the rerun and launches nothing."""
    await cli_user.run(*RUN, "--", "true")
    done = await cli_user.run("rerun", "first", "--priority", "80", "--dry-run", "-o", "json")
    assert (done.code, done.json["spec"]["priority"]) == (main.OK, 80)
    assert await world.names() == ["first"]


async def test_rerun_of_an_unknown_id_is_refused(world: ApiWorld, cli_user: CliUser) -> None:
    """An unknown allocation cannot be run again: it is named, and nothing is launched."""
    done = await cli_user.run("rerun", "nothing")
    assert (done.code, "nothing" in done.err) == (main.NOT_FOUND, True)
    assert await world.names() == []


def a_body(**changes: Any) -> Any:
    """A complete body as the API stores it."""
    resources = {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "a", "command": ["x"], "args": ["y"]}
    return {
        "kind": "training",
        "ranks": [{"name": "worker", "count": 4, "minAvailable": 2, "resources": resources}],
        "minAvailable": 2,
        "files": [{"path": "a", "content": "old"}, {"path": "b", "content": "kept"}],
        "template": {"spec": {"serviceAccountName": "sa", "containers": [container]}},
        **changes,
    }


def test_a_limit_goes_with_its_request() -> None:
    """A new request replaces the old limit too, because Kubernetes requires equal ones for a GPU; a new resource is
    only requested."""
    found = changed(a_body(), {"ranks": [{"name": "worker", "resources": {"nvidia.com/gpu": 8, "memory": "4Gi"}}]})
    resources = found["ranks"][0]["resources"]
    assert resources["requests"] == {"cpu": "1", "nvidia.com/gpu": 8, "memory": "4Gi"}
    assert resources["limits"] == {"nvidia.com/gpu": 8}
    assert (found["ranks"][0]["minAvailable"], found["minAvailable"]) == (2, 2)


def test_another_number_of_ranks_has_no_old_bound() -> None:
    """Another number of ranks drops the old minimum: a gang of two cannot wait for four."""
    found = changed(a_body(), {"ranks": [{"name": "worker", "count": 1}]})
    assert "minAvailable" not in found
    assert "minAvailable" not in found["ranks"][0]


def test_a_file_of_the_same_path_is_replaced() -> None:
    """A file of the same path is replaced; the other files stay."""
    found = changed(a_body(), {"files": [{"path": "a", "content": "new"}]})
    assert sorted((each["path"], each["content"]) for each in found["files"]) == [("a", "new"), ("b", "kept")]


def test_another_command_takes_the_arguments_away() -> None:
    """Another command drops the arguments of the old one; a service account is set once."""
    found = changed(a_body(), {"command": ["z"], "serviceAccount": "other"})
    assert (found["command"], found["serviceAccount"]) == (["z"], "other")
    [container] = found["template"]["spec"]["containers"]
    assert "args" not in container
    assert "serviceAccountName" not in found["template"]["spec"]


def test_the_first_body_stays_as_it_was() -> None:
    """The first body, which is the API's answer, is not changed."""
    body = a_body()
    changed(body, {"ranks": [{"name": "worker", "count": 1, "resources": {"cpu": "2"}}], "command": ["z"]})
    assert body == a_body()


@pytest.mark.parametrize(
    ("body", "changes", "said"),
    [
        (a_body(ranks=[{"name": "ps"}, {"name": "worker"}]), {"ranks": [{"name": "worker", "count": 2}]}, "ps, worker"),
        (a_body(), {"template": "base"}, "--template"),
    ],
)
def test_a_change_without_one_place_is_refused(body: Any, changes: Any, said: str) -> None:
    """A change that is ambiguous is refused: with several roles the role is unknown, and a template would have no
    effect below a complete body."""
    with pytest.raises(InvalidError, match=said):
        changed(body, changes)


async def test_attach_is_what_run_shows(world: ApiWorld, cli_user: CliUser) -> None:
    """`attach` has the same output and exit code as `follow`."""
    await cli_user.run(*RUN, "--", "true")
    id_ = id_of(await world.stored("first"))
    line = LogLine(attempt=1, rank=0, stream="stdout", time="2026-01-02T03:04:05Z", text="epoch 1")
    await store_lines(world.streams, id_, [line])
    await end_logs(world.streams, id_)
    await world.step("first", Event.TERMINATED, result=Result.FAILED, reason="RankFailed")
    attached, followed = await cli_user.run("attach", "first"), await cli_user.run("follow", "first")
    assert attached == followed
    assert (attached.code, attached.out) == (main.FAILED, "epoch 1\n")
    assert "Failed" in attached.err


@pytest.mark.parametrize(
    ("options", "ids"), [(("--run-as", "1002"), (1002, 2001)), (("--privilege", "root"), (0, 2001))]
)
async def test_another_user_takes_the_place_of_the_first_one(
    world: ApiWorld, cli_user: CliUser, options: tuple[str, str], ids: tuple[int, int]
) -> None:
    """The option for the user replaces the user in the pod template of the first launch, and keeps the rest."""
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"allowedPrivileges": ["root"]}})
    await cli_user.run(*RUN, "--run-as", "1001:2001", "--", "true")
    done = await cli_user.run("rerun", "first", "--detach", *options)
    assert done.code == main.OK, done.err
    context = (await spec_of_the_second(world)).spec.template["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == ids
    assert context["runAsNonRoot"] is (ids[0] != 0)
