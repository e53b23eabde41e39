"""A real S3 server for tests: the Versity gateway over a folder, built from its Go module; and a proxy with faults
before it.

Owns where the program comes from, its process, its account, and the faults of the proxy. The module is pinned in
`s3gateway/go.mod`. Must not know what the objects mean.
"""

import asyncio
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Final

from tests.conformance.cluster import binaries
from tests.support.ports import free_port
from tests.support.wait import wait_until

MODULE: Final = Path(__file__).resolve().parent / "s3gateway"
BUCKET: Final = "logs"
KEY_ID: Final = "slipway-test"
KEY: Final = "a-key-of-this-test-only"
REGION: Final = "us-east-1"
READY_S: Final = 30.0
_CHUNK: Final = 64 * 1024
_SLOW_DOWN: Final = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)


def find() -> str:
    """The path of the program; empty when there is no Go to build it with."""
    try:
        return str(binaries.build_tools(MODULE, ("tool",)) / "versitygw")
    except binaries.MissingProgramError:
        return ""


def environment(address: str, *, key: str = KEY) -> dict[str, str]:
    """The variables with which a client reaches the server at `host:port`."""
    return {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": key,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT": f"http://{address}",
    }


class S3Gateway:
    """A server over one folder, at one address; it may be stopped, and started again with its data."""

    def __init__(self, program: str, folder: Path) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._program, self._folder = program, folder
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("root/" + BUCKET, "meta"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        argv = [self._program, "--access", KEY_ID, "--secret", KEY, "--region", REGION, "--port", self.address]
        # The metadata is stored beside the objects: not every file system of a test has extended attributes.
        argv += ["posix", "--sidecar", str(self._folder / "meta"), str(self._folder / "root")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self._folder)
        wait_until(self._is_ready, "the S3 server takes connections", timeout_s=READY_S)

    def stop(self) -> None:
        """Stop the server: connections to it are refused."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None

    def objects(self) -> list[str]:
        """The paths of its objects, as files of its folder."""
        root = self._folder / "root" / BUCKET
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def running_gateway(program: str, folder: Path) -> Generator[S3Gateway]:
    """A running server with an empty bucket."""
    gateway = S3Gateway(program, folder)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


class S3FaultMode(Enum):
    """How the proxy treats each call."""

    OPEN = "passes it on"
    BUSY = "answers 503 SlowDown"
    SILENT = "takes it and answers nothing"
    LOSES_ANSWERS = "passes it on, and closes the connection before the answer"


class S3FaultProxy:
    """A proxy before an S3 server: one connection per call, so that each call meets the current mode."""

    def __init__(self, port: int) -> None:
        self.mode = S3FaultMode.OPEN
        self.calls = 0
        self.address = ""
        self._port = port
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "S3FaultProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._busy):
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._call(reader, writer)
        finally:
            self._busy.discard(task)
            writer.close()

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        body = await reader.readexactly(length)
        self.calls += 1
        mode = self.mode
        if mode is S3FaultMode.SILENT:
            await asyncio.Event().wait()
        if mode is S3FaultMode.BUSY:
            writer.write(
                b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(_SLOW_DOWN), _SLOW_DOWN)
            )
            await writer.drain()
            return
        source, sink = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            first, _, rest = head.partition(b"\r\n")
            sink.write(first + b"\r\nConnection: close\r\n" + rest + body)
            await sink.drain()
            while chunk := await source.read(_CHUNK):
                if mode is not S3FaultMode.LOSES_ANSWERS:
                    writer.write(chunk)
                    await writer.drain()
        finally:
            sink.close()
