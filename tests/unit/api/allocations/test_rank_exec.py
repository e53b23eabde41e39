"""Commands in ranks through the api: in which container they run, who may run them, what is passed on, and when they
end."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from slipway.api.allocations import rank_exec
from slipway.api.settings import Settings
from slipway.errors import DeniedError, PermanentError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import NODES, PODS
from slipway.kube.scope import raise_only
from slipway.model import exec_channels
from slipway.model.exec_channels import MESSAGE_BYTES_MAX, PROTOCOL, STATUS, STDIN, STDOUT
from slipway.model.ids import AllocationId, pod_name
from slipway.model.lifecycle import Event
from slipway.sdk.commands import CommandOutput, CommandResult, RankCommand, input_messages
from tests.support.access import teams_world
from tests.support.api_world import ApiWorld, api_world
from tests.support.clock import wait_until
from tests.unit.api.proxy.test_proxy import served

Json = dict[str, Any]


async def a_running(world: ApiWorld, ranks: int = 1, **body: Any) -> str:
    """The id of an allocation whose containers run."""
    answer = await world.launch(**body, ranks=[{"name": "worker", "count": ranks}])
    await world.run(answer["name"])
    for rank in range(ranks):
        await say_running(world, str(answer["id"]), rank)
    return str(answer["id"])


async def say_running(world: ApiWorld, id_: str, rank: int = 0, **state: Json) -> None:
    """Write the status of the container, as the kubelet does."""
    name = pod_name(AllocationId(id_), 1, rank)
    pod = await world.kube.get(PODS, name, namespace="default")
    meta = {"name": name, "namespace": "default", "resourceVersion": pod.metadata.resource_version}
    container = {"name": "main", "state": state or {"running": {}}, "image": "a", "imageID": "", "ready": True}
    status = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [{**container, "restartCount": 0}]}
    await world.kube.replace_status(PODS, {"metadata": meta, "status": status})


@asynccontextmanager
async def opened(
    world: ApiWorld, id_: str, *command: str, protocol: str = PROTOCOL, headers: Any = None, **more: Any
) -> AsyncGenerator[ClientConnection]:
    path, protocols = RankCommand(id_, command, **more).path, [Subprotocol(protocol)]
    try:
        async with served(world.app) as port, asyncio.timeout(10):
            url = f"ws://127.0.0.1:{port}{path}"
            async with connect(url, subprotocols=protocols, additional_headers=headers, proxy=None) as socket:
                yield socket
    except BaseExceptionGroup as group:
        raise_only(group)


async def run(world: ApiWorld, id_: str, *command: str, data: bytes | None = None, **more: Any) -> CommandResult:
    """The output of a command, and its exit code."""
    async with opened(world, id_, *command, stdin=data is not None, **more) as socket:
        for message in input_messages(data) if data is not None else ():
            await socket.send(message)
        return await to_end(socket)


async def to_end(socket: ClientConnection) -> CommandResult:
    output = CommandOutput()
    while not output.take(await socket.recv()):
        pass
    return output.result


async def refused(world: ApiWorld, id_: str, *command: str, **more: Any) -> Json:
    """The problem with which the handshake is refused."""
    with pytest.raises(InvalidStatus) as raised:
        async with opened(world, id_, *(command or ("echo",)), **more):
            pass
    return dict(msgspec.json.decode(raised.value.response.body or b""))


async def test_output_input_and_exit_code_are_passed_on(world: ApiWorld) -> None:
    """Output, input and exit code are those that Kubernetes reports."""
    id_ = await a_running(world, ranks=2)
    assert await run(world, id_, "echo", "a", "b c") == CommandResult(0, b"a b c")
    assert await run(world, id_, "echo", data=b"x" * 100_000, rank=1) == CommandResult(0, b"x" * 100_000)
    assert await run(world, id_, "fail", "9") == CommandResult(9, b"", b"it failed\n")
    asked = world.kube.commands.started
    assert [(each.pod, each.container, each.stdin) for each in asked] == [
        (f"{id_}-1-0", "main", False),
        (f"{id_}-1-1", "main", True),
        (f"{id_}-1-0", "main", False),
    ]
    assert not world.kube.commands.open


async def test_without_words_it_is_a_shell(world: ApiWorld) -> None:
    """Without a command the session starts the best shell that the image has."""
    with pytest.raises(PermanentError):
        await run(world, await a_running(world))
    assert world.kube.commands.started[0].command[:2] == ("sh", "-c")


async def test_what_does_not_run_is_refused_in_words(world: ApiWorld) -> None:
    """Each refusal says what is wrong, and what there is."""
    waiting = await world.launch(name="waits")
    await world.explain("waits", "Capacity", "the pool is full")
    problem = await refused(world, waiting["id"])
    assert (problem["status"], "does not run yet: the pool is full" in problem["detail"]) == (409, True)
    id_ = await a_running(world, ranks=2, name="runs")
    problem = await refused(world, id_, rank=2)
    assert (problem["status"], problem["detail"]) == (404, f"allocation {id_} has no rank 2; it has ranks 0 to 1")
    problem = await refused(world, id_, container="side")
    assert (problem["status"], problem["errors"][0]["detail"]) == (
        422,
        "?container= 'side' is not a container of its pods; they have main",
    )
    await say_running(world, id_, terminated={"exitCode": 3})
    assert "is not running: it has ended with exit code 3" in (await refused(world, id_))["detail"]
    await say_running(world, id_, waiting={"reason": "ImagePullBackOff"})
    assert "is not running: ImagePullBackOff" in (await refused(world, id_))["detail"]
    await world.step("runs", Event.TERMINATED, result="Succeeded", reason="Completed")
    problem = await refused(world, id_)
    assert (problem["status"], f"slipway logs {id_}" in problem["detail"]) == (409, True)
    assert (await refused(world, "nope"))["status"] == 404


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("command=", "must name a program"),
        ("command=" + "x" * 12_290, "at most 12288 bytes"),
        ("tty=so", "true or false"),
    ],
    ids=["empty", "long", "tty"],
)
async def test_what_cannot_be_asked(world: ApiWorld, query: str, words: str) -> None:
    """The refusal says what is wrong with the parameter."""
    answer = await world.get(f"/allocations/{await a_running(world)}/ranks/0/exec?{query}")
    assert answer.status_code == 400
    assert words in answer.json()["errors"][0]["detail"]


async def test_an_account_that_may_not_says_what_to_grant(world: ApiWorld) -> None:
    """The error names the right that Slipway's account lacks, not one of the caller."""
    id_ = await a_running(world)

    async def deny(verb: Verb, _plural: str) -> None:
        if verb is Verb.EXEC:
            raise DeniedError('User "slipway-api" cannot create resource "pods/exec" in API group ""')

    world.kube.before = deny
    problem = await refused(world, id_)
    assert problem["status"] == 502
    assert "create and get on pods/exec, which the chart grants with api.settings.execEnabled=true" in problem["detail"]


async def test_it_can_be_switched_off() -> None:
    """Commands are refused for all callers, and the error names the setting."""
    async with api_world(Settings(exec_enabled=False)) as world:
        problem = await refused(world, await a_running(world))
    assert problem["status"] == 403
    assert "SLIPWAY_EXEC_ENABLED" in problem["detail"]


async def test_a_plain_request_is_told_to_upgrade(world: ApiWorld) -> None:
    """The request gets 426, after the same checks as a WebSocket."""
    id_ = await a_running(world)
    answer = await world.get(f"/allocations/{id_}/ranks/0/exec?command=true")
    assert (answer.status_code, PROTOCOL in answer.json()["detail"]) == (426, True)
    assert (await world.get(f"/allocations/{id_}/ranks/one/exec")).status_code == 400
    problem = await refused(world, id_, protocol="v4.channel.k8s.io")
    assert PROTOCOL in problem["detail"]


async def test_a_user_has_so_many_sessions() -> None:
    """One session more is refused until one has ended."""
    async with api_world(Settings(exec_sessions_max=1)) as world:
        id_ = await a_running(world)
        ada, ben = {"X-Slipway-User": "ada"}, {"X-Slipway-User": "ben"}
        async with opened(world, id_, "wait", stdin=True, headers=ada) as first:
            assert await first.recv() == bytes((STDOUT,)) + b"here"
            assert (await refused(world, id_, headers=ada))["status"] == 429
            assert (await run(world, id_, "echo", "b", headers=ben)).stdout == b"b"
        await wait_until(lambda: not world.kube.commands.open, "the command is left")
        assert (await run(world, id_, "echo", "a", headers=ada)).stdout == b"a"


async def test_silence_ends_it() -> None:
    """The client gets the reason, and the command is left."""
    async with api_world(Settings(exec_idle_s=1)) as world:
        async with opened(world, await a_running(world), "wait", stdin=True) as socket:
            output = CommandOutput()
            while not output.take(await socket.recv()):
                pass
        assert output.end is not None
        assert "SLIPWAY_EXEC_IDLE_S" in output.end.message
        await wait_until(lambda: not world.kube.commands.open, "the command is left")


async def test_a_connection_to_the_container_that_breaks_is_told(world: ApiWorld) -> None:
    """Also when it breaks under input that is on its way."""
    async with opened(world, await a_running(world), "wait", stdin=True) as socket:
        await socket.recv()
        world.kube.commands.open[0].is_broken = True
        await socket.send(bytes((STDIN,)) + b"x")
        message = await socket.recv()
    assert isinstance(message, bytes)
    assert (message[0], b"the connection to the container was lost" in message) == (STATUS, True)
    await wait_until(lambda: not world.kube.commands.open, "the command is left")


@pytest.mark.parametrize("how", ["gone", "replaced", "silent"])
async def test_a_container_that_is_lost_ends_it(world: ApiWorld, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A node that dies closes no connection. The client is told what became of the pod or of its node."""
    monkeypatch.setattr(rank_exec, "LOOK_S", 0.05)
    id_ = await a_running(world)
    name = pod_name(AllocationId(id_), 1, 0)
    async with opened(world, id_, "wait", stdin=True) as socket:
        await socket.recv()
        pod = await world.kube.get(PODS, name, namespace="default")
        if how == "silent":
            node = msgspec.to_builtins(await world.kube.get(NODES, pod.spec.node_name))
            status = {**node["status"], "conditions": [{"type": "Ready", "status": "Unknown"}]}
            await world.kube.replace_status(NODES, {"metadata": node["metadata"], "status": status})
        else:
            await world.kube.delete(PODS, name, namespace="default", grace_s=0)
            if how == "replaced":
                spec = {"containers": [{"name": "main", "image": "a"}]}
                await world.kube.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        words = f"its node {pod.spec.node_name} does not answer" if how == "silent" else "its pod is gone"
        with pytest.raises(PermanentError, match=f"^the container was lost: {words}$"):
            await to_end(socket)
    await wait_until(lambda: not world.kube.commands.open, "the command is left")


async def test_a_silent_program_is_not_lost(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pod is there, and an API server that does not answer says nothing about it."""
    monkeypatch.setattr(rank_exec, "LOOK_S", 0.01)
    looks: list[str] = []

    async def away(verb: Verb, plural: str) -> None:
        if (verb, plural) == (Verb.GET, "pods"):
            looks.append(plural)
            if len(looks) % 2:
                raise UnavailableError("the API server does not answer")

    async with opened(world, await a_running(world), "wait", stdin=True) as socket:
        await socket.recv()
        world.kube.before = away
        await wait_until(lambda: len(looks) >= 4, "some looks")
        await socket.send(exec_channels.STDIN_END)
        assert (await to_end(socket)).exit_code == 0


async def test_it_ends_with_the_process(world: ApiWorld) -> None:
    """The client gets the reason, that the api restarts."""
    async with opened(world, await a_running(world), "wait", stdin=True) as socket:
        await socket.recv()
        world.stop.set()
        message = await socket.recv()
    assert isinstance(message, bytes)
    assert (message[0], b"is restarting" in message) == (STATUS, True)


async def test_a_client_that_leaves_ends_it(world: ApiWorld) -> None:
    """Neither the command nor its stream stays open."""
    async with opened(world, await a_running(world), "wait", stdin=True) as socket:
        await socket.recv()
    await wait_until(lambda: not world.kube.commands.open, "the command is left")
    assert world.parts.open_streams.count == 0


@pytest.mark.parametrize(
    ("message", "code"), [("words", 1003), (bytes((STDIN,)) + b"x" * MESSAGE_BYTES_MAX, 1009)], ids=["text", "large"]
)
async def test_a_message_that_is_none(world: ApiWorld, message: str | bytes, code: int) -> None:
    """A bad message ends the session with a close code that fits."""
    async with opened(world, await a_running(world), "wait", stdin=True) as socket:
        await socket.recv()
        await socket.send(message)
        await socket.wait_closed()
    assert socket.close_code == code


async def test_only_what_clients_may_say_is_passed_on(world: ApiWorld) -> None:
    """A client cannot print, or end the command in its own words."""
    async with opened(world, await a_running(world), "echo", stdin=True) as socket:
        for forged in (bytes((STDOUT,)) + b"x", bytes((STATUS,)) + b"{}", b""):
            await socket.send(forged)
        await socket.send(exec_channels.resize(90, 30))
        await socket.send(bytes((STDIN,)) + b"mine")
        await socket.send(exec_channels.STDIN_END)
        assert (await to_end(socket)).stdout == b"mine"


async def test_a_session_counts_as_activity(world: ApiWorld) -> None:
    """A session keeps the allocation from being idle."""
    id_ = await a_running(world)
    await run(world, id_, "echo", "a")
    assert not world.parts.touched.may(AllocationId(id_))


async def test_sessions_are_in_the_audit_log(world: ApiWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The line has the user, the rank and the program, but not its arguments, which may be secret. It is written at the
    start and at the end."""
    id_ = await a_running(world)
    with caplog.at_level(logging.INFO):
        await run(world, id_, "echo", "hunter2", headers={"X-Slipway-User": "ada"})
    said = [record.__dict__ for record in caplog.records if record.getMessage() == "audit"]
    assert "hunter2" not in str([record.__dict__ for record in caplog.records if record.name.startswith("slipway")])
    assert len(said) == 2, said
    assert "ada" in str(said[0])
    assert "'command': 'echo'" in str(said[0])


async def test_viewers_may_not(tmp_path: Path) -> None:
    """A command needs the role that may change the allocation; for other workspaces the allocation does not exist."""
    async with teams_world("token", tmp_path) as teams:
        id_ = teams.ids["red"]
        for role, where, status in (
            ("viewer", "team-red", 403),
            ("editor", "team-blue", 404),
            ("editor", "team-red", 409),
        ):
            headers = await teams.token("ada", {where: role})
            assert (await refused(teams.world, id_, headers=headers))["status"] == status


async def test_the_main_container_of_a_role_is_that_of_its_own_template(world: ApiWorld) -> None:
    """A rank whose role replaces the template is entered without naming its container."""
    own = {"spec": {"containers": [{"name": "driver", "image": "a"}]}}
    answer = await world.launch(ranks=[{"name": "worker", "count": 1}, {"name": "head", "count": 1, "template": own}])
    await world.run(answer["name"])
    refusal = await world.get(f"/allocations/{answer['id']}/ranks/1/exec")
    assert "container driver of rank 1" in refusal.json()["detail"]
