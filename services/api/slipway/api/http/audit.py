"""The audit log: one line for each call that changes something: the caller, the object, the outcome.

Logged calls: all methods except the reading ones, logins by a link or at the issuer, and every WebSocket to a workload.
Refused calls are logged too. The line names the object and its workspace, from the path, from the body, or from the
object that was created. It contains nothing else of the body, and no credentials. If an external reader is configured,
it gets each line as an event too.

Events for an external reader (`AuditTrail`): CloudEvents in a file, which is rotated, or to a webhook. A bounded
backlog is between the requests and the reader. Promises: `offer` never waits and never raises. The reader gets the
events in the order of this process, at least once; an event has the same id at every try. Events are lost when the
backlog is full, or when the reader is unavailable for longer than `retry_s`. Then the reader gets an event of type
`LOST` with the number and the times of the lost events. Losses are also counted and logged.

Not promised: an order between replicas; the delivery of the backlog of a process that is killed.
"""

import asyncio
import contextlib
import ipaddress
import re
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection

from slipway.api.auth.principal import PRINCIPAL_KEY
from slipway.api.http.problems import row_of
from slipway.api.http.request_telemetry import REQUEST_ID_KEY
from slipway.api.webhooks.hook import Config, Webhook, parse_key
from slipway.api.webhooks.sender import Message, Sender
from slipway.errors import ControlPlaneError, InvalidError, UnavailableError
from slipway.model.times import format_time
from slipway.runtime import liveness, log, private_files, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.log import LineLimit

AUDIT, LOST = "dev.slipway.audit.v1", "dev.slipway.audit.lost.v1"
BATCH_MAX = 100
LAST_S = 5.0
"""How long a process that ends tries to deliver the rest."""
_ID_BYTES = 16

_log = log.get_logger(__name__)


class AuditDestination(Protocol):
    """The external reader of audit events."""

    async def write(self, events: Sequence[bytes], *, id_: str) -> None:
        """Write all of them, or none. `id_` is the id of the batch, the same at every try. Raises TransientError."""
        ...


class AuditCloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of CloudEvents 1.0, in structured mode."""

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    time: str
    subject: str = ""
    datacontenttype: str = "application/json"
    data: Mapping[str, object]


class AuditTrail:
    """The events of one process. `source` is the name of the process in each event."""

    def __init__(
        self,
        destination: AuditDestination,
        clock: Clock,
        random: Random,
        *,
        source: str,
        backlog_max: int,
        retry_s: float,
    ) -> None:
        self._destination = destination
        self._clock = clock
        self._random = random
        self._source = source
        self._backlog_max = backlog_max
        self._retry_s = retry_s
        self._waiting: deque[bytes] = deque()
        self._batch: tuple[bytes, ...] = ()
        self._batch_id = ""
        self._failing_since: float | None = None
        self._lost = 0
        self._lost_since = 0.0
        self._something = asyncio.Event()

    def offer(self, what: Mapping[str, object], *, subject: str) -> None:
        """Queue one event with the fields of the line in the log."""
        self._something.set()
        if len(self._waiting) + len(self._batch) >= self._backlog_max:
            self._lose(1, "the backlog is full")
            return
        self._tell_of_losses()
        self._waiting.append(self._event(AUDIT, what, subject=subject))

    async def step(self) -> None:
        """Wait for events, then deliver a batch. Raises UnavailableError when this try failed."""
        with liveness.rest(lambda: self._waiting or self._batch):
            await self._something.wait()
        await self._deliver()

    def wake(self) -> None:
        """End the wait of `step`, because the process ends."""
        self._something.set()

    async def flush(self) -> None:
        """Deliver the rest, as far as the reader accepts it within `LAST_S`."""
        try:
            async with asyncio.timeout(LAST_S):
                while self._waiting or self._batch or self._lost:
                    await self._deliver()
        except (ControlPlaneError, TimeoutError):
            left = len(self._waiting) + len(self._batch) + self._lost
            _log.warning("audit events not delivered at the end of the process", events=left)

    async def _deliver(self) -> None:
        if not self._batch:
            if not self._waiting:
                self._tell_of_losses()
            taken = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            self._batch, self._batch_id = tuple(taken), self._random.token_hex(_ID_BYTES)
        try:
            if self._batch:
                await self._destination.write(self._batch, id_=self._batch_id)
        except ControlPlaneError as error:
            self._failed(error)
            raise UnavailableError(f"audit events not delivered: {error}") from error
        telemetry.AUDIT_EVENTS.labels(outcome="delivered").inc(len(self._batch))
        self._failing_since, self._batch = None, ()
        if not self._waiting and not self._lost:
            self._something.clear()

    def _failed(self, error: ControlPlaneError) -> None:
        """Give the batch up when it has failed for `retry_s`, so that the next events are delivered."""
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._retry_s:
            given_up, self._batch = len(self._batch), ()
            self._failing_since = None
            self._lose(given_up, str(error))

    def _lose(self, events: int, why: str) -> None:
        if not self._lost:
            self._lost_since = self._clock.now()
            _log.error("audit events lost", why=why, how="check the reader, or raise SLIPWAY_AUDIT_BACKLOG_MAX")
        self._lost += events
        telemetry.AUDIT_EVENTS.labels(outcome="lost").inc(events)

    def _tell_of_losses(self) -> None:
        if self._lost and len(self._waiting) < self._backlog_max:
            told = {"lost": self._lost, "since": format_time(self._lost_since), "until": format_time(self._clock.now())}
            self._waiting.append(self._event(LOST, told, subject="audit"))
            self._lost = 0

    def _event(self, type_: str, data: Mapping[str, object], *, subject: str) -> bytes:
        return msgspec.json.encode(
            AuditCloudEvent(
                id=self._random.token_hex(_ID_BYTES),
                source=self._source,
                type=type_,
                time=format_time(self._clock.now()),
                subject=subject,
                data=data,
            )
        )


STATUS_KEY = "slipway.audit.status"
TRAIL = "audit_trail"
"""The attribute of the application's state with the external reader."""
OBJECT_KEY, WORKSPACE_KEY = "slipway.audit.object", "slipway.audit.workspace"
_ASKED = ("name", "url", "kind")
READING = ("GET", "HEAD", "OPTIONS")
_NAME_MAX = 256
_REFUSED = 400
STRANGERS_MAX = 60
"""Refused calls of unknown callers that are logged in a minute, for each status. Any program that can reach the api can
make such calls. The limit keeps room for the calls of users, in the log and in the queue of the external reader."""


@contextlib.contextmanager
def log_call(
    connection: HTTPConnection, route: str, *, is_in_query: bool = False, is_change: bool = False
) -> Generator[None]:
    """Log the call that is made inside, after it was answered or refused.

    `is_in_query`: the route has a parameter `workspace`; other routes ignore a parameter of that name.
    `is_change`: the call is a GET that changes something, such as a login link.
    """
    method = str(connection.scope.get("method", "WEBSOCKET"))
    if method in READING and not is_change:
        yield
        return
    try:
        yield
    except ControlPlaneError as error:
        set_status(connection, row_of(error).status)
        raise
    finally:
        _tell(connection, method, route, connection.query_params.get("workspace", "") if is_in_query else "")


def set_status(connection: HTTPConnection, status: int) -> None:
    """Record the status of the answer."""
    connection.scope[STATUS_KEY] = status


def note_body(connection: HTTPConnection, body: Mapping[str, Any]) -> None:
    """Record the object that a body names, also for a refused call. Its workspace is used if no other is known."""
    named = {name: body[name] for name in _ASKED if isinstance(body.get(name), str)}
    if "url" in named:
        # The path and the query of a webhook's URL often hold its credential.
        named["url"] = _host_of(named["url"])
    workspace = "" if connection.scope.get(WORKSPACE_KEY) else body.get("workspace")
    note_object(connection, named, workspace=workspace if isinstance(workspace, str) else "")


def note_object(connection: HTTPConnection, names: Mapping[str, str], *, workspace: str = "") -> None:
    """Record the object that a call names or has created; a later name replaces an earlier one."""
    connection.scope.setdefault(OBJECT_KEY, {}).update(names)
    if workspace:
        connection.scope[WORKSPACE_KEY] = workspace


def log_item(connection: HTTPConnection, verb: str, names: Mapping[str, str], workspace: str, status: int) -> None:
    """Write the line of one object of a request that changes many. The request has a line of its own too."""
    user, via = _caller(connection)
    line: dict[str, Any] = {
        "user": user,
        "via": via,
        "method": str(connection.scope.get("method", "WEBSOCKET")),
        "route": connection.scope["path"],
        "verb": verb,
        "object": {name: value[:_NAME_MAX] for name, value in names.items()},
        "workspace": workspace,
        "status": status,
    }
    _write(connection, line)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _tell(connection: HTTPConnection, method: str, route: str, asked_workspace: str) -> None:
    user, via = _caller(connection)
    status = connection.scope.get(STATUS_KEY, 500)
    found: dict[str, str] = connection.scope.get(OBJECT_KEY, {})
    workspace = str(connection.scope.get(WORKSPACE_KEY) or asked_workspace)
    line: dict[str, Any] = {
        "user": user,
        "via": via,
        "method": method,
        "route": route,
        "object": {name: str(value)[:_NAME_MAX] for name, value in {**found, **connection.path_params}.items()},
        "workspace": workspace[:_NAME_MAX],
        "status": status,
    }
    _write(connection, line)


def _write(connection: HTTPConnection, line: dict[str, Any]) -> None:
    """Write the line to the log, and with the id of the request to the external reader (each log line has the id).

    Only the first refused calls of unknown callers in a minute are logged; the next line has the number of the others.
    """
    if not line["user"] and line["status"] >= _REFUSED:
        limit: LineLimit = connection.app.state.audit_limit
        withheld = sum(count for _, count in limit.ended())
        if not limit.admits(str(line["status"])):
            return
        line |= {"withheld": withheld} if withheld else {}
    _log.info("audit", **line)
    trail: AuditTrail | None = getattr(connection.app.state, TRAIL, None)
    if trail is not None:
        record = {**line, "requestId": connection.scope.get(REQUEST_ID_KEY, "")}
        trail.offer(record, subject=f"{line['method']} {line['route']}")


def _caller(connection: HTTPConnection) -> tuple[str, str]:
    """Return (the user, the kind or id of the credential); both empty for an unknown caller."""
    principal = connection.scope.get(PRINCIPAL_KEY)
    caller = getattr(connection.state, "caller", None)
    if caller is not None:
        return f"task {caller.pod}"[:_NAME_MAX], "task"
    return (principal.name[:_NAME_MAX], principal.via) if principal is not None else ("", "")


CONTENT_TYPE = "application/cloudevents-batch+json; charset=utf-8"
URL, KEY = "url", "key"
"""The files in the folder of a webhook, which is a mounted Secret."""
ANYWHERE = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
"""Any address is permitted, because the operator chooses it, and not a user."""
_DAY_S = 86_400.0
_STAMP = re.compile(r"[^0-9TZ]")
_ROTATED = r"\.[0-9]{8}T[0-9]{9}Z(\.[0-9]+)?"
"""What `_rotate` appends to the name of a full file."""


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
