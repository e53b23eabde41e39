"""How the servers of a hub are distinguished: a start ends the allocation that an earlier start of the same server
left, and no other."""

import re
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from slipway.adapters.jupyterhub import SlipwaySpawner, label_of, label_of_server
from tests.support.http_stub import serve
from tests.support.sdk import a_view

LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?")


def test_no_two_servers_of_a_user_have_one_label() -> None:
    """No two servers of a user have one label, also when their names differ only in characters that a label cannot
    have, or after its length. The server without a name has its own label too."""
    names = ["", "default", "a b", "a-b", "a--b", "-a-b", "x" * 40, "x" * 41, "x" * 42, "\u00e9", "\u00e8"]
    labels = [label_of_server(name) for name in names]
    assert len(set(labels)) == len(names)
    assert all(LABEL.fullmatch(label) for label in labels)


def test_a_plain_name_is_its_label() -> None:
    """A plain name is its own label, so that users, and hubs of other versions, find it."""
    assert [label_of_server(name) for name in ("", "training")] == ["default", "training"]
    assert label_of("hub") == "hub"
    assert len({label_of(name) for name in ("lab 1", "lab-1")}) == 2


async def polled(answered: Response) -> int | None:
    """The status that the hub gets for a server when the API returns this answer."""

    async def answer(_: Request) -> Response:
        return answered

    async with serve(answer) as stub:
        spawner = SlipwaySpawner(server_url=stub.url)
        spawner.allocation_id = "a-12345678"
        try:
            return await spawner.poll()
        finally:
            await spawner.close()


@pytest.mark.parametrize(
    ("result", "ranks", "status"),
    [
        ("Succeeded", [{"exitCode": 0}], 0),
        ("Succeeded", [{"phase": "Succeeded"}], 0),
        ("Failed", [{"exitCode": 3}], 3),
        ("Failed", [{"exitCode": 0}, {"exitCode": 7}], 7),
        ("Failed", [{"exitCode": 143}, {"exitCode": 7, "reason": "RankFailed"}], 7),
        ("Evicted", [{"exitCode": 0}], 1),
        ("Failed", [{"reason": "NodeLost"}], 1),
        ("Invalid", [], 1),
    ],
)
async def test_the_status_of_a_server_that_ended(result: str, ranks: list[dict[str, Any]], status: int) -> None:
    """A server that failed never has status 0, also when no rank has an exit code."""
    view = a_view(phase="Terminated", result=result, reason="RankFailed", status={"ranks": ranks})
    assert await polled(Response(msgspec.json.encode(view))) == status


async def test_a_server_that_is_not_found_has_not_ended_well() -> None:
    """A deleted allocation is no running server, and its status is not 0, because its result is unknown."""
    assert await polled(Response(b"{}", status_code=404)) == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_the_hub_may_not_see_now_is_said_to_run(status: int) -> None:
    """A server that the hub may not read now is reported as running: the hub treats an error as the end of the server,
    and would start a second one."""
    assert await polled(Response(b"{}", status_code=status)) is None
