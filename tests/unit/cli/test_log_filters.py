"""`slipway logs`: several ranks, patterns, order, and events of Kubernetes marked as such."""

from slipway.api.settings import Settings
from slipway.cli import main
from slipway.cli.verbs.streams import PAGE_LINES
from slipway.model.ids import AllocationId
from slipway.streams.logpacks import LogLine
from tests.support.api_world import ApiWorld, api_world
from tests.support.cli import CliUser
from tests.support.http_stub import serve_app
from tests.support.logs import a_pack, store_lines


async def fill(world: ApiWorld) -> str:
    """Store lines of three ranks and an event; return the allocation's id."""
    id_ = (await world.launch(name="gang", ranks=[{"count": 3}]))["id"]
    said = [("event", 0, "Pulling image a"), *(("stdout", rank, f"epoch {rank}") for rank in range(3))]
    lines = [
        LogLine(attempt=1, rank=rank, stream=stream, time=f"2026-01-02T03:04:0{second}Z", text=text)
        for second, (stream, rank, text) in enumerate(said)
    ]
    await store_lines(world.streams, id_, lines)
    return str(id_)


async def test_lines_are_chosen(world: ApiWorld, cli_user: CliUser) -> None:
    """Lines are selected by rank, source and pattern, and shown newest first on request."""
    id_ = await fill(world)
    for words, expected in (
        ((), "[0] -- Pulling image a|[0] epoch 0|[1] epoch 1|[2] epoch 2"),
        (("--stream", "stdout"), "[0] epoch 0|[1] epoch 1|[2] epoch 2"),
        (("--stream", "event"), "[0] -- Pulling image a"),
        (("--rank", "1"), "epoch 1"),
        (("--rank", "0,2", "--stream", "stdout"), "[0] epoch 0|[2] epoch 2"),
        (("--regex", "epoch [12]$"), "[1] epoch 1|[2] epoch 2"),
        (("-r", "--tail", "2"), "[2] epoch 2|[1] epoch 1"),
        (("--head", "2"), "[0] -- Pulling image a|[0] epoch 0"),
    ):
        ran = await cli_user.run("logs", id_, *words)
        assert (ran.code, ran.out.rstrip("\n").replace("\n", "|")) == (main.OK, expected), words


async def test_all_lines_newest_first(world: ApiWorld, cli_user: CliUser) -> None:
    """`-r` prints a log of several pages to its first line, in the reverse order of the file."""
    id_ = (await world.launch(name="long"))["id"]
    count = PAGE_LINES + 2
    for start in range(0, count, 5000):
        pack = [
            LogLine(attempt=1, rank=0, stream="stdout", time="2026-01-02T03:04:05Z", text=f"step {step}")
            for step in range(start, min(start + 5000, count))
        ]
        await store_lines(world.streams, id_, pack)
    ran = await cli_user.run("logs", id_, "-r")
    assert ran.out.splitlines() == [f"step {step}" for step in reversed(range(count))]


async def test_what_is_wrong_with_a_filter_is_said(world: ApiWorld, cli_user: CliUser) -> None:
    """A bad filter is refused with the option and the reason."""
    id_ = await fill(world)
    for words, said in (
        (("--regex", "(a"), "missing )"),
        (("--rank", "x"), "such as 3, 0,2 or 4-7"),
        (("--regex", "a", "--search", "b"), "--search and --regex: leave one of them out"),
        (("-f", "--reverse"), "leave out --reverse and --head"),
    ):
        ran = await cli_user.run("logs", id_, *words)
        assert (ran.code, said in ran.err) == (main.USAGE, True), ran.err


async def test_where_lines_are_missing_the_logs_of_the_cluster_are_named() -> None:
    """When lines are missing, the cluster's own logs are named beside the log, which is unchanged; when the log is
    whole, they are not named. `describe` always names them."""
    async with (
        api_world(Settings(logs_url_template="https://logs.example/{id}")) as world,
        serve_app(world.app, before_stop=world.stop.set) as url,
    ):
        cli_user, id_ = CliUser(url), AllocationId((await world.launch(name="gang"))["id"])
        line = LogLine(attempt=1, rank=0, time="2026-01-02T03:04:05Z", text="one")
        await store_lines(world.streams, id_, [line])
        assert "logs.example" not in (await cli_user.run("logs", id_)).err
        [answer] = await world.streams.logs.append([a_pack(id_, [line], after=1, first=9)])
        assert answer.is_appended
        ran = await cli_user.run("logs", id_)
        assert f"the cluster stores logs of its own: https://logs.example/{id_}" in ran.err
        assert "logs.example" not in ran.out
        assert f"https://logs.example/{id_}" in (await cli_user.run("describe", id_)).out
