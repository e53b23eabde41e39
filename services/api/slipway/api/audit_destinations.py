"""The destinations of audit events: a file that is rotated, or a webhook.

Owns the files and their retention, and the format of a request. Must not know the queue and the retries.
"""

import asyncio
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from slipway.api.webhooks.hook import Config, Webhook, parse_key
from slipway.api.webhooks.sender import Message, Sender
from slipway.errors import InvalidError, UnavailableError
from slipway.model.times import format_time
from slipway.runtime import log, private_files
from slipway.runtime.clock import Clock

CONTENT_TYPE = "application/cloudevents-batch+json; charset=utf-8"
URL, KEY = "url", "key"
"""The files in the folder of a webhook, which is a mounted Secret."""
ANYWHERE = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
"""Any address is permitted, because the operator chooses it, and not a user."""
_DAY_S = 86_400.0
_STAMP = re.compile(r"[^0-9TZ]")
_ROTATED = r"\.[0-9]{8}T[0-9]{9}Z(\.[0-9]+)?"
"""What `_rotate` appends to the name of a full file."""

_log = log.get_logger(__name__)


class FileRetention(msgspec.Struct, frozen=True, kw_only=True):
    """When a file is full, and which full files are retained."""

    bytes_max: int
    """size at which a file is full"""
    files_max: int
    """number of full files that are retained, the newest"""
    days_max: int
    """age in days after which a full file is deleted; 0 means never by age"""


class AuditFile:
    """A file with one event a line, which only our own account can read. A full file is renamed `NAME.TIME`.

    The file is opened again for each batch, because another program may have moved it away.
    """

    def __init__(self, path: Path, keeps: FileRetention, clock: Clock) -> None:
        self._path = path
        self._keeps = keeps
        self._clock = clock
        self._full_name = re.compile(re.escape(path.name) + _ROTATED)
        self._not_deleted = ""
        """why full files beyond the retention could not be deleted, at the last batch"""

    async def write(self, events: Sequence[bytes], *, id_: str) -> None:
        """Append the events. Raises UnavailableError when the file cannot be written, and holds none of them then."""
        try:
            await asyncio.to_thread(self._append, b"".join(event + b"\n" for event in events))
        except OSError as error:
            raise UnavailableError(f"{self._path} cannot be written: {error.strerror}") from error
        await asyncio.to_thread(self._keep_to_retention)

    async def aclose(self) -> None:
        """Do nothing: no file is open between batches."""

    def _append(self, lines: bytes) -> None:
        size = self._path.stat().st_size if self._path.exists() else 0
        if size and size + len(lines) > self._keeps.bytes_max:
            self._rotate()
        # Without a buffer: the buffer of a failed write would be written again by `truncate` and by `close`.
        with open(self._path, "ab", buffering=0, opener=private_files.opener) as file:
            before, rest = file.tell(), memoryview(lines)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(before)  # a reader cannot parse half a line, and the whole batch is written again
                raise

    def _rotate(self) -> None:
        stamp = _STAMP.sub("", format_time(self._clock.now()))
        fresh, number = self._path.with_name(f"{self._path.name}.{stamp}"), 0
        while fresh.exists():
            number += 1
            fresh = self._path.with_name(f"{self._path.name}.{stamp}.{number}")
        self._path.rename(fresh)

    def _keep_to_retention(self) -> None:
        """Delete the full files beyond the retention. A failure is logged: the batch itself is written."""
        failed = ""
        try:
            for file in self._beyond_retention():
                try:
                    file.unlink(missing_ok=True)
                except OSError as error:
                    failed = failed or f"{file}: {error.strerror}"
        except OSError as error:
            failed = f"{self._path.parent}: {error.strerror}"
        if failed and failed != self._not_deleted:
            _log.warning("full audit file not deleted", why=failed)
        self._not_deleted = failed

    def _beyond_retention(self) -> list[Path]:
        """Return the files that `_rotate` made and that are too many or too old. Other files are never among them."""
        full: list[tuple[float, Path]] = []
        for file in self._path.parent.iterdir():
            if self._full_name.fullmatch(file.name):
                full.append((file.stat().st_mtime, file))
        keeps, now = self._keeps, self._clock.now()
        return [
            file
            for place, (at, file) in enumerate(sorted(full, reverse=True))
            if place >= keeps.files_max or (keeps.days_max and now - at > keeps.days_max * _DAY_S)
        ]


class AuditWebhook:
    """Sends a batch of events in one request, signed like a webhook.

    The address and the key are read for each request, so that a changed Secret is used at once.
    """

    def __init__(self, folder: Path, sender: Sender) -> None:
        self._folder = folder
        self._sender = sender

    async def write(self, events: Sequence[bytes], *, id_: str) -> None:
        """Send the events once. Raises UnavailableError when the receiver did not accept them."""
        webhook = await asyncio.to_thread(self._read)
        message = Message(id=id_, body=b"[" + b",".join(events) + b"]", content_type=CONTENT_TYPE)
        result = await self._sender.send(webhook, message)
        if not result.delivered:
            raise UnavailableError(result.detail, retry_after_s=result.retry_after_s)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._sender.aclose()

    def _read(self) -> Webhook:
        try:
            url, key = ((self._folder / name).read_text("utf-8").strip() for name in (URL, KEY))
            return Webhook(name="audit", config=Config(url=url), key=parse_key(key))
        except (OSError, UnicodeDecodeError) as error:
            raise UnavailableError(f"{self._folder} needs the files {URL} and {KEY}") from error
        except InvalidError as error:
            raise UnavailableError(f"{self._folder / KEY}: {error}") from error
