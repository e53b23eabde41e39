"""A real HTTP server on loopback: for tests of clients with unusual answers, and for apps under test.

Owns the listening socket and the record of requests. It knows nothing of Kubernetes; suites that need semantics use
the local API server.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipway.runtime.http_server import AsgiApp, HttpServer

Answer = Callable[[Request], Awaitable[Response]]


class Recorded(msgspec.Struct):
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class HttpStub:
    """`answer` decides every request; `requests` holds them in order."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Recorded] = []
        self.url = ""
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        self.app = Starlette(routes=[Route("/{path:path}", self._handle, methods=methods)])

    async def _handle(self, request: Request) -> Response:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        self.requests.append(Recorded(request.method, target, dict(request.headers), await request.body()))
        return await self.answer(request)


@asynccontextmanager
async def serve(answer: Answer) -> AsyncGenerator[HttpStub, None]:
    """A stub that listens."""
    stub = HttpStub(answer)
    async with serve_app(stub.app) as stub.url:
        yield stub


@asynccontextmanager
async def serve_app(
    app: Any, *, before_stop: Callable[[], object] = lambda: None, port: int = 0
) -> AsyncGenerator[str, None]:
    """Any ASGI app on `port` of loopback (0: a free one); yields its URL. `before_stop` ends the app's own streams."""
    stop = asyncio.Event()
    asgi: AsgiApp = app
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = HttpServer(asgi, [listener], drain_timeout_s=1.0, websockets=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve(stop.wait))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                before_stop()
                stop.set()


def write_kubeconfig(folder: Path, url: str, user: dict[str, Any] | None = None) -> str:
    """Write a kubeconfig for that server; return its path."""
    path = folder / "kubeconfig.json"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": user or {}}],
    }
    path.write_bytes(msgspec.json.encode(document))
    return str(path)
