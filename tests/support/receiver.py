"""A receiver of webhooks on this machine, as documented: it checks every signature with the code of the documentation.

Owns a thread with an HTTP server. `answers` are its answers, `got` the authentic events that reached it.
"""

import re
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

Json = dict[str, Any]
Verified = Callable[[Mapping[str, str], bytes, str], Json]
PAGE = Path(__file__).parents[2] / "docs" / "integrating.md"


def documented() -> Verified:
    """The function that docs/integrating.md tells receivers to use."""
    [source] = re.findall(r"```python\n(import base64.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    return cast("Verified", names["verified"])


class Receiver:
    """A running receiver; a test sets `secret` after it has created the webhook."""

    def __init__(self) -> None:
        self.secret = ""
        self.got: list[Json] = []
        self.refused: list[str] = []
        self.answer: Callable[[Json], int] = lambda _event: 204
        self._verified = documented()
        receiver = self

        class _Requests(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(receiver.take(dict(self.headers), body))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Requests)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver")
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the receiver; its path stands for the token in the URLs of chat programs."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/T0KEN"

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        """Check and record one request; return the status of the answer."""
        try:
            event = self._verified({name.lower(): value for name, value in headers.items()}, body, self.secret)
        except ValueError as error:
            self.refused.append(str(error))
            return 401
        status = self.answer(event)
        if status < 300:
            self.got.append(event)
        return status

    def of(self, allocation: str) -> list[str]:
        """The types of the events of an allocation, in the order in which they arrived."""
        return [event["type"].rpartition(".")[2] for event in self.got if event["subject"] == allocation]

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def receiving() -> Generator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()
