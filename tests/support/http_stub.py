"""A real HTTP server on loopback whose answers a test writes: for what a client does with odd answers.

Owns the listening socket and the record of requests. It knows nothing of Kubernetes; suites that need semantics use
the local API server.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Answer = Callable[[Request], Awaitable[Response]]


class HttpStub:
    """`answer` decides every request; `requests` holds (method, path?query, headers, body) of each."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = ""

    async def _handle(self, request: Request) -> Response:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        self.requests.append((request.method, target, dict(request.headers), await request.body()))
        return await self.answer(request)

    def app(self) -> Starlette:
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        return Starlette(routes=[Route("/{path:path}", self._handle, methods=methods)])


@asynccontextmanager
async def serve(answer: Answer) -> AsyncGenerator[HttpStub, None]:
    """The stub, listening."""
    stub = HttpStub(answer)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            stub.app(), log_config=None, lifespan="off", timeout_graceful_shutdown=1, ws="none", loop="asyncio"
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(server.serve(sockets=[listener]))
            try:
                yield stub
            finally:
                server.should_exit = True
                server.force_exit = True
                await running
