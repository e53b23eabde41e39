"""Nodes serve logs to a real API server as a kubelet does: over TLS, at its path, to clients with a certificate."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest
import trustme

from slipway.errors import NotFoundError
from slipway.local.node.endpoint import HOST, LogEndpoint
from slipway.local.node.logs import LogQuery
from slipway.local.node.shim import Program, Shim
from slipway.runtime.clock import SeededRandom, SystemClock


class OnePod:
    """A store with one pod, whose log contains the request."""

    def uid_of(self, namespace: str, name: str) -> str:
        if (namespace, name) != ("default", "p"):
            raise NotFoundError(f'pod "{name}" does not exist')
        return "u-1"

    async def lines(self, uid: str, container: str, query: LogQuery, *, previous: bool) -> AsyncGenerator[bytes, None]:
        yield f"{uid} {container} {query.tail} {previous}\n".encode()

    def exec_program(self, uid: str, container: str, command: Sequence[str]) -> tuple[Program, Shim]:
        raise NotFoundError("to a real API server no command is run")


@pytest.fixture
async def served() -> AsyncIterator[tuple[LogEndpoint, trustme.CA]]:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with authority.issue_cert(HOST).private_key_and_cert_chain_pem.tempfile() as path:
        tls.load_cert_chain(path)
    with authority.cert_pem.tempfile() as path:
        tls.load_verify_locations(path)
    tls.verify_mode = ssl.CERT_REQUIRED
    endpoint = LogEndpoint(OnePod(), SystemClock(), SeededRandom(1), tls=tls)
    await endpoint.start()
    yield endpoint, authority
    await endpoint.close()


async def fetch(endpoint: LogEndpoint, authority: trustme.CA, path: str, *, known: bool = True) -> str:
    """The whole answer; empty when there is none."""
    context = ssl.create_default_context()
    with authority.cert_pem.tempfile() as file:
        context.load_verify_locations(file)
    if known:
        with authority.issue_cert("client.local").private_key_and_cert_chain_pem.tempfile() as file:
            context.load_cert_chain(file)
    reader, writer = await asyncio.open_connection(HOST, endpoint.port, ssl=context)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(10):
            return (await reader.read()).decode()
    except (ssl.SSLError, ConnectionError):
        return ""
    finally:
        writer.transport.abort()


async def test_a_log_is_found_by_the_pod_s_name(served: tuple[LogEndpoint, trustme.CA]) -> None:
    """A log is found by the pod's name, with the usual parameters."""
    endpoint, authority = served
    answer = await fetch(endpoint, authority, "/containerLogs/default/p/main?tailLines=2&previous=true")
    assert answer.startswith("HTTP/1.1 200")
    assert answer.endswith("u-1 main 2 True\n")
    assert endpoint.url == ""


@pytest.mark.parametrize("path", ["/containerLogs/default/other/main", "/logs/default/p/main", "/"])
async def test_nothing_else_is_there(served: tuple[LogEndpoint, trustme.CA], path: str) -> None:
    """Every other path returns 404, as from a kubelet."""
    assert (await fetch(*served, path)).startswith("HTTP/1.1 404")


async def test_a_client_without_a_certificate_gets_nothing(served: tuple[LogEndpoint, trustme.CA]) -> None:
    """Other users of the machine cannot read logs."""
    assert await fetch(*served, "/containerLogs/default/p/main", known=False) == ""
