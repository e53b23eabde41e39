"""IDs and names of the command line become steps of a path: an invalid one is refused before any request."""

import pytest

from slipway.cli import main
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser, run_here

NO_SERVER = ("--server", "http://127.0.0.1:9")
OF_ALLOCATIONS = (
    *(("describe",), ("get",), ("explain",), ("timeline",), ("trace",), ("events",), ("logs",), ("follow",)),
    *(("wait",), ("open",), ("exec",), ("ssh",), ("ssh-config",), ("port-forward",), ("kill",), ("rm",)),
    *(("terminate",), ("preempt",), ("pause",), ("hold",), ("resume",), ("forget",), ("limit",), ("update",)),
    *(("rerun",), ("shell", "open"), ("priority",)),
)
OF_OTHERS = (
    *(("queue", "show"), ("job", "show"), ("job", "kill"), ("template", "show"), ("node", "drain")),
    *(("workspace", "show"), ("webhook", "show"), ("dead", "show"), ("token", "revoke")),
)


@pytest.mark.parametrize("word", ["a/b", "../queues/default", "x y", "a?b=1", "a#b", "%2e%2e", ".."])
@pytest.mark.parametrize("verb", OF_ALLOCATIONS, ids=" ".join)
def test_what_cannot_be_an_id_is_refused(verb: tuple[str, ...], word: str) -> None:
    """An invalid id is refused with a message that names it and says how to find ids; no server is called."""
    more = {"priority": ["5"], "port-forward": ["1:1"], "limit": ["--max-runtime", "1h"], "update": ["--image", "i"]}
    ran = run_here(verb[0], *NO_SERVER, *verb[1:], word, *more.get(verb[0], []))
    assert ran.code == main.USAGE
    assert f"{word!r} cannot be an ID; `slipway ps` lists the IDs" in ran.err.replace("\n", " ")


@pytest.mark.parametrize("word", ["a/b", "x y", "a?b=1"])
@pytest.mark.parametrize("verb", OF_OTHERS, ids=" ".join)
def test_what_cannot_be_a_name_is_refused(verb: tuple[str, ...], word: str) -> None:
    """An invalid name is refused in the same way."""
    ran = run_here(verb[0], *NO_SERVER, *verb[1:], word)
    assert ran.code == main.USAGE
    assert f"{word!r} cannot be a name" in ran.err


def test_a_job_in_the_place_of_an_id_says_how_to_list_it() -> None:
    """For job/NAME in the place of an id the error names the command that lists the job: `--after` accepts it, so users
    write it elsewhere too."""
    ran = run_here("logs", *NO_SERVER, "job/sweep")
    assert (ran.code, "slipway ps --job sweep" in ran.err) == (main.USAGE, True)


async def test_an_empty_id_is_refused_and_an_empty_name_left_out(world: ApiWorld, cli_user: CliUser) -> None:
    """An empty id, as from an unset shell variable, is refused; an empty name is ignored."""
    await world.launch()
    assert (await cli_user.run("kill", "-y", "")).code == main.USAGE
    assert (await cli_user.run("queue", "show", "")).code == main.OK
