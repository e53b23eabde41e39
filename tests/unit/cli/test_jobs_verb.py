"""`slipway job` and `slipway move`: groups of allocations and their order in the queue."""

from slipway.cli import main
from slipway.kube.resources import RESOURCE_POOLS
from slipway.model.lifecycle import Event
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser


async def test_a_job_is_created_used_and_removed(world: ApiWorld, cli_user: CliUser) -> None:
    """A job is created, launched into, shown, changed, killed and removed."""
    made = await cli_user.run("job", "create", "j", "--max-slots", "4", "--priority", "60")
    assert (made.code, "--job j" in made.out) == (main.OK, True)
    launched = await world.launch(job="j")
    (row,) = [line.split() for line in (await cli_user.run("job", "ls")).out.splitlines()[1:]]
    assert row == ["j", "default", "Queued", "1", "0", "1", "0", "0", "4", "60", "1"]
    shown = (await cli_user.run("job", "show", "j")).out
    assert launched["id"] in shown
    assert "0 in use of 4" in shown
    changed = await cli_user.run("job", "update", "j", "--max-slots", "none", "--weight", "2")
    assert "priority 60, weight 2, no limit of GPUs" in changed.out
    used = await cli_user.run("job", "rm", "j")
    assert (used.code, launched["id"] in used.err) == (main.FAILED, True)
    assert "1 being ended" in (await cli_user.run("job", "kill", "j")).out
    assert (await cli_user.run("job", "show", "j", "-q")).out.split() == [launched["id"]]
    await world.step(launched["name"], Event.TERMINATED)
    assert (await cli_user.run("job", "rm", "j")).out == "job j is removed\n"
    assert (await cli_user.run("job", "show", "j")).code == main.NOT_FOUND


async def test_a_batch_says_what_was_changed_and_what_was_not(cli_user: CliUser) -> None:
    """A batch reports what was changed and what was refused; the exit code is 1 when a change was refused, and the
    others are made."""
    await cli_user.run("job", "create", "a")
    done = await cli_user.run("job", "update-batch", "a.priority=70", "a.weight=3", "b.weight=2")
    assert done.code == main.FAILED
    assert "job a: changed" in done.out
    assert "job b: not changed: there is no job 'b'" in done.out
    assert (await cli_user.run("job", "show", "a", "-o", "json")).json["priority"] == 70
    assert (await cli_user.run("job", "update-batch", "a.max-slots=2")).code == main.OK


async def test_moves(world: ApiWorld, cli_user: CliUser) -> None:
    """`move` moves one allocation, or a job with all its allocations; the queue shows the result."""
    await cli_user.run("job", "create", "j")
    names = [(await world.launch(name=name))["id"] for name in ("a", "b")]
    mine = (await world.launch(name="mine", job="j"))["id"]
    order = [line.split()[1] for line in (await cli_user.run("queue", "show")).out.splitlines()[1:]]
    last, first = [each for each in order if each in names][::-1]
    assert "ahead of" in (await cli_user.run("move", last, "--ahead-of", first)).out
    assert "behind" in (await cli_user.run("job", "move", "j", "--behind", first)).out
    order = [line.split()[1] for line in (await cli_user.run("queue", "show")).out.splitlines()[1:]]
    assert order == [last, first, mine]


async def test_each_wrong_argument_has_its_own_message(cli_user: CliUser) -> None:
    """The error for each bad word says what to write instead."""
    for words, said in (
        (["job", "update", "j"], "give --priority, --weight, --max-slots or --queue"),
        (["job", "update", "j", "--weight", "heavy"], "--weight: 'heavy' is not a whole number"),
        (["job", "update-batch"], "write slipway job update-batch NAME.priority=70"),
        (["job", "update-batch", "j.size=3"], "j.size=3: write NAME.FIELD=VALUE"),
        (["job", "show"], "name one job: slipway job show NAME"),
        (["move", "a"], "write one of --ahead-of OTHER and --behind OTHER"),
        (["move", "a", "--ahead-of", "b", "--behind", "c"], "write one of --ahead-of OTHER and --behind OTHER"),
    ):
        ran = await cli_user.run(*words)
        assert (ran.code, said in ran.err) == (main.USAGE, True), (words, ran.err)
    none = await cli_user.run("job", "show", "none")
    assert (none.code, "`slipway job` lists them" in none.err) == (main.NOT_FOUND, True)


async def test_the_queue_in_figures_and_in_any_order(world: ApiWorld, cli_user: CliUser) -> None:
    """The queue shows how many allocations wait and run, and how long they took; `ps` sorts by its option."""
    for priority, name in ((10, "low"), (90, "high")):
        await world.launch(name=name, priority=priority)
    await world.run("low")
    lines = (await cli_user.run("queue", "stats")).out.splitlines()
    assert lines[1].split()[:5] == ["default", "default", "1", "0", "1"]
    assert lines[-1].split()[1:4] == ["default", "default", "1"]
    await world.kube.create(RESOURCE_POOLS, {"metadata": {"name": "other"}, "spec": {}})
    assert (await cli_user.run("queue", "stats", "other")).out.strip() == "nothing waits and nothing runs"
    shown = [each.rsplit("-", 1)[0] for each in (await cli_user.run("ps", "-q", "--sort=-priority")).out.split()]
    assert shown == ["high", "low"]
    assert (await cli_user.run("ps", "--sort", "colour")).code == main.USAGE
