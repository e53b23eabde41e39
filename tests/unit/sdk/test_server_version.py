"""What the clients know of the server's version: a property, and a warning once."""

import warnings

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipway.installed import VERSION_HEADER, installed_version
from slipway.sdk import AsyncClient, Client, VersionWarning
from tests.support.http_stub import serve
from tests.support.sdk import Shell


async def old(request: Request) -> Response:
    """A server of another minor version, without queues."""
    return JSONResponse({"items": []}, headers={VERSION_HEADER: "0.0.1"})


async def test_the_version_is_that_of_the_last_answer(shell: Shell) -> None:
    """The version is that of the server's last answer; empty before the first one."""
    assert shell.client.server_version == ""
    await shell.do(lambda client: client.queues())
    assert shell.client.server_version == installed_version()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_a_server_that_does_not_fit_is_warned_of_once(kind: type[Client | AsyncClient]) -> None:
    """A server version that does not fit causes one warning with what to upgrade; calls still work."""
    async with serve(old) as stub:
        shell = Shell(kind(stub.url))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(3):
                assert list(await shell.do(lambda client: client.queues())) == []
        await shell.close()
    assert [each.category for each in said] == [VersionWarning]
    assert "helm upgrade" in str(said[0].message)
    assert shell.client.server_version == "0.0.1"
