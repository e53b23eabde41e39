"""`slipway history`: ended allocations, and the placements at a past moment."""

import csv
import io
import re
from pathlib import Path

import pytest

from slipway.cli import main
from slipway.cli.verbs.history import moment_of
from slipway.cli.workload_trace import trace_text
from slipway.crd.transitions import record
from slipway.errors import InvalidError
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from slipway.model.times import format_time, parse_time
from slipway.runtime.clock import SystemClock
from slipway.scheduler.simulate.workload_trace import load
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser


@pytest.mark.parametrize(("option", "value"), [("--owner", "ann"), ("--since", "2h"), ("--limit", "5")])
async def test_an_option_that_a_moment_does_not_have(cli_user: CliUser, option: str, value: str) -> None:
    """`--at` shows the allocations of all users: an option that filters them is refused instead of ignored."""
    refused = await cli_user.run("history", "--at", "10m", option, value)
    assert (refused.code, f"{option}: has no effect with --at" in refused.err) == (main.USAGE, True)


async def test_what_has_ended_is_listed_newest_first(world: ApiWorld, cli_user: CliUser) -> None:
    """Ended allocations are listed newest first with their result; running ones are not listed; `-q` prints ids
    alone."""
    assert "no ended allocation is still stored" in (await cli_user.run("history")).err
    for number, name in enumerate(("first", "second")):
        await world.launch(name=name)
        now = world.clock.now() + number
        found = await world.stored(name)
        over = record(found, Event.TERMINATED, now=now, ended_at=format_time(now), result=Result.CANCELED)
        await world.kube.replace_status(ALLOCATIONS, over)
    await world.launch(name="lives")
    lines = (await cli_user.run("history")).out.splitlines()
    assert [line.split()[0].rsplit("-", 1)[0] for line in lines[1:]] == ["second", "first"]
    assert "Canceled" in lines[1]
    assert len((await cli_user.run("history", "-q")).out.split()) == 2
    assert len((await cli_user.run("history", "-q", "--limit", "1")).out.split()) == 1
    assert (await cli_user.run("history", "--since", "1s", "-q")).code == main.OK


async def test_placements_at_an_earlier_time_are_listed(world: ApiWorld, cli_user: CliUser) -> None:
    """The placements at a moment are shown with the moment, and with what the history cannot know."""
    launched = await world.launch()
    shown = await cli_user.run("history", "--at", "0s")
    assert launched["id"] in shown.out
    assert "1 Pending" in shown.err
    before = await cli_user.run("history", "--at", "2020-01-01T00:00:00Z")
    assert "no allocations" in before.err
    assert "note:" in before.err


async def test_what_has_run_is_a_trace_that_simulate_reads(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """The trace that `simulate` reads has each allocation that ran, with the requests of its ranks and its run time."""
    roles = [
        {"name": "leader", "count": 1, "resources": {"cpu": 2, "memory": "4Gi"}},
        {"name": "worker", "count": 2, "resources": {"cpu": 4, "memory": "8Gi", "nvidia.com/gpu": 4}},
    ]
    await world.launch(name="train", queue="vision", ranks=roles, maxRuntime="2h", priority=70)
    await world.launch(name="never")
    begin = world.clock.now()
    for name, ran_s in (("train", 90), ("never", 0)):
        started = format_time(begin) if ran_s else ""
        over = record(
            await world.stored(name),
            Event.TERMINATED,
            now=begin + ran_s,
            started_at=started,
            ended_at=format_time(begin + ran_s),
            result=Result.SUCCEEDED,
        )
        await world.kube.replace_status(ALLOCATIONS, over)
    trace, cluster = tmp_path / "work.csv", tmp_path / "cluster.yaml"
    ran = await cli_user.run("history", "--trace", str(trace))
    assert (ran.code, "2 allocations" in ran.err) == (main.OK, True), ran.err
    cluster.write_text("nodes: [{name: n, count: 2, cpu: 16, memory: 64Gi, gpus: 4}]\nqueues: [{name: vision}]\n")
    found = load(str(cluster), str(trace), str(tmp_path / "work.mapping.yaml"))
    [part] = found.scenario.allocations
    [rank] = part.ranks
    assert part.name.startswith("train")
    assert (part.queue, part.priority, part.duration, part.max_runtime) == ("vision", 70, 90, 7200)
    assert (rank.count, rank.cpu, rank.memory, rank.gpus) == (2, "5000m", 10 * 2**30, 4)
    assert len(found.warnings) == 1


async def test_a_trace_has_everything(cli_user: CliUser, tmp_path: Path) -> None:
    """A trace contains everything, so options of pages are refused with it; a file that cannot be written is an
    error."""
    trace = str(tmp_path / "work.csv")
    for words in (["--at", "1h"], ["--limit", "5"], ["-o", "json"], ["-q"]):
        ran = await cli_user.run("history", "--trace", trace, *words)
        assert (ran.code, "not together with --trace" in ran.err) == (main.USAGE, True)
    ran = await cli_user.run("history", "--trace", str(tmp_path / "no" / "work.csv"))
    assert (ran.code, "cannot be written" in ran.err) == (main.USAGE, True)


def test_times_and_how_long_ago() -> None:
    """Moments are times with a time zone, or ages; for other texts the error names the valid forms."""
    assert moment_of("2026-01-02T03:04:05Z", "--at") == "2026-01-02T03:04:05Z"
    clock = SystemClock()
    earliest, found = clock.now() - 7201, parse_time(moment_of("2h", "--at"))
    assert found is not None
    assert earliest <= found <= clock.now() - 7199
    for text, said in (
        ("yesterday", "--at: 'yesterday' is not a time; write 2026-01-02T03:04:05Z, or 2h for two hours ago"),
        ("2026-01-02T03:04:05", "--at: add the time zone: 2026-01-02T03:04:05Z is UTC"),
    ):
        with pytest.raises(InvalidError, match=re.escape(said)):
            moment_of(text, "--at")


@pytest.mark.parametrize(
    ("requests", "gpus", "milli"),
    [
        ({"nvidia.com/mig-1g.10gb": "2"}, "0", "286"),
        ({"nvidia.com/mig-7g.80gb": "1"}, "1", "0"),
        ({"slipway.dev/gpu-milli": "300"}, "0", "300"),
        ({"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "1"}, "3", "0"),
    ],
)
def test_parts_of_gpus_are_in_a_trace(requests: dict[str, str], gpus: str, milli: str) -> None:
    """A trace has MIG slices as parts of a GPU, rounded up; more than one GPU as whole GPUs."""
    ranks = [{"name": "main", "count": 2, "resources": {"limits": requests}}]
    [row] = csv.DictReader(io.StringIO(trace_text([{"id": "a", "spec": {"ranks": ranks}}])))
    assert (row["ranks"], row["gpus"], row["gpuMilli"]) == ("2", gpus, milli)
