"""`slipway simulate --live`: a request to the API, and its answer as text."""

from pathlib import Path

from slipway.cli import main
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser, run_here


async def ask(cli_user: CliUser, *words: str) -> tuple[int, str, str]:
    return await cli_user.run("simulate", "--live", *words)


async def test_what_a_node_would_change(world: ApiWorld, cli_user: CliUser) -> None:
    """The result of an added node has one line for each difference and a sum, as text, as data, or as names only."""
    await world.launch(name="large", ranks=[{"resources": {"cpu": "64"}}])
    words = ("--add-nodes", "name=big,count=1,cpu=96,memory=256Gi,labels.rack=r1")
    code, out, err = await ask(cli_user, *words)
    assert code == main.OK, err
    assert out.splitlines()[1].split() == ["default/large", "waits", "(NoFit)", "starts", "now", "on", "big"]
    assert "1 differ, 0 stay the same, of pool default within 1d" in out or "within 24h" in out
    assert max(map(len, out.splitlines())) <= 80
    assert (await cli_user.run("simulate", "--live", *words, "-o", "json")).json["differences"][0]["after"][
        "start"
    ] == 0
    assert (await ask(cli_user, *words, "-q"))[1] == "default/large\n"


async def test_changes_of_allocations_and_a_file(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """Changes of allocations come from options and a file; the options are applied after the file."""
    for name, priority in (("first", 60), ("second", 40)):
        await world.launch(name=name, priority=priority, ranks=[{"count": 2, "resources": {"cpu": "8"}}])
    code, out, _ = await ask(cli_user, "--priority", "second=70")
    assert (code, "default/second  waits (NoFit)" in out) == (main.OK, True)
    file = tmp_path / "changes.yaml"
    file.write_text("allocations: [{allocation: first, hold: true}]\nuntil: 60\n")
    code, out, _ = await ask(cli_user, "-f", str(file), "--hold", "second")
    assert (code, "waits (Held)" in out, "within 1m" in out) == (main.OK, True, True)
    assert "0 differ" in (await ask(cli_user, "--until", "1h"))[1]


async def test_bad_questions_name_what_is_wrong(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """A bad question is refused by the command or by the API, with what is wrong."""
    for words, told in (
        (("--add-nodes", "cpu"), "name=value"),
        (("--add-nodes", "count=two"), "whole number"),
        (("--priority", "x"), "ID=value"),
        (("--until", "soon"), "--until"),
        (("--remove-node", "n9"), "removeNodes[0]"),
        (("--add-nodes", "cpus=1"), "addNodes[0].cpus"),
        (("-f", str(tmp_path / "none")), "cannot be read"),
    ):
        code, _, err = await ask(cli_user, *words)
        assert (code, told in err) == (main.USAGE, True), err
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("scenario: {nodes: []}\n")
    assert (await ask(cli_user, "-f", str(scenario)))[0] == main.USAGE


def test_a_file_still_needs_no_server(tmp_path: Path) -> None:
    """A simulation of a file needs no server: without `--live` the planner runs on this machine."""
    file = tmp_path / "s.yaml"
    file.write_text("nodes: [{name: n, cpu: 1}]\nallocations: [{name: a, ranks: [{cpu: 1}]}]\n")
    ran = run_here("simulate", str(file), "-o", "json")
    assert ran.json["allocations"]["a"]["phase"] == "Running"
