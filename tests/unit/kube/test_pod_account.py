"""The account that the kubelet mounts into a pod, over TLS, and the rotation of its token."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from slipway.errors import DeniedError
from slipway.kube import client
from slipway.kube.client import connect
from slipway.kube.resources import PODS
from slipway.runtime.clock import SeededRandom
from tests.support.clock import FakeClock

BODY = b'{"metadata": {"name": "p"}}'


class Server:
    """A TLS server that knows one token; `seen` are the tokens that it received."""

    def __init__(self) -> None:
        self.token = "one"
        self.seen: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                (sent,) = [line for line in head.split("\r\n") if line.lower().startswith("authorization: ")]
                self.seen.append(sent.split()[-1])
                code = "200 OK" if self.seen[-1] == self.token else "401 Unauthorized"
                writer.write(f"HTTP/1.1 {code}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def serving(server: Server, authority: trustme.CA) -> AsyncGenerator[int]:
    """Run the server; yield its port."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)  # pyright: ignore[reportUnknownMemberType]
    async with await asyncio.start_server(server.answer, "127.0.0.1", 0, ssl=tls) as listening:
        yield int(listening.sockets[0].getsockname()[1])


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, trustme.CA]:
    """(the token file, the authority whose certificate lies beside it), at the path that the library reads."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    token = tmp_path / "token"
    token.write_text("one")
    library = client._library()  # pyright: ignore[reportPrivateUsage] - there is no mount to write to here
    names = library._load_in_cluster.__globals__  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(names, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setitem(names, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    return token, authority


async def test_the_mounted_token_is_read_again(
    mounted: tuple[Path, trustme.CA], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced token is used within a minute, and at once when the old one is refused."""
    token, authority = mounted
    server, clock = Server(), FakeClock()
    async with serving(server, authority) as port:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        async with connect(None, clock=clock, random=SeededRandom(1)) as kube:
            assert (await kube.get(PODS, "p", namespace="n")).metadata.name == "p"
            token.write_text("two")
            await kube.get(PODS, "p", namespace="n")
            clock.advance(61)
            server.token = "two"
            await kube.get(PODS, "p", namespace="n")
            token.write_text("three")
            server.token = "three"
            await kube.get(PODS, "p", namespace="n")
            assert server.seen == ["one", "one", "two", "two", "three"]
            server.token = "four"
            with pytest.raises(DeniedError):
                await kube.get(PODS, "p", namespace="n")
