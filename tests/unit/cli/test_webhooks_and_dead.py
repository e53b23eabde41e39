"""`slipway webhook` and `slipway dead`, against the real api."""

import base64
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.settings import Settings
from slipway.cli import main
from slipway.kube.resources import NAMESPACES
from slipway.model.ids import AllocationId
from slipway.streams.ports import WorkHint
from slipway.streams.webhooks import Delivery
from tests.support.api_world import ApiWorld, api_world
from tests.support.cli import CliUser
from tests.support.http_stub import serve, serve_app

URL = "https://hooks.example/in"
SETTINGS = Settings(namespace="slipway-system", redis_url="redis://127.0.0.1:1", webhook_networks=("127.0.0.0/8",))


@pytest.fixture
async def world() -> AsyncGenerator[ApiWorld, None]:
    """An api that may send to this machine."""
    async with api_world(SETTINGS) as fresh:
        await fresh.kube.create(NAMESPACES, {"metadata": {"name": "slipway-system"}})
        yield fresh
        await fresh.parts.sender.aclose()


@pytest.fixture
async def cli_user(world: ApiWorld) -> AsyncGenerator[CliUser, None]:
    """A user of that api."""
    async with serve_app(world.app, before_stop=world.stop.set) as url:
        yield CliUser(url)


async def test_a_webhook_is_created_listed_changed_and_removed(cli_user: CliUser) -> None:
    """A webhook is created, listed, changed and removed; its key is printed once, with how to use it."""
    assert "slipway webhook create URL" in (await cli_user.run("webhook", "ls")).err
    made = await cli_user.run(
        "webhook", "create", URL, "--name", "pager", "--event", "terminated", "--result", "Failed"
    )
    assert made.out.splitlines()[0] == "webhook pager is added"
    assert made.out.splitlines()[1].startswith("signing key: whsec_")
    assert "slipway webhook test pager" in made.err
    row = (await cli_user.run("webhook", "ls")).out.splitlines()[1].split()
    assert row == ["pager", "yes", "0", "terminated,Failed", "https://hooks.example/***"]
    assert (await cli_user.run("webhooks", "-q")).out == "pager\n"
    shown = (await cli_user.run("webhook", "show", "pager")).out
    assert "whsec_" not in shown
    changed = (await cli_user.run("webhook", "set", "pager", "--disable", "--rotate-secret")).out
    assert "signing key:  whsec_" in changed
    assert "enabled:      no" in changed
    assert (await cli_user.run("webhook", "rm", "pager")).out == "webhook pager is removed\n"
    assert (await cli_user.run("webhook", "show", "pager")).code == main.NOT_FOUND


async def test_a_key_of_ones_own_comes_from_a_file(cli_user: CliUser, tmp_path: Path) -> None:
    """A user's own key comes from a file, not from the command line, which every user on the machine can read."""
    key = "whsec_" + base64.b64encode(b"k" * 32).decode()
    (tmp_path / "key").write_text(f"{key}\n")
    made = await cli_user.run("webhook", "create", URL, "--key-file", f"{tmp_path}/key", "-o", "json")
    assert made.json["secret"] == key
    missing = await cli_user.run("webhook", "create", URL, "--key-file", f"{tmp_path}/none")
    assert (missing.code, "--key-file" in missing.err) == (main.USAGE, True)


async def test_a_webhook_is_tried(cli_user: CliUser) -> None:
    """A webhook is tested; the exit code shows whether the receiver accepted the event."""
    status = 204

    async def answer(_request: Request) -> Response:
        return Response(status_code=status)

    async with serve(answer) as stub:
        await cli_user.run("webhook", "create", stub.url, "--name", "a")
        good = await cli_user.run("webhook", "test", "a")
        assert (good.code, good.out.startswith("delivered: answered 204 after ")) == (main.OK, True)
        status = 500
        bad = await cli_user.run("webhook", "test", "a")
        assert (bad.code, bad.out) == (main.FAILED, "not delivered: answered 500\n")


async def test_what_is_wrong_with_a_webhook_is_named(cli_user: CliUser) -> None:
    """A bad webhook is refused with the field, the reason and the next step."""
    for words, code, said in (
        (("create",), main.USAGE, "slipway webhook create URL"),
        (("rm",), main.USAGE, "slipway webhook rm NAME"),
        (("set", "a"), main.USAGE, "--url or --disable"),
        (("create", "http://10.0.0.1/"), main.USAGE, "url: 10.0.0.1 is not an address of the public internet"),
        (("create", URL, "--event", "done"), main.USAGE, "events[0]: 'done' is not known; known are requested"),
        (("test", "none"), main.NOT_FOUND, "there is no webhook none"),
    ):
        refused = await cli_user.run("webhook", *words)
        assert refused.code == code, (words, refused.err)
        assert said in refused.err


async def bury(world: ApiWorld) -> list[str]:
    """Make a dead hint and a dead delivery; return their ids."""
    await world.streams.hints.send([WorkHint(namespace="default", allocation=AllocationId("llm-0123abcd"))])
    queue = world.streams.work_queue("w")
    [claimed] = await queue.claim(limit=1, block_s=0)
    await queue.dead_letter(claimed, cause="gave up after 600 s: exceeded quota: " + "x" * 200)
    delivery = Delivery(webhook="pager", entry_id="1-1", fields={"id": b"llm-0123abcd/4"})
    await world.streams.webhooks("a").dead_letter(delivery, cause="answered 500", tries=12)
    return [letter.id for letter in await world.streams.dead.page()]


async def test_dead_letters_are_listed_for_people(cli_user: CliUser, world: ApiWorld) -> None:
    """Dead letters are listed with their subjects in eighty columns; the whole cause is in `show`."""
    first, second = await bury(world)
    listed = (await cli_user.run("dead")).out
    assert f"{first}  work on default/llm-0123abcd   " in listed
    assert f"{second}  webhook pager: llm-0123abcd/4  " in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert (await cli_user.run("dead", "-q")).out.split() == [first, second]
    assert (await cli_user.run("dead", "ls", "--source", "webhook", "-q")).out.split() == [second]
    shown = (await cli_user.run("dead", "show", first)).out
    assert "x" * 200 in shown
    assert "about:   work on default/llm-0123abcd" in shown


async def test_every_page_of_dead_letters_is_listed(cli_user: CliUser, world: ApiWorld) -> None:
    """Every page of dead letters is listed, also when a page has none of the requested source."""
    for number in range(520):
        delivery = Delivery(webhook="pager", entry_id="1-1", fields={"id": b"llm-0123abcd/%d" % number})
        await world.streams.webhooks("a").dead_letter(delivery, cause="answered 500", tries=12)
    await bury(world)
    assert len((await cli_user.run("dead", "-q")).out.split()) == 522
    assert len((await cli_user.run("dead", "--source", "work", "-q")).out.split()) == 1
    assert len((await cli_user.run("dead", "-o", "json")).json["items"]) == 522


async def test_dead_letters_are_sent_again_and_dropped(cli_user: CliUser, world: ApiWorld) -> None:
    """Dead letters are sent again or dropped, one by one or all of a source; one without a receiver is reported."""
    first, second = await bury(world)
    assert (await cli_user.run("dead", "replay", first)).out == f"{first} is sent again\n"
    refused = await cli_user.run("dead", "replay", second)
    assert (refused.code, "webhook pager was deleted" in refused.err) == (main.FAILED, True)
    everything = await cli_user.run("dead", "replay", "--all")
    assert (everything.code, everything.out) == (main.FAILED, "0 sent again\n")
    assert "webhook pager was deleted" in everything.err
    assert (await cli_user.run("dead", "drop", second)).out == f"{second} is dropped\n"
    assert (await cli_user.run("dead", "replay", "--all")).out == "0 sent again\n"
    assert "no dead letters" in (await cli_user.run("dead")).err


async def test_what_is_no_letter_is_said(cli_user: CliUser) -> None:
    """An invalid id, an unknown id, no id, and ids together with a source are refused."""
    for words, code, said in (
        (("show", "nonsense"), main.USAGE, "is not the id of a dead letter"),
        (("drop", "1-1"), main.NOT_FOUND, "there is no dead letter 1-1"),
        (("replay",), main.USAGE, "name the letters, or write --all"),
        (("drop",), main.USAGE, "name the letters; `slipway dead ls` lists them"),
        (("replay", "1-1", "--all"), main.USAGE, "name letters, or write --all, not both"),
    ):
        refused = await cli_user.run("dead", *words)
        assert refused.code == code, (words, refused.err)
        assert said in refused.err
