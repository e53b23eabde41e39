"""The server side of WebSockets: the handshake's answer, frames, and limits for one connection.

This module owns the wire protocol and its limits. It must not know the meaning of the messages. Standard library only,
Python 3.9 or newer.

Invariants: a message is never larger than its limit, however it is cut into frames. Every wait has a timeout. Messages
that several tasks send are never mixed.

Source: RFC 6455.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import struct
from typing import Any

MESSAGE_BYTES_MAX = 1024 * 1024
TEXT_BYTES_MAX = 64 * 1024
SILENCE_S, STALL_S = 60.0, 120.0
TEXT, BINARY = 1, 2
GOING_AWAY = 1001
LATE = (asyncio.TimeoutError, TimeoutError)  # two classes before Python 3.11
_CLOSE, _PING, _PONG = 8, 9, 10
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class RequestRefusedError(Exception):
    """The request of a client is refused. `code` closes the WebSocket."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class PeerClosedError(Exception):
    """The other side is gone. `is_lost`: it did not announce this, and may come back."""

    def __init__(self, *, is_lost: bool = True) -> None:
        super().__init__()
        self.is_lost = is_lost


def accept_of(key: str) -> str:
    """Return the handshake's answer to a client's key."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()  # noqa: S324 - the RFC's


class Socket:
    """One WebSocket, after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()

    async def receive(self) -> tuple[int, bytes]:
        """Return the next text or binary message.

        Raises:
            Gone: the client closed, or was silent for too long. Refused: the client broke the protocol, or a limit.
        """
        kind, parts, size = 0, [b""], 0
        while True:
            is_last, opcode, data = await self._frame()
            if opcode == _CLOSE:
                code = struct.unpack("!H", data[:2])[0] if len(data) > 1 else 1000
                await self.close(code, "")
                raise PeerClosedError(is_lost=code == GOING_AWAY)
            if opcode == _PING:
                await self._send(_PONG, data)
            if opcode >= _CLOSE:
                continue
            if bool(opcode) == bool(kind) or opcode > BINARY:
                raise RequestRefusedError(1002, "fragments out of order")
            kind, size = opcode or kind, size + len(data)
            if size > (TEXT_BYTES_MAX if kind == TEXT else MESSAGE_BYTES_MAX):
                raise RequestRefusedError(1009, "the message is too large")
            parts.append(data)
            if is_last:
                return kind, b"".join(parts)

    async def _frame(self) -> tuple[bool, int, bytes]:
        try:
            first, second = await asyncio.wait_for(self._reader.readexactly(2), SILENCE_S)
            size = second & 0x7F
            if first & 0x70 or not second & 0x80 or (first & 0x08 and size > 125):
                raise RequestRefusedError(1002, "not a frame of a client")
            if size > 125:
                wide = await asyncio.wait_for(self._reader.readexactly(2 if size == 126 else 8), SILENCE_S)
                size = int.from_bytes(wide, "big")
            if size > MESSAGE_BYTES_MAX:
                raise RequestRefusedError(1009, "the message is too large")
            masked = await asyncio.wait_for(self._reader.readexactly(4 + size), STALL_S)
        except (OSError, EOFError, *LATE) as error:
            raise PeerClosedError() from error
        mask = (masked[:4] * (size // 4 + 1))[:size]
        plain = int.from_bytes(masked[4:], "big") ^ int.from_bytes(mask, "big")
        return bool(first & 0x80), first & 0x0F, plain.to_bytes(size, "big")

    async def text(self, **message: Any) -> None:
        await self._send(TEXT, json.dumps(message).encode())

    async def output(self, stream: int, data: bytes) -> None:
        await self._send(BINARY, bytes((stream,)) + data)

    async def ping(self) -> None:
        await self._send(_PING, b"")

    async def close(self, code: int, words: str) -> None:
        if code in (1005, 1006, 1015):
            code = 1000
        with contextlib.suppress(PeerClosedError):
            await self._send(_CLOSE, struct.pack("!H", code) + words.encode()[:120])

    async def _send(self, opcode: int, data: bytes) -> None:
        size = len(data)
        head = bytes((0x80 | opcode, min(size, 126) if size < 0x10000 else 127))
        head += b"" if size < 126 else struct.pack("!H" if size < 0x10000 else "!Q", size)
        try:
            async with self._turn:
                self._writer.write(head + data)
                await asyncio.wait_for(self._writer.drain(), STALL_S)
        except (OSError, *LATE) as error:
            raise PeerClosedError() from error
