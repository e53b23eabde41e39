"""One try: signed, to the checked address, within its time, and without trust in the receiver's answer."""

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from slipway.api.http.networks import parse_networks
from slipway.api.webhooks.formats import CLOUDEVENTS_TYPE
from slipway.api.webhooks.hook import Config, Webhook
from slipway.api.webhooks.sender import DeliveryResult, Message, Sender
from slipway.runtime.clock import SystemClock
from tests.support.http_stub import HttpStub, serve

KEY = b"k" * 32
MESSAGE = Message(id="train-0123abcd/3", body=b'{"specversion":"1.0"}')


async def send(
    url: str, *, networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128"), timeout_s: float = 5.0
) -> DeliveryResult:
    sender = Sender(SystemClock(), timeout_s=timeout_s, allowed=parse_networks(networks))
    try:
        return await sender.send(Webhook(name="hook", config=Config(url=url), key=KEY), MESSAGE)
    finally:
        await sender.aclose()


def answering(status: int, **headers: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        return Response("a body that nobody reads", status_code=status, headers=headers)

    return answer


async def test_a_receiver_can_check_what_it_gets() -> None:
    """The signature is over id, time and the very bytes; the Host is the name in the URL."""
    async with serve(answering(204)) as stub:
        port = stub.url.rpartition(":")[2]
        answer = await send(f"http://localhost:{port}/in?x=1")
    assert (answer.delivered, answer.status) == (True, 204)
    [got] = stub.requests
    assert (got.method, got.target, got.body) == ("POST", "/in?x=1", MESSAGE.body)
    assert (got.headers["host"], got.headers["content-type"]) == (f"localhost:{port}", CLOUDEVENTS_TYPE)
    assert got.headers["webhook-id"] == MESSAGE.id
    signed = f"{MESSAGE.id}.{got.headers['webhook-timestamp']}.".encode() + got.body
    expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    assert got.headers["webhook-signature"] == f"v1,{expected}"


@pytest.mark.parametrize(
    ("status", "headers", "said", "is_final", "retry_after_s"),
    [
        (500, {}, "answered 500", False, None),
        (404, {}, "answered 404", False, None),
        (410, {}, "answered 410", True, None),
        (429, {"retry-after": "7"}, "answered 429", False, 7.0),
        (503, {"retry-after": "99999"}, "answered 503", False, 3600.0),
        (503, {"retry-after": "tomorrow"}, "answered 503", False, None),
    ],
)
async def test_other_answers_are_failures(
    status: int, headers: dict[str, str], said: str, is_final: bool, retry_after_s: float | None
) -> None:
    """The result has a detail, and whether and when another try makes sense."""
    async with serve(answering(status, **headers)) as stub:
        answer = await send(stub.url)
    assert (answer.delivered, answer.status, answer.detail) == (False, status, said)
    assert (answer.is_final, answer.retry_after_s) == (is_final, retry_after_s)


async def test_redirects_are_not_followed() -> None:
    """A redirect would lead past the check of the address."""
    async with serve(answering(200)) as inner, serve(answering(302, location=f"{inner.url}/secret")) as stub:
        answer = await send(stub.url)
    assert (answer.delivered, answer.detail) == (False, "answered 302; redirects are not followed")
    assert inner.requests == []


async def test_a_forbidden_address_is_never_connected_to() -> None:
    """A name that leads to a forbidden address is refused too."""
    async with serve(answering(200)) as stub:
        port = stub.url.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost"):
            answer = await send(f"http://{host}:{port}/", networks=())
            assert (answer.delivered, answer.is_final) == (False, True)
            assert "not an address of the public internet" in answer.detail
    assert stub.requests == []


async def test_a_receiver_that_hangs_costs_its_time_only() -> None:
    """Without a status there is no answer; after a status the sender does not wait for the rest of it."""
    over = asyncio.Event()

    async def hang(_request: Request) -> Response:
        await over.wait()
        return Response()

    async def hang_inside(_request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            yield b"so far"
            await over.wait()

        return StreamingResponse(body())

    async with serve(hang) as stub:
        before = await send(stub.url, timeout_s=0.2)
        over.set()
    over.clear()
    async with serve(hang_inside) as stub:
        inside = await send(stub.url, timeout_s=5.0)
        over.set()
    assert (before.delivered, before.detail) == (False, "no answer within 0.2 s")
    assert (inside.delivered, inside.status) == (True, 200)


async def test_what_is_not_there_is_said() -> None:
    """No server listens, no address has the name, or the server speaks no TLS."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert (await send(f"http://127.0.0.1:{port}/")).detail == "it does not accept connections"
    assert (await send("http://no-such-host.invalid/")).detail == "the name no-such-host.invalid does not resolve"
    async with serve(answering(200)) as stub:
        said = (await send(stub.url.replace("http:", "https:"))).detail
    assert said == "no TLS connection could be made"


async def test_nothing_of_the_url_or_the_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A URL may hold a token, in its path too."""
    caplog.set_level(logging.DEBUG)
    stub: HttpStub
    async with serve(answering(500)) as stub:
        await send(f"{stub.url}/T0KEN?key=S3CRET")
    assert stub.requests[0].target == "/T0KEN?key=S3CRET"
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("asyncio")]
    assert not any("T0KEN" in text or "S3CRET" in text for text in ours), ours
