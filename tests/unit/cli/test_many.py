"""`kill` and `rm` of many allocations: the selection, the question, and the result for each."""

import asyncio
import io
from collections.abc import Sequence

import pytest

from slipway.cli import main, selection
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser

IMAGE = ("--image", "python:3.11")


async def launched(cli_user: CliUser, name: str, *options: str) -> None:
    """Launch an allocation that waits."""
    done = await cli_user.run("run", "--detach", *IMAGE, "--name", name, *options, "--", "true")
    assert done.code == 0, done.err


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """The answers that the user types; standard input is a terminal while there are any."""
    typed: list[str] = []

    class Typing(io.StringIO):
        """Standard input of a terminal."""

        def isatty(self) -> bool:
            return bool(typed)

        def readline(self, size: int = -1, /) -> str:
            return typed.pop(0) + "\n"

    monkeypatch.setattr(selection.sys, "stdin", Typing())
    return typed


async def stopped(world: ApiWorld) -> list[str]:
    """The names of the allocations whose stop was requested."""
    return sorted([name for name in await world.names() if (await world.stored(name)).spec.desired == "Stopped"])


async def left(world: ApiWorld) -> list[str]:
    """The names of the allocations that are not being deleted; there is no watcher here to finish deletes."""
    return sorted([name for name in await world.names() if not (await world.stored(name)).metadata.deletion_timestamp])


@pytest.mark.parametrize("option", ["--workspace", "--queue", "--job", "--kind", "--phase", "--owner"])
async def test_a_filter_beside_an_id_is_refused(world: ApiWorld, cli_user: CliUser, option: str) -> None:
    """A filter beside an id is refused, because it would have no effect: the named allocation would be ended in any
    workspace."""
    id_ = (await world.launch(name="prep"))["id"]
    refused = await cli_user.run("kill", id_, option, "other")
    assert (refused.code, f"{option}: has no effect together with IDs" in refused.err) == (main.USAGE, True)
    assert (await world.get(f"/allocations/{id_}")).json()["desired"] != "Stopped"


async def test_kill_chooses_by_labels(world: ApiWorld, cli_user: CliUser, answered: list[str]) -> None:
    """`kill` selects by labels: the question counts the allocations by state, and only a yes kills those that match."""
    for name in ("a", "b"):
        await launched(cli_user, name, "--label", "sweep=lr")
    await launched(cli_user, "other")
    await world.run("a")
    answered.append("n")
    refused = await cli_user.run("kill", "-l", "sweep=lr")
    assert (refused.code, refused.out) == (main.OK, "")
    assert "kill 2 allocations of user " in refused.err
    assert "(1 Pending, 1 Running)?" in refused.err or "(1 Running, 1 Pending)?" in refused.err
    assert "nothing was changed" in refused.err
    assert await stopped(world) == []
    answered.append("y")
    done = await cli_user.run("kill", "-l", "sweep=lr")
    assert (done.code, done.out.count("is being ended")) == (main.OK, 2)
    assert await stopped(world) == ["a", "b"]


async def test_without_a_terminal_nothing_is_killed_unasked(
    world: ApiWorld, cli_user: CliUser, answered: list[str]
) -> None:
    """Without a terminal nothing is killed without `--yes`; the error counts what would be killed."""
    await launched(cli_user, "a")
    refused = await cli_user.run("kill", "--all")
    assert refused.code == main.USAGE
    assert "kill 1 allocation of user" in refused.err
    assert "add --yes" in refused.err
    assert await stopped(world) == []
    assert (await cli_user.run("kill", "--all", "--yes")).code == main.OK
    assert await stopped(world) == ["a"]


async def test_all_selects_only_the_users_own_allocations(world: ApiWorld, cli_user: CliUser) -> None:
    """`--all` selects the caller's own allocations; those of another user must be named."""
    await launched(cli_user, "mine")
    await launched(cli_user, "hers", "--user", "eve")
    await cli_user.run("kill", "--all", "-y")
    assert await stopped(world) == ["mine"]
    await cli_user.run("kill", "--all", "-y", "--owner", "*")
    assert await stopped(world) == ["hers", "mine"]


async def test_a_kind_stops_only_its_own(world: ApiWorld, cli_user: CliUser) -> None:
    """A verb of one kind stops only that kind: `slipway notebook stop --all` ends no run."""
    await launched(cli_user, "train")
    await cli_user.run("notebook", "start", "--detach", "--name", "nb")
    assert (await cli_user.run("notebook", "stop", "--all", "--yes")).code == main.OK
    assert await stopped(world) == ["nb"]


async def test_nothing_to_kill_is_said(cli_user: CliUser) -> None:
    """A kill that selects nothing says so, without an error or a question."""
    done = await cli_user.run("kill", "--all")
    assert done.code == main.OK
    assert "to kill" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kill",), "give at least one ID, or select with -l LABELS or --all"),
        (("kill", "a", "--all"), "not both"),
        (("kill", "--queue", "q"), "--queue: add --all, or -l LABELS"),
        (("rm",), "give at least one ID"),
    ],
)
async def test_an_unknown_choice_is_refused(cli_user: CliUser, words: tuple[str, ...], said: str) -> None:
    """An invalid selection is refused: filters alone select nothing by accident, and names and filters cannot be
    combined."""
    done = await cli_user.run(*words)
    assert done.code == main.USAGE
    assert said in done.err


async def test_rm_deletes_what_has_ended(world: ApiWorld, cli_user: CliUser) -> None:
    """`rm` deletes ended allocations; running ones stay, and the message names the command that ends them."""
    await launched(cli_user, "ended")
    await launched(cli_user, "waits")
    await world.step("ended", Event.TERMINATED, result=Result.SUCCEEDED)
    done = await cli_user.run("rm", "ended", "waits")
    assert done.code == main.FAILED
    assert "is being removed" in done.out
    assert "is Pending: not removed. End it with `slipway kill waits-" in done.err
    assert await left(world) == ["waits"]


async def test_rm_with_force_ends_first(world: ApiWorld, cli_user: CliUser) -> None:
    """`rm -f` ends running allocations first."""
    await launched(cli_user, "waits")
    done = await cli_user.run("rm", "-f", "waits")
    assert (done.code, "it is ended first" in done.out) == (main.OK, True)
    assert await left(world) == []


async def test_rm_all_chooses_what_has_ended(world: ApiWorld, cli_user: CliUser) -> None:
    """`rm --all` selects ended allocations; running ones are neither counted nor changed."""
    for name in ("one", "two", "waits"):
        await launched(cli_user, name)
    for name in ("one", "two"):
        await world.step(name, Event.TERMINATED, result=Result.FAILED)
    done = await cli_user.run("rm", "--all", "-y")
    assert (done.code, done.out.count("is being removed")) == (main.OK, 2)
    assert "to remove" in (await cli_user.run("rm", "--all")).err
    assert await left(world) == ["waits"]


async def test_many_are_removed_in_one_request(world: ApiWorld, cli_user: CliUser) -> None:
    """Many allocations are removed in one request; a phase filters them."""
    for number in range(23):
        await launched(cli_user, f"r{number}")
        await world.step(f"r{number}", Event.TERMINATED, result=Result.SUCCEEDED)
    await launched(cli_user, "waits")
    none = await cli_user.run("rm", "--all", "-y", "--phase", "Running")
    assert (none.code, none.out) == (main.OK, "")
    done = await cli_user.run("rm", "--all", "-y", "--curl")
    assert (done.code, done.out) == (main.OK, "23 allocations are being removed\n")
    assert done.err.count("/allocations/batch") == 1
    assert "DELETE" not in done.err
    assert await left(world) == ["waits"]


async def test_what_was_removed_meanwhile_is_no_failure_of_a_choice(
    world: ApiWorld, cli_user: CliUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocation that is deleted while the question waits for its answer is no failure: the rest is removed, and the
    command succeeds."""
    for name in ("one", "two"):
        await launched(cli_user, name)
        await world.step(name, Event.TERMINATED, result=Result.SUCCEEDED)
    loop = asyncio.get_running_loop()

    async def vanish() -> None:
        await world.kube.patch(ALLOCATIONS, "one", {"metadata": {"finalizers": None}}, namespace="default")
        await world.kube.delete(ALLOCATIONS, "one", namespace="default")

    class Typing(io.StringIO):
        """A user who answers after the allocation is gone."""

        def isatty(self) -> bool:
            return True

        def readline(self, size: int = -1, /) -> str:
            asyncio.run_coroutine_threadsafe(vanish(), loop).result(30)
            return "y\n"

    monkeypatch.setattr(selection.sys, "stdin", Typing())
    done = await cli_user.run("rm", "--all")
    assert (done.code, done.out.count("is being removed"), "failed" in done.err) == (main.OK, 1, False), done
    assert await world.names() == ["two"]


async def test_rm_ends_with_the_code_of_its_failures(world: ApiWorld, cli_user: CliUser) -> None:
    """`rm` exits with 3 when all failures are "not found", like `kill`; with 1 when they differ."""
    await launched(cli_user, "ended")
    await launched(cli_user, "waits")
    await world.step("ended", Event.TERMINATED, result=Result.SUCCEEDED)
    done = await cli_user.run("rm", "ended", "nothing")
    assert (done.code, done.out.count("is being removed")) == (main.NOT_FOUND, 1)
    assert "nothing: there is no allocation 'nothing'" in done.err
    both = await cli_user.run("rm", "waits", "nothing")
    assert (both.code, "2 of 2 failed" in both.err) == (main.FAILED, True)


async def test_a_misspelled_id_is_answered_with_the_one_that_was_meant(world: ApiWorld, cli_user: CliUser) -> None:
    """For a misspelled id the error suggests the closest name or id among the newest allocations, or none when none is
    close."""
    await launched(cli_user, "train-resnet")
    for words in (("logs", "train-resnte"), ("kill", "train-resnte"), ("describe", "train-resnte")):
        done = await cli_user.run(*words)
        assert (done.code, "did you mean train-resnet?" in done.err) == (main.NOT_FOUND, True), words
    assert "did you mean" not in (await cli_user.run("logs", "quite-another")).err
    many = await cli_user.run("kill", "quite-another", "train-resnte")
    assert many.err.splitlines() == [
        "quite-another: there is no allocation 'quite-another'; `slipway ps` lists what there is",
        "train-resnte: there is no allocation 'train-resnte'; `slipway ps` lists what there is; did you mean "
        "train-resnet?",
        "2 of 2 failed",
    ]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("ps", "-o", "jsno"), "did you mean json?"),
        (("notebook", "strat"), "did you mean start?"),
        (("job", "updte", "x"), "did you mean update?"),
        (("events", "x", "-o", "tabel"), "did you mean table?"),
    ],
)
async def test_a_misspelled_choice_is_answered_with_the_one_that_was_meant(
    cli_user: CliUser, words: tuple[str, ...], meant: str
) -> None:
    """For misspelled values of options and arguments of verbs the error suggests the closest one, as for verbs and
    options."""
    done = await cli_user.run(*words)
    assert (done.code, meant in done.err) == (main.USAGE, True), done.err


async def test_many_are_killed_in_one_request(world: ApiWorld, cli_user: CliUser) -> None:
    """Many allocations are killed with two calls, the list and the batch, not one for each; a phase filters them."""
    for number in range(25):
        await world.launch(name=f"r{number}", headers={"X-Slipway-User": "ada"})
    await world.run("r0")
    one = await cli_user.run("kill", "--all", "-y", "--phase", "Running", "--user", "ada")
    assert (one.code, await stopped(world)) == (main.OK, ["r0"])
    done = await cli_user.run("kill", "--all", "-y", "--user", "ada", "--curl")
    assert (done.code, done.out) == (main.OK, "25 allocations are being ended\n")
    assert done.err.count("/allocations?") == 1
    assert done.err.count("/allocations/batch") == 1
    assert "/kill" not in done.err
    assert len(await stopped(world)) == 25


async def test_failures_are_told_one_by_one(world: ApiWorld, cli_user: CliUser) -> None:
    """Failures are listed one by one, each with its reason; the exit code is that of their class."""
    await launched(cli_user, "a")
    await launched(cli_user, "ended")
    await world.step("ended", Event.TERMINATED, result=Result.SUCCEEDED)
    done = await cli_user.run("hold", "a", "ended")
    assert (done.code, done.out.count(" is held")) == (main.FAILED, 1)
    assert "has ended; there is nothing to hold" in done.err
    assert "1 of 2 failed" in done.err
    missing = await cli_user.run("kill", "a", "nothing")
    assert (missing.code, "there is no allocation 'nothing'" in missing.err) == (main.NOT_FOUND, True)
    assert await stopped(world) == ["a"]
    again = await cli_user.run("kill", "a", "ended")
    assert (again.code, "had ended: Succeeded" in again.out) == (main.OK, True)


async def test_hold_resume_and_priority_choose_too(world: ApiWorld, cli_user: CliUser) -> None:
    """`hold`, `resume` and `priority` select with the options of `kill`; `resume` selects held allocations."""
    for name in ("a", "b"):
        await launched(cli_user, name, "--label", "sweep=lr")
    await launched(cli_user, "other")
    assert (await cli_user.run("hold", "-l", "sweep=lr", "-y")).code == main.OK
    assert [(await world.stored(name)).spec.hold for name in ("a", "b", "other")] == [True, True, False]
    resumed = await cli_user.run("resume", "--all", "-y")
    assert (resumed.code, resumed.out.count("may start")) == (main.OK, 2)
    done = await cli_user.run("priority", "-l", "sweep=lr", "-y", "77")
    assert (done.code, done.out.count("has priority 77")) == (main.OK, 2)
    assert [(await world.stored(name)).spec.priority for name in ("a", "b")] == [77, 77]
    named = await cli_user.run("priority", "a", "other", "5")
    assert (named.code, (await world.stored("other")).spec.priority) == (main.OK, 5)
    refused = await cli_user.run("priority", "a", "high")
    assert (refused.code, "the last word is the new priority" in refused.err) == (main.USAGE, True)


async def test_many_moves_keep_their_order(world: ApiWorld, cli_user: CliUser) -> None:
    """Many moved allocations keep the order of the arguments, ahead of another one or behind it."""
    for name in ("x", "a", "b", "y"):
        await launched(cli_user, name)
    for words, order in (
        (("b", "a", "y", "--ahead-of", "x"), ["b", "a", "y", "x"]),
        (("x", "b", "--behind", "y"), ["a", "y", "x", "b"]),
    ):
        done = await cli_user.run("move", *words)
        assert (done.code, done.out.count(" is now ")) == (main.OK, len(words) - 2), done.err
        shown = (await cli_user.run("queue", "show")).out.splitlines()[1:]
        assert [line.split()[1].rpartition("-")[0] for line in shown] == order
