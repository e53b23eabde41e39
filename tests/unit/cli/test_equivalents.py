"""`--as`: the printed text runs unchanged and shows no secret; what the tool cannot do is refused."""

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipway.cli import main
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser, CommandResult
from tests.support.http_stub import serve

Json = dict[str, Any]
COMMAND = """print("it's", '$HOME', "<<EOF>>")"""
LAUNCH = ("run", "--gpus", "1", "--ranks", "2", "--label", "team=x", "--image", "python:3.11", "--max-runtime", "2h")


async def ran(tool: str, text: str, **variables: str) -> CommandResult:
    """Run the printed text by its tool."""

    def run() -> CommandResult:
        argv = ["/bin/sh", "-c", text] if tool == "curl" else [sys.executable, "-c", text]
        env = {**os.environ, **variables}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    return await asyncio.to_thread(run)


@pytest.mark.parametrize("tool", ["curl", "python"])
async def test_a_launch_runs_as_it_is_printed(world: ApiWorld, cli_user: CliUser, tool: str) -> None:
    """Printing launches nothing; the printed text, run by its tool, makes the launch of the command, once."""
    printed = await cli_user.run(*LAUNCH, "--name", "one", "--user", "ann", "--as", tool, "--", "python", "-c", COMMAND)
    assert (printed.code, await world.names()) == (main.OK, [])
    for _ in range(2):
        done = await ran(tool, printed.out)
        assert (done.code, "one-" in done.out) == (0, True), done
    assert await world.names() == ["one"]
    by_hand = await cli_user.run(*LAUNCH, "--name", "two", "--user", "ann", "-d", "--", "python", "-c", COMMAND)
    assert by_hand.code == main.OK
    one, two = [(await world.get(f"/allocations/{name}")).json() for name in ("one", "two")]
    for each in (one, two):
        del each["spec"]["requestHash"]
    for part in ("user", "kind", "workspace", "spec"):
        assert one[part] == two[part]
    assert one["labels"]["team"] == "x"


async def test_a_launch_for_kubectl_is_a_manifest(world: ApiWorld, cli_user: CliUser) -> None:
    """For kubectl the text is an Allocation, complete with the fields that the API adds; nothing is launched."""
    printed = await cli_user.run(*LAUNCH, "--name", "one", "--as", "kubectl", "--", "python", "-c", COMMAND)
    manifest: Json = yaml.safe_load(printed.out)
    assert (manifest["apiVersion"], manifest["kind"]) == ("slipway.dev/v1alpha1", "Allocation")
    assert manifest["metadata"] == {"name": "one", "namespace": "default", "labels": {"team": "x"}}
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-c", COMMAND]
    assert manifest["spec"]["ranks"][0]["count"] == 2
    assert await world.names() == []


@pytest.mark.parametrize("kind", ["notebook", "shell", "command", "tensorboard"])
async def test_each_kind_can_be_printed(world: ApiWorld, cli_user: CliUser, kind: str) -> None:
    """Each kind can be printed, services too: nothing is started or waited for."""
    words = ("--image", "python:3.11", "--name", "nb")
    for tool in ("curl", "kubectl", "python"):
        printed = await cli_user.run(
            kind, "start", *words, "--as", tool, *(("--", "true") if kind == "command" else ())
        )
        assert (printed.code, kind in printed.out) == (main.OK, True), printed
    assert await world.names() == []


@pytest.mark.parametrize("tool", ["curl", "python"])
async def test_a_secret_value_is_a_variable(
    world: ApiWorld, cli_user: CliUser, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed text contains only the name of a secret's variable, and reads the value when it runs."""
    monkeypatch.setenv("HF_TOKEN", "canary-value")
    printed = await cli_user.run(*LAUNCH, "--name", "one", "--secret", "HF_TOKEN", "--as", tool, "--", "true")
    assert (printed.code, "canary" in printed.out, "HF_TOKEN" in printed.out) == (main.OK, False, True)
    done = await ran(tool, printed.out, HF_TOKEN="canary-value")
    assert done.code == 0, done
    assert (await world.stored("one")).spec.secret_variables == ["HF_TOKEN"]


@pytest.mark.parametrize(
    ("tool", "starts"), [("curl", "curl -sS -H"), ("python", "from slipway.sdk"), ("kubectl", "kubectl ")]
)
async def test_views_and_kills_are_printed_for_kubectl(
    world: ApiWorld, cli_user: CliUser, tool: str, starts: str
) -> None:
    """`get`, `ps` and `kill` can be printed, for one and for many; printing ends nothing and asks no question."""
    for name in ("a", "b"):
        await world.launch(name=name, labels={"sweep": "lr"}, headers={"X-Slipway-User": "ann"})
    await world.launch(name="other", headers={"X-Slipway-User": "ann"})
    own = ("--user", "ann", "--as", tool)
    looks = [
        await cli_user.run("get", "a", *own),
        await cli_user.run("ps", "-l", "sweep=lr", "--queue", "default", *own),
    ]
    for printed in looks:
        assert (printed.code, printed.out.startswith(starts)) == (main.OK, True), printed
    kills = [await cli_user.run("kill", "other", *own), await cli_user.run("kill", "-l", "sweep=lr", *own)]
    assert [printed.code for printed in kills] == [main.OK, main.OK]
    stored = [(await world.stored(name)).spec.desired for name in ("a", "b", "other")]
    assert stored == ["Running"] * 3
    if tool == "kubectl":
        assert looks[0].out == "kubectl get allocations.slipway.dev a -n default -o json\n"
        assert kills[1].out.count("kubectl patch allocations.slipway.dev ") == 2
        return
    got, listed = [await ran(tool, printed.out) for printed in looks]
    assert (got.code, "a-" in got.out) == (0, True), got
    assert ("a-" in listed.out, "b-" in listed.out, "other-" in listed.out) == (True, True, False), listed
    for printed in kills:
        done = await ran(tool, printed.out)
        assert done.code == 0, done
    assert [(await world.stored(name)).spec.desired for name in ("a", "b", "other")] == ["Stopped"] * 3


@pytest.mark.parametrize("tool", ["curl", "python"])
async def test_changes_run_as_they_are_printed(world: ApiWorld, cli_user: CliUser, tool: str) -> None:
    """Each verb that changes something can be printed: printing changes nothing, and the text, run by its tool, does
    what the verb does."""
    own = ("--user", "ann", "--as", tool)
    await world.launch(name="a", labels={"sweep": "lr"}, headers={"X-Slipway-User": "ann"})
    before = await world.stored("a")

    async def done(*words: str) -> Any:
        stood = await world.stored("a")
        printed = await cli_user.run(*words, *own)
        assert printed.code == main.OK, printed
        assert (await world.stored("a")).spec == stood.spec
        ended = await ran(tool, printed.out)
        assert ended.code == 0, ended
        return (await world.stored("a")).spec

    assert before.spec.priority != 70
    assert (await done("priority", "a", "70")).priority == 70
    assert (await done("hold", "-l", "sweep=lr")).hold
    assert (await done("update", "a", "--image", "python:3.12")).template != before.spec.template
    assert not (await done("resume", "a")).hold
    assert str((await done("limit", "a", "--max-runtime", "3h")).max_runtime) == "3h"
    assert (await done("pause", "a")).hold
    assert (await done("terminate", "a", "--reason", "it's over")).desired == "Stopped"


@pytest.mark.parametrize("tool", ["curl", "python"])
async def test_a_move_runs_as_it_is_printed(world: ApiWorld, cli_user: CliUser, tool: str) -> None:
    """The printed move, run by its tool, moves the allocation ahead; printing changes nothing."""
    for name in ("a", "b"):
        await world.launch(name=name, headers={"X-Slipway-User": "ann"})

    async def order() -> list[str]:
        return [each["name"] for each in (await world.get("/queues/default")).json()["waiting"]]

    # Both may be created in the same second: then the scheduler chooses their order.
    first, second = await order()
    printed = await cli_user.run("move", second, "--ahead-of", first, "--user", "ann", "--as", tool)
    assert (printed.code, await order()) == (main.OK, [first, second]), printed
    ended = await ran(tool, printed.out)
    assert ended.code == 0, ended
    assert await order() == [second, first]


async def test_to_forget_is_printed_for_curl_only(world: ApiWorld, cli_user: CliUser) -> None:
    """`forget` is printed for curl only, because the Python client and kubectl have no such call."""
    await world.launch(name="a")
    printed = await cli_user.run("forget", "a", "--as", "curl")
    assert printed.code == main.OK
    assert "/api/v1/allocations/a/forget" in printed.out
    for tool in ("python", "kubectl"):
        refused = await cli_user.run("forget", "a", "--as", tool)
        assert (refused.code, "use --as curl" in refused.err) == (main.USAGE, True), refused


async def test_changes_that_are_one_field_are_patches_of_kubectl(world: ApiWorld, cli_user: CliUser) -> None:
    """Changes for which the API only sets one field are patches of kubectl."""
    await world.launch(name="a", headers={"X-Slipway-User": "ann"})
    for words, patch in (
        (("priority", "a", "70"), '{"spec":{"priority":70}}'),
        (("resume", "a"), '{"spec":{"hold":false}}'),
        (("limit", "a", "--max-runtime", "3h"), '{"spec":{"maxRuntime":"3h"}}'),
    ):
        printed = await cli_user.run(*words, "--user", "ann", "--as", "kubectl")
        assert printed.out == f"kubectl patch allocations.slipway.dev a -n default --type merge -p '{patch}'\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ps", "--owner", "ann"), "--owner: kubectl cannot filter by it"),
        (("ps", "--sort", "name"), "--sort: kubectl cannot filter by it"),
        (("ps", "--phase", "Pending,Running"), "--phase: kubectl cannot filter by it"),
        (("kill", "a", "--grace", "5s"), "--grace: kubectl has no such option"),
        (("kill", "a", "--force"), "--force: kubectl has no such option"),
        (("hold", "a"), "--as: kubectl cannot do this as the API does; use --as curl"),
        (("pause", "a"), "--as: kubectl cannot do this"),
        (("preempt", "a"), "--as: kubectl cannot do this"),
        (("rm", "a"), "--as: kubectl cannot do this"),
        (("move", "a", "--behind", "b"), "--as: kubectl cannot do this"),
        ((*LAUNCH, "--secret", "HOME", "--", "true"), "--secret: the value of HOME can only be sent to the API"),
    ],
)
async def test_what_kubectl_cannot_do_is_refused(
    world: ApiWorld, cli_user: CliUser, words: tuple[str, ...], said: str
) -> None:
    """What kubectl cannot do is refused with the option and the tool that can do it."""
    await world.launch(name="a")
    done = await cli_user.run(words[0], "--as", "kubectl", *words[1:])
    assert (done.code, said in done.err, "--as curl" in done.err) == (main.USAGE, True, True), done


async def test_a_kill_of_nothing_prints_nothing(world: ApiWorld, cli_user: CliUser) -> None:
    """A kill that chooses no allocation prints nothing; ended ones are not chosen."""
    await world.launch(name="a", headers={"X-Slipway-User": "ann"})
    await world.step("a", Event.TERMINATED, result=Result.SUCCEEDED)
    done = await cli_user.run("kill", "--all", "--user", "ann", "--as", "curl")
    assert (done.code, done.out) == (main.OK, "")


@pytest.mark.parametrize("field", ["name", "workspace"])
@pytest.mark.parametrize("bad", ["a; touch taken", "$(touch taken)", "--kubeconfig=x", "a\nb", "A", ""])
async def test_a_name_that_is_none_is_not_printed(field: str, bad: str) -> None:
    """An invalid name from a server is not printed, so that a hostile or wrong server cannot add words to a command
    that a user copies."""

    async def answer(_: Request) -> Response:
        return JSONResponse({"id": "a-1", "name": "a", "workspace": "red", field: bad})

    async with serve(answer) as stub:
        for words in (("get", "a"), ("kill", "a")):
            done = await CliUser(stub.url).run(*words, "--as", "kubectl")
            assert (done.code, done.out, "not a valid Kubernetes name" in done.err) == (main.FAILED, "", True), done


async def test_a_field_that_is_none_is_not_printed() -> None:
    """A field name that is no Python identifier is refused, because names of fields are printed into a program
    unchanged."""

    async def answer(_: Request) -> Response:
        spec = {"x=__import__('os').system('touch taken'),y": 1}
        return JSONResponse({"id": "a-1", "kind": "command", "workspace": "red", "spec": spec})

    async with serve(answer) as stub:
        done = await CliUser(stub.url).run("rerun", "a", "--as", "python")
    assert (done.code, done.out, "the Python client cannot pass" in done.err) == (main.FAILED, "", True), done
