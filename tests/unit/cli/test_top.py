"""`slipway top`: what the page shows and leaves out, and the state of the terminal afterwards."""

import asyncio
import signal
from datetime import UTC, datetime
from typing import Any

import pytest

from slipway.cli import main, overview
from slipway.cli.overview import ClusterOverview
from slipway.cli.table import width_of
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser
from tests.support.http_stub import serve_app
from tests.support.ports import free_port
from tests.support.pty_command import on_a_terminal

Json = dict[str, Any]
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LEFT = "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""The sequences that restore the terminal."""


def a_node(name: str, *, used: int = 0, ready: bool = True, ranks: tuple[tuple[str, int], ...] = ()) -> Json:
    held = [{"id": id_, "rank": 0, "gpus": gpus} for id_, gpus in ranks]
    node = {"name": name, "ready": ready, "scheduling": "enabled", "gpus": 8, "gpusUsed": used, "ranks": held}
    return node | {"used": {"cpu": "500m"}, "allocatable": {"cpu": "128"}}


def a_queue(name: str, *, pending: int = 0, used: int = 0, owned: str = "") -> Json:
    spec = {"nominal": {"nvidia.com/gpu": owned}} if owned else {}
    return {"name": name, "pool": "default", "pending": pending, "live": 2, "slotsInUse": used, "spec": spec}


def a_work(id_: str, *, user: str = "ada") -> Json:
    ranks = [{"count": 2, "resources": {"requests": {"nvidia.com/gpu": "4"}}}]
    view = {"id": id_, "user": user, "phase": "Running", "createdAt": "2026-01-02T03:01:05Z", "spec": {"ranks": ranks}}
    return view | {"status": {"nodes": "node-1", "ranks": [{"phase": "Running"}, {"phase": "Running"}]}}


def a_look(
    *, nodes: int = 2, queues: int = 1, work: int = 2, user: str = "ada", has_more: bool = False
) -> ClusterOverview:
    return ClusterOverview(
        [a_node(f"node-{at:03}", used=at % 9, ranks=(("run-a", 4), ("nb", 0), ("run-b", 2))) for at in range(nodes)],
        [a_queue(f"q{at:03}", pending=at) for at in range(queues)],
        [a_work(f"work-{at:03}") for at in range(work)],
        user,
        has_more,
    )


def test_the_page_shows_nodes_queues_and_ones_work() -> None:
    """The page shows used and existing GPUs, what runs on a node with its GPUs, the use and quota of a queue, and the
    state of the caller's allocations."""
    look = ClusterOverview(
        [a_node("n1", used=6, ranks=(("run-b", 2), ("run-a", 1), ("run-a", 3), ("nb", 0)))],
        [a_queue("research", pending=3, used=6, owned="8")],
        [a_work("run-a")],
        "ada",
    )
    assert [" ".join(line.split()) for line in overview.page(look, MOMENT)] == [
        "6 of 8 GPUs used, 1 node, 2 running, 3 waiting",
        "",
        "NODE STATE GPUS CPU RANKS WORK (GPUS)",
        "n1 Ready 6/8 500m/128 4 run-a (4) run-b (2) nb",
        "",
        "QUEUE GPUS USED GPUS OWNED RUNNING WAITING POOL",
        "research 6 8 2 3 default",
        "",
        "WORK OF ada STATE RANKS GPUS AGE NOTE",
        "run-a Running 2/2 8 3m node-1",
    ]


def test_an_empty_cluster_has_a_page() -> None:
    """On an empty cluster each table of the page says that it is empty."""
    lines = overview.page(ClusterOverview([], [], [], "ada"), MOMENT, width=80, height=24)
    assert [line for line in lines if line and line.islower()] == [
        "there are no nodes",
        "there are no queues",
        "nothing runs or waits",
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 14), (80, 50), (200, 60)])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (300, 3, 2), (2, 100, 2), (2, 1, 400), (300, 100, 400), (300, 0, 0)])
def test_the_page_fits_the_terminal(width: int, height: int, sizes: tuple[int, int, int]) -> None:
    """The page fits the terminal, however many rows exist; rows that are left out are counted, and none is left out
    while there is room."""
    nodes, queues, work = sizes
    lines = overview.page(a_look(nodes=nodes, queues=queues, work=work), MOMENT, width=width, height=height)
    assert len(lines) <= height
    assert max(map(width_of, lines)) <= width
    for name, count in (("node-", nodes), ("q", queues), ("work-", work)):
        shown = sum(line.startswith(name) for line in lines)
        assert shown == count or len(lines) == height
        assert shown == count or any(line.startswith(f"… {count - shown} more") for line in lines), lines
    if sum(sizes) + 7 <= height:
        assert not any(line.startswith("…") for line in lines)


def test_long_names_leave_room_for_the_rest() -> None:
    """At 80 columns the state and the numbers are shown, however long the names are."""
    look = ClusterOverview([a_node("n" * 60, used=8)], [a_queue("q" * 60)], [a_work("w" * 49)], "u" * 60)
    lines = overview.page(look, MOMENT, width=80, height=24)
    assert max(map(width_of, lines)) <= 80
    assert [word in "\n".join(lines) for word in ("Ready", "8/8", "2/2", "Running")] == [True] * 4


def test_what_is_shown_first() -> None:
    """The page shows first the nodes that do not work, then the fullest; and the queues in which most waits."""
    nodes = [a_node("idle"), a_node("full", used=8), a_node("broken", ready=False)]
    queues = [a_queue("quiet"), a_queue("busy", used=5), a_queue("waiting", pending=2)]
    lines = overview.page(ClusterOverview(nodes, queues, [], "ada"), MOMENT)
    assert [line.split()[0] for line in (*lines[3:6], *lines[8:11])] == [
        *("broken", "full", "idle"),
        *("waiting", "busy", "quiet"),
    ]


async def test_in_a_pipe_it_is_printed_once(world: ApiWorld, cli_user: CliUser) -> None:
    """In a pipe the page is printed once, for the caller's allocations, another user's, or all."""
    await world.launch(name="mine", headers={"X-Slipway-User": "ada"})
    await world.launch(name="hers", headers={"X-Slipway-User": "eve"})
    mine = await cli_user.run("top", "--user", "ada")
    assert (mine.code, "mine-" in mine.out, "hers-" in mine.out) == (main.OK, True, False)
    assert mine.out.splitlines()[0].endswith("2 waiting")
    assert "hers-" in (await cli_user.run("top", "--once", "--owner", "eve")).out
    everybody = (await cli_user.run("top", "--owner", "*")).out
    assert ("mine-" in everybody, "hers-" in everybody) == (True, True)


async def test_a_server_that_is_not_there_is_an_error_in_a_pipe() -> None:
    """In a pipe a missing server is an error, as for every verb."""
    done = await CliUser("http://127.0.0.1:1").run("top")
    assert (done.code, "no Slipway answers" in done.err) == (main.FAILED, True)


@pytest.mark.parametrize(
    ("leave", "code"), [("q", main.OK), (signal.SIGINT, main.OK), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
async def test_the_terminal_is_left_as_it_was(world: ApiWorld, cli_user: CliUser, leave: str | int, code: int) -> None:
    """After a key, Ctrl-C or a signal the terminal is restored: the screen, the cursor and the echo of keys."""
    await world.launch(name="mine")
    with on_a_terminal("top", "--server", cli_user.url, "--owner", "*", rows=14) as command:
        await asyncio.to_thread(command.wait_for, "mine-")
        assert command.modes != command.modes_before
        if isinstance(leave, str):
            command.type(leave)
        else:
            command.process.send_signal(leave)
        assert await asyncio.to_thread(command.end) == code
        await asyncio.to_thread(command.wait_for, LEFT)
        assert command.written.endswith(LEFT)
        assert command.modes == command.modes_before


async def test_a_server_that_is_away_is_waited_for(world: ApiWorld) -> None:
    """A server that is away is waited for, before the first tables and after: the last ones stay, with their age."""
    await world.launch(name="first")
    port = free_port()
    with on_a_terminal("top", "--server", f"http://127.0.0.1:{port}", "--owner", "*", columns=120) as command:
        seen = await asyncio.to_thread(command.wait_for, "retrying: no Slipway answers")
        assert "GPUs" not in command.written
        async with serve_app(world.app, before_stop=world.stop.set, port=port):
            seen = await asyncio.to_thread(command.wait_for, "first-", after=seen)
        seen = await asyncio.to_thread(command.wait_for, "retrying; the tables are ", after=seen)
        await asyncio.to_thread(command.wait_for, "first-", after=seen)
        command.type("q")
        assert await asyncio.to_thread(command.end) == main.OK
