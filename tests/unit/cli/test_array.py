"""`run --array`: one launch for each index, in one job."""

import json
import shlex
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import pytest

from slipway.cli import main
from slipway.cli.http import Api, ApiResponse
from slipway.cli.replicas import Array, array_of, written
from slipway.cli.verbs import run
from slipway.errors import InvalidError
from slipway.kube.resources import ALLOCATIONS, JOBS
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser

RUN = ("run", "--image", "python:3.11", "--name", "sweep")


@pytest.mark.parametrize(
    ("text", "indexes", "at_once"),
    [
        ("0-3", (0, 1, 2, 3), 0),
        ("7", (7,), 0),
        ("9,1,3-4,3", (1, 3, 4, 9), 0),
        ("0-20:5", (0, 5, 10, 15, 20), 0),
        ("0-3%2", (0, 1, 2, 3), 2),
        ("0-999", tuple(range(1000)), 0),
    ],
)
def test_indexes_are_written_as_in_other_tools(text: str, indexes: tuple[int, ...], at_once: int) -> None:
    """Indexes are ranges, lists, steps and a number of parallel launches; each index is launched once, in order. The
    printed form can be parsed again."""
    assert array_of(text) == Array(indexes, at_once)
    assert array_of(written(indexes)).indexes == indexes


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "0-4:0", "0-3%", "0-3%0", "0-3%x", "0-1000", "1,,2", "٣"])
def test_other_texts_are_refused(text: str) -> None:
    """Other texts are refused with the option's name."""
    with pytest.raises(InvalidError, match="--array: "):
        array_of(text)


async def test_each_index_is_a_launch_of_the_job(world: ApiWorld, cli_user: CliUser) -> None:
    """Each index is a launch of the job, with its index and the number of launches in the environment, beside the
    launch's own variables."""
    done = await cli_user.run(*RUN, "--array", "1,3", "--env", "LR=0.1", "--", "true")
    assert done.code == main.OK, done.err
    assert [line.rpartition("-")[0] for line in done.out.splitlines()] == ["sweep-1", "sweep-3"]
    for index in ("1", "3"):
        spec = (await world.stored(f"sweep-{index}")).spec
        assert spec.env == {"LR": "0.1", "ARRAY_INDEX": index, "ARRAY_COUNT": "2"}
        assert spec.job == "sweep"
    assert (await world.kube.get(JOBS, "sweep", namespace="default")).spec.max_slots is None
    assert "slipway job show sweep" in done.err


async def test_so_many_at_a_time_is_a_bound_of_gpus(world: ApiWorld, cli_user: CliUser) -> None:
    """A number of parallel launches becomes a limit of the job: that number times the GPUs of all ranks of one
    launch."""
    done = await cli_user.run(*RUN, "--array", "0-4%2", "--gpus", "3", "--ranks", "4", "--", "true")
    assert done.code == main.OK, done.err
    assert (await world.kube.get(JOBS, "sweep", namespace="default")).spec.max_slots == 24


async def test_an_array_joins_a_job_that_is_there(world: ApiWorld, cli_user: CliUser) -> None:
    """An array joins an existing job and creates none; the limit stays the job's."""
    assert (await cli_user.run("job", "create", "mine", "--max-slots", "4")).code == main.OK
    assert (await cli_user.run(*RUN, "--array", "0-1", "--job", "mine", "--", "true")).code == main.OK
    assert [(await world.stored(f"sweep-{index}")).spec.job for index in range(2)] == ["mine", "mine"]
    (job,) = (await world.kube.list(JOBS)).items
    assert (job.metadata.name, job.spec.max_slots) == ("mine", 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--array", "0-4%2"), "%2 limits the launches by their GPUs; add --gpus, or leave %2 out"),
        (("--array", "0-4%2", "--gpus", "1", "--job", "mine"), "job mine limits how many run"),
        (("--array", "0-4", "--wait"), "--array: cannot be combined with --follow, --wait"),
        (("--array", "0-4", "--follow"), "--array: cannot be combined with --follow, --wait"),
        (("--array", "0-4", "--dry-run"), "--array: cannot be combined with --follow, --wait, --dry-run"),
    ],
)
async def test_what_an_array_cannot_have_is_refused(
    world: ApiWorld, cli_user: CliUser, options: tuple[str, ...], words: str
) -> None:
    """An option that an array cannot have is refused before anything is created."""
    refused = await cli_user.run(*RUN, *options, "--", "true")
    assert (refused.code, words in refused.err) == (main.USAGE, True), refused.err
    assert await world.names() == []
    assert (await world.kube.list(JOBS)).items == []


async def test_a_job_that_is_there_is_joined_by_its_option(world: ApiWorld, cli_user: CliUser) -> None:
    """An existing job is joined by `--job`; an array that would create it again is refused before anything is
    launched."""
    assert (await cli_user.run("job", "create", "sweep")).code == main.OK
    refused = await cli_user.run(*RUN, "--array", "0-1", "--", "true")
    assert refused.code == main.FAILED
    assert "add --job sweep to launch into it" in refused.err
    assert await world.names() == []
    assert (await cli_user.run(*RUN, "--array", "0-1", "--job", "sweep", "--", "true")).code == main.OK
    assert sorted(await world.names()) == ["sweep-0", "sweep-1"]


def printed_command(err: str) -> list[str]:
    """The words after `slipway` of the command that launches the rest."""
    return next(shlex.split(line)[1:] for line in err.splitlines() if line.startswith("  slipway run"))


async def test_a_refusal_says_what_is_launched_and_how_to_launch_the_rest(world: ApiWorld, cli_user: CliUser) -> None:
    """When the name of one launch already exists, the message lists the launched indexes, and the printed command
    launches the rest with the same values."""
    taken = await world.launch(name="sweep-2")
    stopped = await cli_user.run(*RUN, "--array", "0-4", "--env", "LR=0.1", "--", "sh", "-c", "echo $ARRAY_INDEX")
    assert stopped.code == main.FAILED
    assert "the name sweep-2 is taken" in stopped.err
    assert "4 of 5 are launched: 0-1,3-4. Left: 2." in stopped.err
    await world.kube.delete(ALLOCATIONS, "sweep-2", namespace="default")
    await world.kube.patch(ALLOCATIONS, "sweep-2", {"metadata": {"finalizers": None}}, namespace="default")
    rest = await cli_user.run(*printed_command(stopped.err))
    assert rest.code == main.OK, rest.err
    stored = await world.stored("sweep-2")
    assert stored.metadata.uid not in taken["id"]
    assert stored.spec.env == {"LR": "0.1", "ARRAY_INDEX": "2", "ARRAY_COUNT": "5"}
    assert stored.spec.template["spec"]["containers"][0]["command"] == ["sh", "-c", "echo $ARRAY_INDEX"]
    assert stored.spec.job == "sweep"


class InterruptedLaunches:
    """The launch requests, one of which is interrupted: before the server receives it, or after the server has
    answered."""

    def __init__(self, call: Callable[..., ApiResponse], *, at: int, is_answered: bool) -> None:
        self._call = call
        self._at = at
        self._is_answered = is_answered
        self.sizes: list[int] = []

    def __call__(self, api: Api, method: str, path: str, **how: Any) -> ApiResponse:
        if path != "/allocations/launches":
            return self._call(api, method, path, **how)
        self.sizes.append(len(how["body"]["each"]))
        if len(self.sizes) != self._at:
            return self._call(api, method, path, **how)
        if self._is_answered:
            self._call(api, method, path, **how)
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_answered", [False, True])
async def test_ctrl_c_between_two_requests_loses_no_index(
    world: ApiWorld, cli_user: CliUser, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """After Ctrl-C between two requests the message lists the launched and the remaining indexes. The printed command
    launches each of the rest once, also those that the server launched without an answer to the command."""
    monkeypatch.setattr(run, "REQUEST_MAX", 3)
    cut = InterruptedLaunches(Api.call, at=2, is_answered=is_answered)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Api, "call", partialmethod(cut))
        stopped = await cli_user.run(*RUN, "--array", "0-7", "--", "true")
    assert stopped.code == main.DETACHED
    assert cut.sizes == [3, 3]
    assert "3 of 8 are launched: 0-2. Left: 3-7." in stopped.err
    before = {name: (await world.stored(name)).metadata.uid for name in await world.names()}
    assert len(before) == (6 if is_answered else 3)
    rest = await cli_user.run(*printed_command(stopped.err))
    assert rest.code == main.OK, rest.err
    after = {name: (await world.stored(name)).metadata.uid for name in await world.names()}
    assert sorted(after) == [f"sweep-{index}" for index in range(8)]
    assert before.items() <= after.items()
    assert len(rest.out.splitlines()) == 5


async def test_secret_values_are_on_no_screen(
    world: ApiWorld, cli_user: CliUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of secrets are never printed, neither in requests shown as curl nor in the command that launches the
    rest."""
    monkeypatch.setenv("HF_TOKEN", "hush-hush")
    await world.launch(name="sweep-1")
    done = await cli_user.run(*RUN, "--curl", "--secret", "HF_TOKEN", "--array", "0-1", "--", "true")
    assert "hush" not in done.out + done.err
    assert '"HF_TOKEN": "\'"$HF_TOKEN"\'"' in done.err
    assert (await world.stored("sweep-0")).spec.secret_variables == ["HF_TOKEN"]


async def test_what_the_server_did_not_reach_is_sent_again(
    world: ApiWorld, cli_user: CliUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches that the server did not reach are sent again while each request launches more; otherwise the command
    exits with 124 and lists the rest."""
    call = Api.call

    def slow(api: Api, method: str, path: str, **how: Any) -> ApiResponse:
        """A server that launches one of each request, until the third launch."""
        if path != "/allocations/launches":
            return call(api, method, path, **how)
        each = how["body"]["each"]
        reached = each[: 0 if each[0]["name"] == "sweep-3" else 1]
        items: list[Any] = [{"name": item["name"], "outcome": "notReached"} for item in each[len(reached) :]]
        if reached:
            how["body"] = {**how["body"], "each": reached}
            items = [*call(api, method, path, **how).json()["items"], *items]
        return ApiResponse(200, json.dumps({"items": items}).encode(), {})

    monkeypatch.setattr(Api, "call", slow)
    done = await cli_user.run(*RUN, "--array", "0-4", "--", "true")
    assert done.code == main.TIMED_OUT
    assert "3 of 5 are launched: 0-2. Left: 3-4." in done.err
    assert len(await world.names()) == 3
