"""Terminals over WebSocket: the server of a shell.

This module owns the access rules, the sessions, and the messages between client and server. It must not know the rest
of Slipway: it runs in any image that has Python 3.9 or newer. It also runs as the first process of a container, where
it reaps orphans.

The wire protocol, subprotocol `PROTOCOL`: the client's first text is {"type": "open"}. With `session`, it attaches to
an existing session. `from` is the number of bytes that the client has seen, and `client` names the sender of input.
With `acks`, the client will confirm received output, so that output in transit is not treated as read. Binary messages
of the client are input. Those of the server begin with a byte for the stream, followed by output. Texts of the client:
`resize`, `eof`, `kill`, `seen`. Texts of the server: `session`, `received`, `exit`, `error`. In `session`, `offset` is
that of the next output byte, and `received` is the number of input bytes that this client need not send again.

Invariants: sessions, connections and request heads are counted and limited. Pages of other web sites have no access.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import html
import ipaddress
import json
import os
import pwd
import secrets
import signal
import sys
import time
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from slipway.inside.client import ApiRefusedError, Client, NotInTimeError
from slipway.inside.home import with_home
from slipway.inside.sessions import ShellSession
from slipway.inside.sockets import LATE, TEXT, PeerClosedError, RequestRefusedError, Socket, accept_of

PORT = 7681
ENV_POD_UID = "SLIPWAY_POD_UID"
ENV_TOKEN = "SLIPWAY_WORKLOAD_TOKEN"  # noqa: S105 - the name of a variable
_UNKNOWN = b"only the proxy of the API may do this: slipway shell open\n"
PROTOCOL = "terminal.v1.slipway.dev"
HEAD_BYTES_MAX, HEAD_FIELDS_MAX, HEADS_MAX = 16 * 1024, 100, 64
SESSIONS_MAX = 32
CONNECTIONS_MAX = 64
HEAD_S, PING_S = 10.0, 20.0
KEPT_S = 600.0
LEAVE_S = 2.0
REPORT_S = 30.0
"""Seconds between two reports of a running program, which is use even when no data is sent."""
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><link rel="stylesheet" href="{assets}terminal.css"></head>
<body><noscript>The terminal needs JavaScript.</noscript>
<main id="terminal" data-title="{title}" data-nonce="{nonce}"></main>
<script type="module" src="{assets}terminal.js"></script></body></html>
"""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""xterm.js creates style elements; the page's script marks them with the nonce of this answer."""


class TerminalClient(NamedTuple):
    """A client of a session: the first byte that it needs, and whether it will confirm received output."""

    session: ShellSession
    client: str
    offset: int
    acks: bool


class TerminalServer:
    """The sessions, and the access rules for them."""

    def __init__(
        self, prefix: str, env: dict[str, str], *, program: list[str], token: str = "", pod_uid: str = ""
    ) -> None:
        self._pod_uid = pod_uid
        self._token = token.encode("latin-1")
        self._prefix, self._env, self._program = prefix.rstrip("/"), env, program
        self.sessions: dict[str, ShellSession] = {}
        self._connections = 0
        self._heads: dict[asyncio.StreamWriter, None] = {}
        self._reaped = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. Above the limit of incomplete heads, close the oldest: an honest client sends its head
        at once.
        """
        self._heads[writer] = None
        if len(self._heads) > HEADS_MAX:
            oldest = next(iter(self._heads))
            del self._heads[oldest]
            oldest.transport.abort()
        self._connections += 1
        try:
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
            finally:
                self._heads.pop(writer, None)
            first, *lines = head[:-4].decode("latin-1").split("\r\n")
            if len(lines) > HEAD_FIELDS_MAX:
                return _respond(writer, 431, "text/plain", b"too many fields\n")
            method, _, rest = first.partition(" ")
            fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            path = urlsplit(rest.partition(" ")[0]).path
            if not self._is_meant(fields):
                _respond(writer, 421, "text/plain", b"another pod is meant, which had this address before\n")
            elif fields.get("upgrade", "").lower() == "websocket" and path == "/terminal":
                await self._upgrade(reader, writer, fields)
            else:
                self._answer(writer, method, path, fields)
            await writer.drain()
        except (OSError, EOFError, PeerClosedError, asyncio.LimitOverrunError, *LATE):
            pass
        finally:
            self._connections -= 1
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    def is_busy(self) -> bool:
        """Whether a program runs in a session, even without output."""
        return any(each.is_busy() for each in self.sessions.values())

    async def quiet(self) -> None:
        """Return when no program of a session runs any more."""
        while any(each.code is None for each in self.sessions.values()):
            await self._reaped.wait()

    def reap(self) -> None:
        """Collect the exit codes of ended processes, including orphans, for which no other process waits."""
        by_pid = {session.process.pid: session for session in self.sessions.values()}
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in by_pid:
                    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                    by_pid[pid].exited(code)
                    self._reaped.set()
                    self._reaped = asyncio.Event()

    # --- HTTP

    def _answer(self, writer: asyncio.StreamWriter, method: str, path: str, fields: dict[str, str]) -> None:
        if method not in ("GET", "HEAD"):
            return _respond(writer, 405, "text/plain", b"only GET\n")
        if not self._is_ours(fields):
            return _respond(writer, 403, "text/plain", b"this host name is not served\n")
        if path != "/healthz" and not self._is_known(fields):
            return _respond(writer, 401, "text/plain", _UNKNOWN)
        if path == "/healthz":
            return _respond(writer, 200, "text/plain", b"ok\n")
        if path == "/sessions":
            return _respond(writer, 200, "application/json", json.dumps({"items": self._listing()}).encode())
        if path != "/":
            return _respond(writer, 404, "text/plain", b"nothing here; the terminal is at /\n")
        # The API serves the page's files. The depth of the prefix determines the relative path to them.
        depth = fields.get("x-forwarded-prefix", self._prefix).strip("/").count("/") + 1
        title = os.environ.get("SLIPWAY_ALLOCATION_ID", "terminal")
        nonce = secrets.token_urlsafe(16)
        page = _PAGE.format(title=html.escape(title), nonce=nonce, assets="../" * depth + "assets/terminal/")
        policy = ("Content-Security-Policy", _POLICY.format(nonce=nonce))
        return _respond(writer, 200, "text/html; charset=utf-8", page.encode(), policy)

    def _listing(self) -> list[dict[str, Any]]:
        return [
            {"id": each.id, "command": each.argv, "tty": each.tty, "busy": each.is_busy(), "exitCode": each.code,
             "viewers": each.viewers, "rows": each.size[0], "cols": each.size[1]}
            for each in self.sessions.values()
        ]  # fmt: skip

    def _is_ours(self, fields: dict[str, str]) -> bool:
        """Whether the request is not from another web page. Such a page cannot send the proxy's field with a WebSocket,
        and its Origin differs from our Host.
        """
        host = fields.get("host", "")
        origin = fields.get("origin", "")
        if origin and urlsplit(origin).netloc.lower() != host.lower():
            return False
        if self._prefix and fields.get("x-forwarded-prefix", "").startswith(self._prefix):
            return True
        name = urlsplit(f"//{host}").hostname or ""
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name == "localhost"

    def _is_meant(self, fields: dict[str, str]) -> bool:
        """Whether a request of the proxy is for this pod, because a new pod may reuse the address of an old one."""
        meant = fields.get("x-slipway-pod-uid", "")
        return not meant or not self._pod_uid or meant == self._pod_uid

    def _is_known(self, fields: dict[str, str]) -> bool:
        """Whether the request has the proxy's token. It is needed because every account of a machine can connect to a
        loopback address.
        """
        given = fields.get("authorization", "").encode("latin-1")
        return not self._token or hmac.compare_digest(given, b"Bearer " + self._token)

    # --- WebSocket

    async def _upgrade(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fields: dict[str, str]
    ) -> None:
        key = fields.get("sec-websocket-key", "")
        offered = [name.strip() for name in fields.get("sec-websocket-protocol", "").split(",")]
        if not self._is_ours(fields):
            return _respond(writer, 403, "text/plain", b"a page of another origin may not do this\n")
        if not self._is_known(fields):
            return _respond(writer, 401, "text/plain", _UNKNOWN)
        if not key or fields.get("sec-websocket-version") != "13" or PROTOCOL not in offered:
            return _respond(writer, 400, "text/plain", f"speak WebSocket 13, subprotocol {PROTOCOL}\n".encode())
        if self._connections - len(self._heads) > CONNECTIONS_MAX:
            return _respond(writer, 503, "text/plain", b"too many connections\n")
        writer.write(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept_of(key)}\r\nSec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n".encode()
        )
        socket = Socket(reader, writer)
        try:
            kind, data = await asyncio.wait_for(socket.receive(), HEAD_S)
            await self._attend(socket, self._opened(kind, data))
            await socket.close(1000, "")
        except RequestRefusedError as error:
            await socket.text(type="error", message=str(error))
            await socket.close(error.code, str(error))
        return None

    def _opened(self, kind: int, data: bytes) -> TerminalClient:
        message = _message(data) if kind == TEXT else {}
        if message.get("type") != "open":
            raise RequestRefusedError(4400, "the first message must be a text with type open")
        client, offset = str(message.get("client") or secrets.token_hex(4)), _whole(message, "from", 0)
        acks = message.get("acks") is True
        named = str(message.get("session") or "")
        if named:
            session = self.sessions.get(named)
            if session is None:
                raise RequestRefusedError(
                    4404, f"there is no session {named[:64]!r}; its program has ended, or the shell was restarted"
                )
            session.redraw()
            return TerminalClient(session, client, min(offset, session.replay.end), acks)
        for session in self.sessions.values():
            if session.opener == client:  # the connection broke before the client received the session's id
                return TerminalClient(session, client, min(offset, session.replay.end), acks)
        self._forget()
        if len(self.sessions) >= SESSIONS_MAX:
            raise RequestRefusedError(4429, f"there are {SESSIONS_MAX} sessions; end one first")
        words = _words(message)
        is_tty = message.get("tty", True) is not False
        env = {**self._env, "TERM": str(message.get("term") or "xterm-256color")[:64].replace("\0", "")}
        size = (_whole(message, "rows", 24), _whole(message, "cols", 80))
        try:
            session = ShellSession(words or self._program, env, opener=client, tty=is_tty, size=size)
        except OSError as error:
            raise RequestRefusedError(4422, f"{(words or self._program)[0]} cannot be run: {error.strerror}") from error
        self.sessions[session.id] = session
        return TerminalClient(session, client, 0, acks)

    def _forget(self) -> None:
        """Remove sessions that ended long ago, and earlier ones when there are too many."""
        over = sorted((each for each in self.sessions.values() if each.is_over and not each.cursors), key=_ended_at)
        for each in over:
            if time.monotonic() - each.ended_at > KEPT_S or len(self.sessions) >= SESSIONS_MAX:
                del self.sessions[each.id]

    async def _attend(self, socket: Socket, visit: TerminalClient) -> None:
        session = visit.session
        session.left(visit.client)  # the reader was expected, and is back
        start = max(visit.offset, session.replay.first)
        session.moved(socket, start)
        works = (self._show(socket, visit, start), self._obey(socket, visit), _beat(socket))
        jobs = [asyncio.ensure_future(work) for work in works]
        is_lost = False
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()
        except PeerClosedError as error:
            is_lost = error.is_lost
            raise
        finally:
            session.left(socket, comes_back=visit.client if is_lost else "")
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _show(self, socket: Socket, visit: TerminalClient, offset: int) -> None:
        """Send the program's output, to its end."""
        session = visit.session
        await socket.text(
            type="session", id=session.id, offset=offset, truncated=offset != visit.offset, tty=session.tty,
            command=session.argv, received=session.received.get(visit.client, 0), rows=session.size[0],
            cols=session.size[1],
        )  # fmt: skip
        while True:
            for start, stream, data in session.replay.after(offset):
                await socket.output(stream, data)
                offset = start + len(data)
                if not visit.acks:
                    session.moved(socket, offset)
            if session.is_over and offset >= session.replay.end:
                return await socket.text(type="exit", code=session.code)
            if offset >= session.replay.end:
                await session.news()

    async def _obey(self, socket: Socket, visit: TerminalClient) -> None:
        """Pass input on and carry out the client's messages, until it leaves."""
        session = visit.session
        while True:
            kind, data = await socket.receive()
            if kind != TEXT:
                await socket.text(type="received", bytes=await session.write(visit.client, data))
                continue
            message = _message(data)
            what = message.get("type")
            if what == "resize":
                session.resize(_whole(message, "rows", 24), _whole(message, "cols", 80))
            elif what == "seen":
                session.moved(socket, min(_whole(message, "offset", 0), session.replay.end))
            elif what == "eof":
                await session.end_input()
            elif what == "kill":
                session.kill(signal.SIGHUP)
            else:
                raise RequestRefusedError(4400, "unknown message")


def main() -> int:
    """Serve until SIGTERM. The address and the prefix are those in the environment of every pod of ours."""
    env = dict(os.environ)
    host = env.get("SLIPWAY_POD_IP", "127.0.0.1")
    if not os.access(".", os.W_OK):
        os.chdir(_shell_env(env)["HOME"])
    asyncio.run(_run(env, host, int(env.get("SLIPWAY_TERMINAL_PORT") or PORT)))
    return 0


async def _run(env: dict[str, str], host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    prefix, token = env.get("SLIPWAY_PROXY_PREFIX", ""), env.get(ENV_TOKEN, "")
    server = TerminalServer(
        prefix, _shell_env(env), program=[shell_of(env)], token=token, pod_uid=env.get(ENV_POD_UID, "")
    )
    over = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, over.set)
    loop.add_signal_handler(signal.SIGCHLD, server.reap)
    # No `async with`: since Python 3.12, its end would wait for every connection.
    listening = await asyncio.start_server(server.serve, host, port, limit=HEAD_BYTES_MAX)
    sys.stderr.write(f"terminals at http://{host}:{port}\n")
    client = Client(env)
    while not over.is_set():
        with contextlib.suppress(*LATE):
            await asyncio.wait_for(over.wait(), REPORT_S)
        if server.is_busy() and not over.is_set():
            with contextlib.suppress(ApiRefusedError, NotInTimeError, OSError, *LATE):
                await asyncio.wait_for(asyncio.to_thread(client.activity), REPORT_S)
    listening.close()
    for how in (signal.SIGHUP, signal.SIGKILL):
        for session in server.sessions.values():
            session.kill(how)
        with contextlib.suppress(*LATE):
            await asyncio.wait_for(server.quiet(), LEAVE_S)


async def _beat(socket: Socket) -> None:
    """Send pings, so that the connection does not look dead and a dead one is noticed."""
    while True:
        await asyncio.sleep(PING_S)
        await socket.ping()


def shell_of(env: dict[str, str]) -> str:
    """Return the user's shell, when it is executable, else another one."""
    named = [env.get("SLIPWAY_SHELL", ""), env.get("SHELL", "")]
    with contextlib.suppress(KeyError):
        named.append(pwd.getpwuid(os.getuid()).pw_shell)
    for path in (*named, "/bin/bash", "/usr/bin/bash", "/bin/sh"):
        if path and os.access(path, os.X_OK) and not path.endswith(("nologin", "false")):
            return path
    return "/bin/sh"


def _shell_env(env: dict[str, str]) -> dict[str, str]:
    made = with_home({**env, "SHELL": shell_of(env)})
    try:
        made.setdefault("USER", pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        made.setdefault("USER", "user")
        made.setdefault("PS1", r"\w\$ ")  # bash would show: I have no name!
    return made


def _respond(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes, *more: tuple[str, str]) -> None:
    words = {
        200: "OK",
        405: "Method Not Allowed",
        400: "Bad Request",
        401: "Unauthorized",
        403: "Forbidden",
        404: "Not Found",
        421: "Misdirected Request",
        431: "Request Header Fields Too Large",
    }
    fields = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"), *more]
    fields += [("X-Content-Type-Options", "nosniff"), ("Connection", "close")]
    head = "".join(f"{name}: {value}\r\n" for name, value in fields)
    writer.write(f"HTTP/1.1 {status} {words.get(status, 'Unavailable')}\r\n{head}\r\n".encode() + body)


def _message(data: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(data)
    except ValueError as error:
        raise RequestRefusedError(4400, "not JSON") from error
    if not isinstance(found, dict):
        raise RequestRefusedError(4400, "not an object")
    return cast("dict[str, Any]", found)


def _words(message: dict[str, Any]) -> list[str]:
    given: Any = message.get("command") or []
    if not isinstance(given, list):
        raise RequestRefusedError(4400, "command must be a list of texts")
    words = cast("list[Any]", given)
    if not all(isinstance(word, str) and "\0" not in word for word in words):
        raise RequestRefusedError(4400, "command must be a list of texts")
    return words


def _whole(message: dict[str, Any], name: str, default: int) -> int:
    value = message.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestRefusedError(4400, f"{name} must be a whole number")
    return value


def _ended_at(session: ShellSession) -> float:
    return session.ended_at
