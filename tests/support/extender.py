"""A scheduler extender on this machine, over a real socket: honest, or misbehaving in the ways that extenders do.

Owns a thread with an HTTP server. `requests` are the requests that reached it; `answer` maps (verb, request body) to
its answer.
"""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = Any
Reply = Callable[[BaseHTTPRequestHandler], None]


class LoopbackExtender:
    """By default it lets every node pass and scores nothing."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Json]] = []
        self.answer: Callable[[str, Json], Json | Reply] = lambda verb, body: passes(body)
        self.ending = threading.Event()
        owner = self

        class _Requests(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                verb = self.path.rpartition("/")[2]
                owner.requests.append((verb, body))
                said = owner.answer(verb, body)
                if callable(said):
                    said(self)
                else:
                    say(json.dumps(said).encode())(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Requests)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="extender")
        self._thread.start()

    @property
    def url(self) -> str:
        """Its urlPrefix."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/scheduler"

    def asked(self, verb: str) -> list[list[str]]:
        """The nodes of each request of `verb`."""
        return [names_of(body) for said, body in self.requests if said == verb]

    def hang(self, request: BaseHTTPRequestHandler) -> None:
        """Read the request and never answer."""
        self.ending.wait(60)

    def drip(self, request: BaseHTTPRequestHandler) -> None:
        """Answer byte by byte, for ever."""
        request.send_response(200)
        request.end_headers()
        while not self.ending.wait(0.01):
            request.wfile.write(b" ")
            request.wfile.flush()

    def close(self) -> None:
        """End the server."""
        self.ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def names_of(body: Json) -> list[str]:
    """The nodes that a request names."""
    if body["NodeNames"] is not None:
        return list(body["NodeNames"])
    return [node["metadata"]["name"] for node in body["Nodes"]["items"]]


def passes(body: Json, only: Callable[[str], bool] = lambda name: True, why: str = "") -> Json:
    """A filter's answer that passes the nodes that `only` accepts, in the same form as the request."""
    failed = {name: why for name in names_of(body) if not only(name)} if why else None
    if body["NodeNames"] is not None:
        return {"Nodes": None, "NodeNames": [name for name in body["NodeNames"] if only(name)], "FailedNodes": failed}
    items = [node for node in body["Nodes"]["items"] if only(node["metadata"]["name"])]
    return {"Nodes": {"metadata": {}, "items": items}, "NodeNames": None, "FailedNodes": failed, "Error": ""}


def say(body: bytes, status: int = 200, **headers: str) -> Reply:
    """Answer with exactly these bytes."""

    def reply(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return reply


def crash(request: BaseHTTPRequestHandler) -> None:
    """Break the connection in the middle of an answer."""
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b'{"NodeNa')
    request.close_connection = True


@contextmanager
def an_extender() -> Generator[LoopbackExtender]:
    """An extender that is closed at the end."""
    extender = LoopbackExtender()
    try:
        yield extender
    finally:
        extender.close()
