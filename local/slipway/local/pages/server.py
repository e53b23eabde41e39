"""The HTTP server of the pages: routes, access checks, and the answers.

Owns the server and the two sites. A request may have the proxy's prefix or not, so that a page works behind the API and
at the pod's own address.

Invariants: no page loads anything from another site; a request that changes state must be JSON, which a page of another
site cannot send without a CORS preflight; the Host must be an IP address or a name of this machine, which prevents DNS
rebinding.

The facts about its allocation that a page shows, read from the pod's environment.

Pure: takes the environment, returns rows. The rows contain only the variables listed here, and no secret.
"""

import contextlib
import hmac
import html
import ipaddress
import json
import os
import platform
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from slipway.local.pages.kernel import Kernel
from slipway.local.pages.scalars import read_scalars

Row = tuple[str, str]


def facts_of(env: Mapping[str, str]) -> list[Row]:
    """Return name and value of each known fact, in the order of the page."""
    world = env.get("WORLD_SIZE", "1")
    trace = env.get("TRACEPARENT", "").split("-")
    rows = [
        ("Allocation", env.get("SLIPWAY_ALLOCATION_ID", "")),
        ("Attempt", env.get("SLIPWAY_ATTEMPT", "")),
        ("Rank", f"{env['SLIPWAY_RANK']} of {world}" if env.get("SLIPWAY_RANK") else ""),
        ("Pod", env.get("HOSTNAME", "")),
        ("Address", env.get("SLIPWAY_POD_IP", "")),
        ("Devices", env.get("SLIPWAY_DEVICES", "")),
        ("Trace", trace[1] if len(trace) == 4 else ""),
        ("Python", platform.python_version()),
    ]
    return [(name, value) for name, value in rows if value]


BODY_BYTES_MAX = 4 * 1024 * 1024
HEAD_BYTES_MAX = 16 * 1024
CONNECTIONS_MAX = 64
HEAD_S = 10.0
_REQUEST_S = 30.0
_UNKNOWN = "only the proxy of the API may do this: slipway open"

Json = dict[str, Any]


class Site(Protocol):
    """One kind of page."""

    def page(self, prefix: str, nonce: str) -> str:
        """Return the HTML of the page."""
        ...

    def read(self, path: str) -> Json | None:
        """Return the JSON answer of a GET, or None when the path does not exist."""
        ...

    def act(self, path: str, body: Json) -> Iterator[Json] | None:
        """Return the events of a POST, or None when the path does not exist. Raises ValueError for a bad body."""
        ...

    def close(self) -> None: ...


class NotebookSite:
    """The notebook page, whose cells run in this pod."""

    def __init__(self) -> None:
        self._kernel = Kernel()

    def page(self, prefix: str, nonce: str) -> str:
        return _filled("notebook.html", prefix, nonce, os.environ.get("SLIPWAY_ALLOCATION_ID", "notebook"))

    def read(self, path: str) -> Json | None:
        return {"facts": facts_of(os.environ)} if path == "/facts" else None

    def act(self, path: str, body: Json) -> Iterator[Json] | None:
        match path:
            case "/run":
                code = body.get("code")
                if not isinstance(code, str):
                    raise ValueError("code must be a string")
                return self._kernel.run(code)
            case "/interrupt":
                self._kernel.interrupt()
            case "/restart":
                self._kernel.restart()
            case _:
                return None
        return iter([{"type": "end"}])

    def close(self) -> None:
        self._kernel.restart()


class TensorboardSite:
    """The TensorBoard page: curves of the scalars in a log directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def page(self, prefix: str, nonce: str) -> str:
        return _filled("tensorboard.html", prefix, nonce, os.environ.get("SLIPWAY_ALLOCATION_ID", "tensorboard"))

    def read(self, path: str) -> Json | None:
        if path == "/facts":
            return {"facts": [*facts_of(os.environ), ("Log directory", str(self._folder))]}
        return read_scalars(self._folder)._asdict() if path == "/scalars" else None

    def act(self, path: str, body: Json) -> Iterator[Json] | None:
        return None

    def close(self) -> None:
        return


class PageServer(ThreadingHTTPServer):
    """Serves one site.

    prefix: the path under which the API's proxy serves the site. token: the proxy's token; when it is set, requests
    without it are refused.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], site: Site, *, prefix: str = "", token: str = "") -> None:
        self.site = site
        self.token = token.encode("latin-1")
        self.prefix = prefix.rstrip("/")
        self.heads: dict[socket.socket, float] = {}
        """{connection: monotonic time since which its next request head is incomplete}."""
        self._open: set[int] = set()
        super().__init__(address, _Request)
        self.url = f"http://{self.server_address[0]!s}:{self.server_address[1]}{self.prefix}/"

    def server_bind(self) -> None:
        # The base class looks up the host's name, which can take seconds on a laptop, so this code replaces it.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return len(self._open) < CONNECTIONS_MAX

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(id(request))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._open.discard(id(request))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print other errors with their traceback; a client that disconnects or stops reading is not an error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def service_actions(self) -> None:
        """Close connections whose request head is late. The accept loop calls this about twice a second."""
        since = time.monotonic() - HEAD_S
        for connection in [connection for connection, begun in list(self.heads.items()) if begun < since]:
            self.heads.pop(connection, None)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Head:
    """The source of a request's head, which allows at most HEAD_BYTES_MAX."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._left = HEAD_BYTES_MAX

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._source.readline(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head")
        return line


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "slipway-pages"
    sys_version = ""
    timeout = _REQUEST_S

    def handle_one_request(self) -> None:
        body, self.rfile = self.rfile, cast("BufferedIOBase", _Head(self.rfile))
        self._body = body
        self._server.heads[self.connection] = time.monotonic()
        try:
            super().handle_one_request()
        except LineTooLong:
            self.close_connection = True  # the request line alone was too long
        finally:
            self._server.heads.pop(self.connection, None)
            self.rfile = body

    def parse_request(self) -> bool:
        is_good = super().parse_request()
        self._server.heads.pop(self.connection, None)
        self.rfile = self._body
        return is_good

    def do_GET(self) -> None:
        site, path = self._site, self._path()
        if not self._is_local():
            self._refuse(HTTPStatus.FORBIDDEN, "this host name is not served")
        elif path != "/healthz" and not self._is_known():
            self._refuse(HTTPStatus.UNAUTHORIZED, _UNKNOWN)
        elif path in ("", "/"):
            nonce = secrets.token_urlsafe(16)
            body = site.page(self._prefix, nonce).encode()
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", body, nonce)
        elif path == "/healthz":
            self._send(HTTPStatus.OK, "text/plain", b"ok\n")
        else:
            found = site.read(path)
            if found is None:
                self._refuse(HTTPStatus.NOT_FOUND, "not found")
            else:
                self._send(HTTPStatus.OK, "application/json", json.dumps(found).encode())

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        if not self._is_local():
            self._refuse(HTTPStatus.FORBIDDEN, "this host name is not served")
        elif not self._is_known():
            self._refuse(HTTPStatus.UNAUTHORIZED, _UNKNOWN)
        elif kind != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
        elif not (length.isascii() and length.isdigit() and len(length) < 10) or int(length) > BODY_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "send a Content-Length that is not too large")
        else:
            self._act(self.rfile.read(int(length)))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because the log of the pod belongs to the user."""

    @property
    def _site(self) -> Site:
        return self._server.site

    @property
    def _prefix(self) -> str:
        return self._server.prefix

    @property
    def _server(self) -> PageServer:
        assert isinstance(self.server, PageServer)  # noqa: S101 - for the type checker
        return self.server

    def _act(self, raw: bytes) -> None:
        try:
            body: Any = json.loads(raw or b"{}")
            events = self._site.act(self._path(), cast("Json", body) if isinstance(body, dict) else {})
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        if events is None:
            self._refuse(HTTPStatus.NOT_FOUND, "not found")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Accel-Buffering", "no")
        self.send_header("Transfer-Encoding", "chunked")
        is_there = self._tell(self.end_headers)
        for event in events:  # to the end, even if the client has disconnected, because the cell runs on
            line = json.dumps(event).encode() + b"\n"
            is_there = is_there and self._tell(self.wfile.write, b"%x\r\n%s\r\n" % (len(line), line))
        is_there = is_there and self._tell(self.wfile.write, b"0\r\n\r\n")
        self.close_connection = not is_there

    def _tell(self, send: Callable[..., Any], *parts: bytes) -> bool:
        """Send the parts. Return whether the client was still connected."""
        try:
            send(*parts)
        except OSError:
            return False
        return True

    def _path(self) -> str:
        path = urlsplit(self.path).path
        if self._prefix and (path == self._prefix or path.startswith(self._prefix + "/")):
            path = path[len(self._prefix) :]
        return path

    def _is_local(self) -> bool:
        """Whether the Host is an IP address or a name of this machine."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        if host == "localhost" or host.endswith(".localhost") or host == socket.gethostname().lower():
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    def _is_known(self) -> bool:
        """Whether the request has the token of the API's proxy; True when the server has no token."""
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        return not self._server.token or hmac.compare_digest(given, b"Bearer " + self._server.token)

    def _refuse(self, code: HTTPStatus, words: str) -> None:
        self.close_connection = True
        self._send(code, "application/json", json.dumps({"error": words}).encode())

    def _send(self, code: HTTPStatus, kind: str, body: bytes, nonce: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            # Tells the client not to send its next request over this connection, which is about to end.
            self.send_header("Connection", "close")
        if nonce:
            own = f"'nonce-{nonce}'"
            policy = f"default-src 'none'; script-src {own}; style-src {own}; connect-src 'self'; base-uri 'none'"
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _filled(name: str, prefix: str, nonce: str, title: str) -> str:
    text = resources.files("slipway.local.pages").joinpath(name).read_text(encoding="utf-8")
    values = {"@NONCE@": nonce, "@TITLE@": html.escape(title), "@PREFIX@": html.escape(prefix)}
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
