"""Both clients over HTTP against the real api: each rule is true for the client without asyncio and for the one with
it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from slipway.api.schemas import AllocationView, ExplainView
from slipway.errors import (
    DeadlineError,
    DeniedError,
    InvalidError,
    NotFoundError,
    PermanentError,
    ThrottledError,
    UnavailableError,
)
from slipway.model.lifecycle import Event, Kind, Phase
from slipway.model.reasons import Result
from slipway.sdk import AsyncClient, Client, contexts
from slipway.sdk.contexts import CliContext, CliContexts
from slipway.streams.keys import SHARDS
from slipway.streams.logpacks import LogLine
from tests.support.api_world import ApiWorld
from tests.support.clock import wait_until
from tests.support.http_stub import serve
from tests.support.logs import end_logs, store_lines
from tests.support.sdk import Shell, a_view, html_of

COMMAND = ["python", "-c", "print(1)"]
BOTH = [Client, AsyncClient]


def launching(kind: str = "command", **fields: Any) -> Any:
    """A launch, as a function of a client."""

    def launch(client: Any) -> Any:
        return client.launch(kind, image="python:3.11", command=COMMAND, **fields)

    return launch


@pytest.mark.parametrize("kind", list(Kind))
async def test_every_kind_is_launched(shell: Shell, kind: Kind) -> None:
    """Every kind can be launched; a launch returns a run with the server's view."""
    run = await shell.do(launching(kind))
    assert run.view.kind is kind
    assert run.phase is Phase.PENDING
    assert run.view.user == "ada"
    assert isinstance(await shell.do(lambda client: client.get(run.id)), AllocationView)


async def test_run_is_the_launch_of_a_command_on_ranks(shell: Shell) -> None:
    """`run` makes the same launch as `slipway run`."""
    run = await shell.do(lambda client: client.run(COMMAND, image="python:3.11", ranks=3, cpus=1))
    assert run.view.kind is Kind.TRAINING
    assert run.view.spec["ranks"][0]["count"] == 3


async def test_the_same_key_launches_once(shell: Shell, world: ApiWorld) -> None:
    """The same key launches once; without a key each call launches."""
    first, second = [await shell.do(launching(key="mine")) for _ in range(2)]
    third = await shell.do(launching())
    assert first.id == second.id
    assert third.id != first.id
    assert len(await world.names()) == 2


async def test_a_preview_launches_nothing(shell: Shell, world: ApiWorld) -> None:
    """A preview returns what the launch would become, and launches nothing."""
    found = await shell.do(lambda client: client.preview("command", image="python:3.11", command=COMMAND))
    assert found["dryRun"] is True
    assert await world.names() == []


async def test_a_refusal_is_one_exception(shell: Shell) -> None:
    """A refusal is one exception: its class is the kind, and it has the code, fields and next step."""
    with pytest.raises(NotFoundError) as missing:
        await shell.do(lambda client: client.get("nothing"))
    assert missing.value.code == "not-found"
    assert missing.value.next_step
    with pytest.raises(InvalidError) as wrong:
        await shell.do(launching(max_runtime="2 hours"))
    assert wrong.value.fields


async def test_a_list_is_read_page_after_page(shell: Shell) -> None:
    """A list is read page after page to its end, with any size of a page; the filters are the API's."""
    for number in range(5):
        await shell.do(launching(name=f"x{number}", labels={"team": "a" if number else "b"}))
    listed = await shell.all(lambda client: client.list(limit=2, sort="name"))
    assert [view.name for view in listed] == [f"x{number}" for number in range(5)]
    chosen = await shell.all(lambda client: client.list(label_selector="team=a", limit=3))
    assert len(chosen) == 4


async def test_changes_answer_the_view(shell: Shell) -> None:
    """Hold, release, priority and kill each return the current view of the allocation."""
    run = await shell.do(launching())
    assert (await shell.do(lambda client: client.hold(run.id))).hold
    assert not (await shell.do(lambda client: client.release(run.id))).hold
    assert (await shell.do(lambda client: client.change(run.id, priority=80))).priority == 80
    assert (await shell.do(lambda client: client.kill(run.id))).desired == "Stopped"
    with pytest.raises(InvalidError, match="did you mean priority"):
        await shell.do(lambda client: client.change(run.id, prioritty=1))


async def test_many_are_changed_in_one_request(shell: Shell, world: ApiWorld) -> None:
    """Many allocations are changed in one request, which returns the result of each; a refused or unknown one raises
    nothing."""
    runs = [await shell.do(launching(labels={"sweep": "lr"})) for _ in range(2)]
    ended = await shell.do(launching())
    await world.step(ended.view.name, Event.TERMINATED, result=Result.SUCCEEDED)
    ids = [runs[0].id, ended.id, "nobody"]
    answer = await shell.do(lambda client: client.batch("hold", ids=ids))
    assert [item.outcome.value for item in answer.items] == ["done", "refused", "notFound"]
    assert "has ended" in answer.items[1].problem.detail
    moved = await shell.do(lambda client: client.batch("move", ids=[runs[1].id], ahead_of=runs[0].id))
    assert moved.counts == {"done": 1}
    killed = await shell.do(lambda client: client.batch("kill", selector={"labelSelector": "sweep=lr"}))
    assert sorted(item.id for item in killed.items) == sorted(run.id for run in runs)
    assert {(await world.stored(run.view.name)).spec.desired for run in runs} == {"Stopped"}


async def test_many_are_launched_in_one_request(shell: Shell, world: ApiWorld) -> None:
    """Many launches are made in one request, each with the common and its own fields; a refused one raises nothing, and
    a key launches each name once."""
    each: list[dict[str, Any]] = [{"name": "a", "env": {"SEED": "0"}}, {"name": "b", "ranks": 2}]

    def launching_many(client: Any) -> Any:
        return client.launch_many("command", each, key="k", image="i", command=["x"], env={"LR": "1"})

    answer = await shell.do(launching_many)
    assert [item.outcome.value for item in answer.items] == ["launched", "launched"]
    assert (await world.stored("a")).spec.env == {"LR": "1", "SEED": "0"}
    assert (await world.stored("b")).spec.ranks[0].count == 2
    again = await shell.do(launching_many)
    assert [item.outcome.value for item in again.items] == ["replayed", "replayed"]
    assert [item.id for item in again.items] == [item.id for item in answer.items]
    taken = await shell.do(lambda client: client.launch_many("command", each, image="i", command=["x"]))
    assert taken.counts == {"refused": 2}
    with pytest.raises(InvalidError, match="did you mean env"):
        await shell.do(lambda client: client.launch_many("command", [{"name": "c", "envv": {}}], image="i"))


async def test_replicas_are_launched_in_one_request(shell: Shell, world: ApiWorld) -> None:
    """Replicas are launched in one request: the common fields have their number, and each is behind the Service."""
    service = {"name": "chat", "port": 80}
    fields: dict[str, Any] = {"name": "chat", "service": service, "image": "i", "command": ["x"]}
    answer = await shell.do(lambda client: client.launch_many("command", replicas=2, **fields))
    assert [item.name for item in answer.items] == ["chat-0", "chat-1"]
    assert (await world.stored("chat-1")).spec.env == {"REPLICA_INDEX": "1"}


async def test_preempting_asks_the_ranks(shell: Shell, world: ApiWorld) -> None:
    """A preemption sends its reason to the ranks."""
    run = await shell.do(launching())
    await world.run(run.view.name)
    view = await shell.do(lambda client: client.preempt(run.id, reason="maintenance"))
    assert view.spec["signals"]["preempt"]["reason"] == "maintenance"


async def test_the_cluster_is_typed(shell: Shell, world: ApiWorld) -> None:
    """Jobs, queues, pools, nodes, usage and the caller are returned as the server's structs."""
    assert (await shell.do(lambda client: client.create_job("j1", max_slots=8))).max_slots == 8
    run = await shell.do(launching(job="j1"))
    assert [job.name for job in await shell.do(lambda client: client.jobs())] == ["j1"]
    assert [member.id for member in (await shell.do(lambda client: client.job("j1"))).members] == [run.id]
    assert (await shell.do(lambda client: client.change_job("j1", weight=3))).job.weight == 3
    assert [queue.name for queue in await shell.do(lambda client: client.queues())] == ["default"]
    assert [each.id for each in (await shell.do(lambda client: client.queue("default"))).waiting] == [run.id]
    assert [pool.name for pool in await shell.do(lambda client: client.pools())] == ["default"]
    assert [node.name for node in await shell.do(lambda client: client.nodes())] == ["n1", "n2"]
    assert (await shell.do(lambda client: client.node("n1"))).ready
    assert (await shell.do(lambda client: client.usage("user,queue"))).by == ["user", "queue"]
    assert (await shell.do(lambda client: client.me())).user == "ada"


async def test_why_it_waits_and_how_long(shell: Shell, world: ApiWorld) -> None:
    """The explanation and the timeline are typed, too."""
    run = await shell.do(launching())
    await world.explain(run.view.name, "NoCapacity", "no node has room")
    why = await shell.do(lambda client: client.explain(run.id))
    assert isinstance(why, ExplainView)
    assert (why.code, why.position) == ("NoCapacity", 1)
    assert (await shell.do(lambda client: client.timeline(run.id))).spans[0].phase is Phase.PENDING
    await world.run(run.view.name)
    assert [pod.node for pod in await shell.do(lambda client: client.pods(run.id))] == ["n1"]


async def test_waiting_ends_with_the_end(shell: Shell, world: ApiWorld) -> None:
    """`wait` returns when the events show that the allocation has reached the goal, or has ended without it."""
    run = await shell.do(launching())
    waiting = asyncio.ensure_future(shell.do(lambda client: client.wait(run.id, until="running", timeout_s=60)))
    ending = asyncio.ensure_future(shell.do(lambda client: client.wait(run.id, timeout_s=60)))
    await world.publish(await world.run(run.view.name))
    assert (await waiting).phase is Phase.RUNNING
    ended = await world.step(run.view.name, Event.TERMINATED, result=Result.SUCCEEDED)
    await world.publish(ended)
    assert (await ending).result is Result.SUCCEEDED
    assert (await shell.do(lambda client: client.wait(run.id, until="ready"))).phase is Phase.TERMINATED


async def test_waiting_has_an_end_of_its_own(shell: Shell) -> None:
    """After the timeout the error has the state of the allocation; an unknown goal is refused."""
    run = await shell.do(launching())
    with pytest.raises(DeadlineError, match=r"is not running after 0\.2 s: it is Pending"):
        await shell.do(lambda client: client.wait(run.id, until="running", timeout_s=0.2))
    with pytest.raises(InvalidError, match="must be one of running, ready, ended"):
        await shell.do(lambda client: client.wait(run.id, until="done"))


async def test_events_resume_at_their_cursor(shell: Shell, world: ApiWorld) -> None:
    """Events are read in pages, and the stream resumes after a stored cursor."""
    run = await shell.do(launching())
    await world.publish(await world.run(run.view.name))
    past = await shell.all(lambda client: client.events(run.id))
    assert [event.type for event in past] == [Event.REQUESTED, Event.ASSIGNED, Event.RUNNING]
    await world.publish(await world.step(run.view.name, Event.TERMINATED, result=Result.FAILED), after=3)
    rest = await shell.all(lambda client: client.events(run.id, follow=True, after=past[1].entry_id))
    assert [event.type for event in rest] == [Event.RUNNING, Event.TERMINATED]


async def test_the_events_of_all_have_a_cursor(shell: Shell, world: ApiWorld) -> None:
    """The events of all allocations have a cursor with which another process continues without a gap."""
    first = await shell.do(launching(name="first"))
    streams: list[Any] = []

    def opened(client: Any) -> Any:
        streams.append(client.events(after=",".join(["0-0"] * SHARDS)))
        return streams[-1]

    await world.publish(await world.stored("first"))
    one = await shell.all(opened, most=1)
    assert [event.allocation_id for event in one] == [first.id]
    second = await shell.do(launching(name="second"))
    await world.publish(await world.stored("second"))
    rest = await shell.all(lambda client: client.events(after=streams[0].cursor), most=1)
    assert [event.allocation_id for event in rest] == [second.id]


async def test_lines_are_read_and_followed(shell: Shell, world: ApiWorld) -> None:
    """The lines of the ranks are read, filtered by the server; `follow` ends with the allocation."""
    run = await shell.do(launching())
    world.pod_logs.said = {0: ["2026-01-02T03:04:05.1Z one", "2026-01-02T03:04:05.2Z two"]}
    await world.run(run.view.name)
    lines = await shell.all(lambda client: client.logs(run.id, stream="stdout"))
    assert [line.text for line in lines] == ["one", "two"]
    found = await shell.all(lambda client: client.logs(run.id, search="TWO", stream="stdout"))
    assert [line.text for line in found] == ["two"]
    following = asyncio.ensure_future(shell.all(lambda client: client.logs(run.id, follow=True, stream="stdout")))
    await wait_until(lambda: world.parts.open_streams.count == 1, "the stream to be open")
    line = LogLine(rank=0, attempt=1, stream="stdout", time="2026-01-02T03:04:06Z", text="three")
    await store_lines(world.streams, run.id, [line])
    await world.publish(await world.step(run.view.name, Event.TERMINATED, result=Result.SUCCEEDED))
    await end_logs(world.streams, run.id)
    assert [line.text for line in await following] == ["three"]


async def test_an_error_in_the_block_kills_the_run(url: str, world: ApiWorld) -> None:
    """In `with client.run(...) as run` an error of the block kills the run and is raised; otherwise the run
    continues."""

    def sync_block(fails: bool) -> str:
        with Client(url) as client, client.run(COMMAND, image="python:3.11") as run:
            if fails:
                raise ValueError(run.id)
            return run.id

    async def async_block(fails: bool) -> str:
        async with AsyncClient(url) as client, client.run(COMMAND, image="python:3.11") as run:
            if fails:
                raise ValueError(run.id)
            return run.id

    kept = [await asyncio.to_thread(sync_block, False), await async_block(False)]
    killed: list[str] = []
    with pytest.raises(ValueError) as failed:
        await asyncio.to_thread(sync_block, True)
    killed.append(str(failed.value))
    with pytest.raises(ValueError) as failed:
        await async_block(True)
    killed.append(str(failed.value))
    stopped = {f"{name}": (await world.stored(name)).spec.desired for name in await world.names()}
    assert [stopped[id_.rpartition("-")[0]] for id_ in kept + killed] == ["Running", "Running", "Stopped", "Stopped"]


async def test_a_kill_that_fails_hides_no_error() -> None:
    """When the kill fails, the error of the block is still raised, with a note that the run could not be killed."""
    view = b""

    async def answer(request: Request) -> Response:
        if request.url.path.endswith("/kill"):
            return Response(b'{"code": "forbidden", "detail": "not yours"}', status_code=403)
        return Response(view)

    async with serve(answer) as stub:
        import msgspec

        from tests.unit.sdk.test_core import a_view

        view = msgspec.json.encode(a_view())

        def block() -> None:
            with Client(stub.url) as client, client.attach("a"):
                raise KeyError("mine")

        with pytest.raises(KeyError) as raised:
            await asyncio.to_thread(block)
    assert raised.value.__notes__ == ["a-12345678 could not be killed: not yours"]


async def test_a_notebook_shows_a_list(url: str) -> None:
    """A list at the end of a notebook cell is shown as a table of its first page."""

    def shown() -> str:
        with Client(url) as client:
            client.run(COMMAND, image="python:3.11", name="seen")
            return html_of(client.list())

    assert "seen" in await asyncio.to_thread(shown)


# --- what goes wrong on the way ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", BOTH)
async def test_a_launch_is_repeated_with_its_key(made: type) -> None:
    """A launch is repeated with the same Idempotency-Key when the server is away for a short time."""

    async def answer(_: Request) -> Response:
        return (
            Response(msgspec.json.encode(a_view()), status_code=201) if len(stub.requests) > 2 else Response(b"", 503)
        )

    async with serve(answer) as stub:
        shell = Shell(made(stub.url))
        assert (await shell.do(launching())).id == "a-12345678"
        await shell.close()
    keys = [request.headers["idempotency-key"] for request in stub.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1


@pytest.mark.parametrize("made", BOTH)
async def test_a_kill_is_not_repeated_when_its_outcome_is_unknown(made: type) -> None:
    """A kill with an unknown outcome is not repeated, because a second kill would end the ranks without their grace."""

    async def answer(_: Request) -> Response:
        return Response(b"", 503)

    async with serve(answer) as stub:
        shell = Shell(made(stub.url))
        with pytest.raises(UnavailableError, match="whether the call took effect is unknown"):
            await shell.do(lambda client: client.kill("a"))
        await shell.close()
    assert len(stub.requests) == 1


@pytest.mark.parametrize("made", BOTH)
async def test_a_call_ends_in_its_time(made: type) -> None:
    """A call ends within its timeout: a longer Retry-After is not waited for."""

    async def answer(_: Request) -> Response:
        return Response(b"", 429, headers={"Retry-After": "100"})

    async with serve(answer) as stub:
        shell = Shell(made(stub.url, timeout_s=5.0))
        with pytest.raises(ThrottledError) as late:
            await shell.do(lambda client: client.me())
        await shell.close()
    assert late.value.next_step == "try again in 100 s"


@pytest.mark.parametrize("made", BOTH)
async def test_a_stream_of_lines_goes_on_after_a_break(made: type) -> None:
    """A stream of lines resumes after a broken connection, each line once; a gap is a line with the number of missing
    ones."""

    def line(number: int, *, missing: int = 0) -> bytes:
        text = f"{missing} lines are missing here" if missing else f"line {number}"
        told = {"rank": 0, "attempt": 1, "stream": "stdout", "time": "t", "text": text, "number": number}
        told |= {"missing": missing}
        return (b"" if missing else b"id: 1-%d\n" % number) + b"data: %b\n\n" % msgspec.json.encode(told)

    parts = [[line(1), line(2)], [line(3, missing=2), line(5)]]

    async def answer(request: Request) -> Response:
        if not request.url.path.endswith("/logs"):
            is_over = len(opened) == 2
            return Response(msgspec.json.encode(a_view(phase="Terminated" if is_over else "Running")))
        opened.append(request.headers.get("last-event-id", ""))

        async def send() -> AsyncIterator[bytes]:
            for part in parts[len(opened) - 1]:
                yield part

        return StreamingResponse(send(), media_type="text/event-stream")

    opened: list[str] = []
    async with serve(answer) as stub:
        shell = Shell(made(stub.url))
        lines = await shell.all(lambda client: client.logs("a", follow=True))
        await shell.close()
    assert [(each.text, each.missing) for each in lines] == [
        ("line 1", 0),
        ("line 2", 0),
        ("2 lines are missing here", 2),
        ("line 5", 0),
    ]
    assert opened == ["", "1-2"]


@pytest.mark.parametrize("made", BOTH)
async def test_a_stream_that_is_refused_is_an_error(made: type) -> None:
    """A refused stream is an error and is not repeated."""

    async def answer(_: Request) -> Response:
        return Response(b'{"code": "not-found", "detail": "no such allocation"}', 404)

    async with serve(answer) as stub:
        shell = Shell(made(stub.url))
        with pytest.raises(NotFoundError, match="no such allocation"):
            await shell.all(lambda client: client.events("a", follow=True))
        await shell.close()


@pytest.mark.parametrize("made", BOTH)
async def test_no_server_is_said_with_what_to_do(made: type) -> None:
    """Without a server the error has the address, its origin, and the next step."""
    shell = Shell(made("http://127.0.0.1:9", timeout_s=0.2))
    with pytest.raises(UnavailableError, match=r"no Slipway answers at http://127\.0\.0\.1:9") as away:
        await shell.do(lambda client: client.me())
    await shell.close()
    assert "slipway up" in away.value.next_step


# --- the server and the user of a call
# --------------------------------------------------------------------------------------


async def asked(made: type, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, str]:
    """The headers of a call by a client that was created without an address."""

    async def answer(_: Request) -> Response:
        return Response(b'{"user": "ada", "auth": "none", "workspaces": []}')

    async with serve(answer) as stub:
        monkeypatch.setenv("SLIPWAY_SERVER", stub.url)
        shell = Shell(made(**options))
        await shell.do(lambda client: client.me())
        await shell.close()
    return stub.requests[0].headers


@pytest.mark.parametrize("made", BOTH)
async def test_the_environment_is_read_as_the_command_reads_it(made: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server, token and user are read from the same variables as by the command; arguments override them."""
    monkeypatch.setenv("SLIPWAY_API_TOKEN", "from-env")
    headers = await asked(made, monkeypatch)
    assert (headers["authorization"], headers["x-slipway-user"]) == ("Bearer from-env", "ada")
    headers = await asked(made, monkeypatch, token="mine", user="bob")
    assert (headers["authorization"], headers["x-slipway-user"]) == ("Bearer mine", "bob")


@pytest.mark.parametrize("made", BOTH)
async def test_a_context_is_a_server_and_its_token(made: type) -> None:
    """A context, by its name, sets the server and its token from the login; an unknown one is refused with the existing
    ones."""

    async def answer(_: Request) -> Response:
        return Response(b'{"code": "unauthorized", "detail": "expired"}', 401)

    async with serve(answer) as stub:
        contexts.write(CliContexts("", {"prod": CliContext(stub.url, token="t0k3n")}))
        shell = Shell(made(context="prod"))
        with pytest.raises(DeniedError) as denied:
            await shell.do(lambda client: client.me())
        await shell.close()
    assert stub.requests[0].headers["authorization"] == "Bearer t0k3n"
    assert "slipway login" in denied.value.next_step
    with pytest.raises(InvalidError, match="there is no context 'test'; there are: prod"):
        made(context="test")


@pytest.mark.parametrize("made", BOTH)
async def test_an_answer_that_cannot_be_read_is_an_error_of_the_tree(made: type) -> None:
    """An answer that cannot be decoded, such as a proxy's page with 200, is an error of the tree."""

    async def answer(_: Request) -> Response:
        return Response(b"<html>hello</html>")

    async with serve(answer) as stub:
        shell = Shell(made(stub.url))
        with pytest.raises(PermanentError, match="compare the versions"):
            await shell.do(lambda client: client.me())
        await shell.close()
