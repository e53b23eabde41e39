"""HTTP/1.1 messages as the proxy needs them: heads, and bodies by length, by chunks or to the end.

Owns the framing. Must not know rules or Kubernetes.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

HEAD_BYTES_MAX = 256 * 1024
PIECE = 64 * 1024
_BODILESS = (204, 304)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line and the headers as received (names in lower case)."""

    first: str
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """The value of a header; empty when it is missing."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def method(self) -> str:
        """The method of a request."""
        return self.first.split(" ", 1)[0]

    @property
    def target(self) -> str:
        """The target of a request."""
        return self.first.split(" ")[1]

    @property
    def status(self) -> int:
        """The status of an answer."""
        return int(self.first.split(" ")[1])

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.get("transfer-encoding").lower()

    @property
    def is_upgrade(self) -> bool:
        return "upgrade" in self.get("connection").lower()

    def encode(self, **changed: str) -> bytes:
        """The head as bytes; `changed` headers replace those of that name (an empty value removes it)."""
        changes = {name.replace("_", "-"): value for name, value in changed.items()}
        kept = [(name, value) for name, value in self.headers if name not in changes]
        lines = [self.first, *(f"{name}: {value}" for name, value in [*kept, *changes.items()] if value)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Read the next head; None when the peer has closed between messages. Raises ConnectionError in the middle of
    one."""
    try:
        blob = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ConnectionResetError("closed in the middle of a head") from error
        return None
    first, *rest = blob.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in rest)
    return Head(first=first, headers=tuple((name.strip().lower(), value.strip()) for name, _, value in pairs))


async def pieces(
    reader: asyncio.StreamReader, head: Head, *, is_answer: bool, is_bare: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield the body piece by piece; chunks as the sender cut them. `is_bare`: the answer to a HEAD."""
    if is_answer and (is_bare or head.status in _BODILESS):
        return
    if head.is_chunked:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
        return
    length = head.get("content-length")
    left = int(length) if length else (None if is_answer else 0)
    while left is None or left > 0:
        piece = await reader.read(PIECE if left is None else min(PIECE, left))
        if not piece:
            if left is None:
                return
            raise ConnectionResetError("closed in the middle of a body")
        left = None if left is None else left - len(piece)
        yield piece


async def whole(reader: asyncio.StreamReader, head: Head, *, is_answer: bool, is_bare: bool = False) -> bytes:
    """Read the whole body."""
    return b"".join([piece async for piece in pieces(reader, head, is_answer=is_answer, is_bare=is_bare)])


def chunk(piece: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def lines(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield whole lines, each with its end, of a body in pieces; a rest without an end is dropped."""
    held = b""
    async with aclosing(parts) as taken:
        async for part in taken:
            *found, held = (held + part).split(b"\n")
            for line in found:
                yield line + b"\n"
