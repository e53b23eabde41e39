"""`run --array`: one launch for each index, in one job."""

import pytest

from slipway.cli import main
from slipway.cli.array import Array, array_of, written
from slipway.errors import InvalidError
from slipway.kube.resources import JOBS
from tests.support.api_world import ApiWorld
from tests.support.cli import Desk

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
    """Ranges, lists, steps, and how many at a time; each index once, in order. What is printed can be read again."""
    assert array_of(text) == Array(indexes, at_once)
    assert array_of(written(indexes)).indexes == indexes


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "0-4:0", "0-3%", "0-3%0", "0-3%x", "0-1000", "1,,2", "٣"])
def test_other_texts_are_refused(text: str) -> None:
    """With the option's name."""
    with pytest.raises(InvalidError, match="--array: "):
        array_of(text)


async def test_each_index_is_a_launch_of_the_job(world: ApiWorld, desk: Desk) -> None:
    """With its index and the number of launches in the environment, beside what the launch sets itself."""
    done = await desk.run(*RUN, "--array", "1,3", "--env", "LR=0.1", "--", "true")
    assert done.code == main.OK, done.err
    assert [line.rpartition("-")[0] for line in done.out.splitlines()] == ["sweep-1", "sweep-3"]
    for index in ("1", "3"):
        spec = (await world.stored(f"sweep-{index}")).spec
        assert spec.env == {"LR": "0.1", "ARRAY_INDEX": index, "ARRAY_COUNT": "2"}
        assert spec.job == "sweep"
    assert (await world.kube.get(JOBS, "sweep", namespace="default")).spec.max_slots is None
    assert "slipway job show sweep" in done.err


async def test_so_many_at_a_time_is_a_bound_of_gpus(world: ApiWorld, desk: Desk) -> None:
    """The job holds so many times the GPUs of one launch, of all its ranks."""
    done = await desk.run(*RUN, "--array", "0-4%2", "--gpus", "3", "--ranks", "4", "--", "true")
    assert done.code == main.OK, done.err
    assert (await world.kube.get(JOBS, "sweep", namespace="default")).spec.max_slots == 24


async def test_an_array_joins_a_job_that_is_there(world: ApiWorld, desk: Desk) -> None:
    """None is made; how many run is the job's word."""
    assert (await desk.run("job", "create", "mine", "--max-slots", "4")).code == main.OK
    assert (await desk.run(*RUN, "--array", "0-1", "--job", "mine", "--", "true")).code == main.OK
    assert (await world.stored("sweep-1")).spec.job == "mine"
    assert len((await world.kube.list(JOBS)).items) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--array", "0-4%2"), "%2 counts by GPUs; add --gpus, or leave %2 out"),
        (("--array", "0-4%2", "--gpus", "1", "--job", "mine"), "job mine says how many run"),
        (("--array", "0-4", "--wait"), "cannot be combined with --wait"),
        (("--array", "0-4", "--dry-run"), "cannot be combined with --wait, --dry-run"),
    ],
)
async def test_what_an_array_cannot_have_is_refused(
    world: ApiWorld, desk: Desk, options: tuple[str, ...], words: str
) -> None:
    """Before anything is made."""
    refused = await desk.run(*RUN, *options, "--", "true")
    assert (refused.code, words in refused.err) == (main.USAGE, True), refused.err
    assert await world.names() == []
    assert (await world.kube.list(JOBS)).items == []


async def test_where_an_array_stopped_is_told(world: ApiWorld, desk: Desk) -> None:
    """A name that is taken stops it; the words that launch the rest are printed."""
    await world.launch(name="sweep-2")
    done = await desk.run(*RUN, "--array", "0-4", "--", "true")
    assert done.code != main.OK
    assert len(done.out.splitlines()) == 2
    assert "2 of 5 are launched; for the rest: --job sweep --array 2-4" in done.err
