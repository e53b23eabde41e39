"""Collects the evidence of a run for the audit.

Owns reading Redis, the audit log of the API server, the machines' own records, and the firehose during the run. It does
not use the fault proxy.
"""

import asyncio
import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import redis
import redis.asyncio

from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.model.events import AllocationEvent
from slipway.model.times import parse_time
from slipway.ops.audit.evidence import PODS, ContainerRun, FencedWrite, Version
from slipway.streams import codec, keys
from slipway.streams.pages import events as events_of
from slipway.streams.ports import NoTally
from tests.conformance.kubelets.records import Run

COUNT = 500
AGAIN_S = 0.3
BLOCK_MS = 1000
MAIN = "main"
BINDER = "slipway-podworker"
_UNREAD = (401, 403, 429)
Json = dict[str, Any]


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a run's Redis, not through the fault proxy."""

    port: int
    host: str = "127.0.0.1"
    password: str | None = None
    is_tls: bool = False
    """whether it uses TLS; its certificate is not verified, because it belongs to the release that was just
    installed"""

    def options(self) -> Json:
        """The options of a client."""
        found: Json = {"host": self.host, "port": self.port, "password": self.password}
        return {**found, "ssl": True, "ssl_cert_reqs": "none", "ssl_check_hostname": False} if self.is_tls else found


class Firehose:
    """Reads every entry of the firehose as it is written, while Redis answers."""

    def __init__(self, address: RedisAddress) -> None:
        self.heard: list[AllocationEvent] = []
        self._address = address
        self._last: dict[bytes, bytes] = {}
        self._seen: set[tuple[bytes, bytes]] = set()

    async def run(self) -> None:
        """Read until cancelled. Each entry is read once, also when the reader has to restart after a loss."""
        while True:
            client: Any = redis.asyncio.Redis(**self._address.options(), socket_timeout=5.0)
            with contextlib.suppress(redis.RedisError, OSError, TimeoutError):
                await self._listen(client)
            with contextlib.suppress(redis.RedisError, OSError, TimeoutError):
                await client.aclose()
            # Redis may have older or newer entries now than those read last: all of it is read again.
            self._last.clear()
            await asyncio.sleep(AGAIN_S)

    async def _listen(self, client: Any) -> None:
        while True:
            places = {key.encode(): self._last.get(key.encode(), b"0") for key in keys.EVENT_KEYS}
            for key, entries in await client.xread(places, count=COUNT, block=BLOCK_MS) or ():
                for entry_id, fields in entries:
                    self._last[key] = entry_id
                    if (key, entry_id) not in self._seen:
                        self._seen.add((key, entry_id))
                        self.heard.append(codec.decode_event(_texted(fields)))


def read_streams(address: RedisAddress) -> dict[str, list[AllocationEvent]]:
    """{AllocationID: its stream}"""
    found: dict[str, list[AllocationEvent]] = {}
    with connected(address) as client:
        for key in client.scan_iter(match=f"{keys.ALLOCATION.prefix}*", count=COUNT):
            page = [(_numbers(entry_id), _texted(fields)) for entry_id, fields in client.xrange(key)]
            name = key.decode().removeprefix(keys.ALLOCATION.prefix).strip("{}")
            found[name] = [item.event for item in events_of(page, NoTally())]
    return found


def read_pending(address: RedisAddress) -> int:
    """Hints that were delivered and not acknowledged."""
    count = 0
    with connected(address) as client:
        for key in keys.WORK_KEYS:
            with contextlib.suppress(redis.ResponseError):
                count += int(client.xpending(key, keys.WORK_GROUP)["pending"])
    return count


def read_containers(records: Path) -> list[ContainerRun]:
    """Every start of a rank's main container, from the machines' records."""
    runs: dict[tuple[str, str, int, float], Run] = {}
    for line in records.read_bytes().splitlines():
        run = msgspec.json.decode(line, type=Run)
        if run.container == MAIN and LABEL_ALLOCATION_UID in run.labels:
            runs[run.uid, run.container, run.restarts, run.started_at] = run
    return [
        ContainerRun(
            allocation_uid=run.labels[LABEL_ALLOCATION_UID],
            attempt=run.attempt,
            rank=run.rank,
            pod_uid=run.uid,
            started_at=run.started_at,
            ended_at=run.ended_at,
            code=run.code,
        )
        for run in runs.values()
    ]


class AuditLog:
    """The changes that our accounts requested from the API server, without leases."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def position(self) -> int:
        """The present end of the log."""
        return self._path.stat().st_size if self._path.exists() else 0

    def entries(self, since: int = 0) -> Iterator[Json]:
        """The entries from that position on."""
        with self._path.open("rb") as file:
            file.seek(since)
            for line in file:
                if line.endswith(b"\n"):
                    yield msgspec.json.decode(line)


def requests_of(entries: Iterable[Json]) -> list[FencedWrite]:
    """The requests in the audit's form. Of a request that was refused before its body was read only the name is
    known; it is omitted."""
    return [_request(entry) for entry in entries if entry.get("requestObject") or _has_no_body(entry)]


def writers_of(entries: Iterable[Json], versions: Sequence[Version]) -> dict[int, str]:
    """{resourceVersion: the account that wrote it}, as far as the answers show it.

    The answer to a write that changed nothing has the version of the last writer, which existed before the request.
    Bindings are answered without a version; only one account may make them.
    """
    known = {version.number: version for version in versions}
    found: dict[int, str] = {}
    for entry in entries:
        answer: Json = entry.get("responseObject") or {}
        meta: Json = answer.get("metadata") or {}
        number = str(meta.get("resourceVersion") or "")
        version = known.get(int(number)) if number.isdigit() else None
        if version is None or entry["responseStatus"].get("code", 0) >= 300:
            continue
        is_late = parse_time(entry["requestReceivedTimestamp"]) > version.at
        if not is_late and (entry["verb"] != "delete" or _marks(version)):
            found[version.number] = _account(entry)
    for version in versions:
        if version.resource == PODS and version.before and _is_binding(version.obj, version.before):
            found[version.number] = BINDER
    return found


def said(entry: Json) -> str:
    """One entry in a line."""
    about: Json = entry.get("objectRef") or {}
    what = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
    return f"{_account(entry)}: {entry['verb']} {what} {about.get('namespace', '')}/{about.get('name', '')}"


def _request(entry: Json) -> FencedWrite:
    about: Json = entry.get("objectRef") or {}
    # A JSON patch is a list, and names no object.
    body: Json = {} if entry["verb"] == "patch" else entry.get("requestObject") or {}
    meta: Json = body.get("metadata") or {}
    is_binding = about.get("subresource") == "binding"
    fences: Json = body.get("preconditions") or {}
    verb = "bind" if is_binding else str(entry["verb"])
    code = int(entry.get("responseStatus", {}).get("code", 0))
    return FencedWrite(
        process=_account(entry),
        verb=verb,
        resource=str(about.get("resource", "")),
        name=str(about.get("name", "")),
        uid=str(fences.get("uid") or meta.get("uid") or ""),
        resource_version=str(meta.get("resourceVersion") or ""),
        outcome="ok" if 200 <= code < 300 else str(code),
    )


def _has_no_body(entry: Json) -> bool:
    """Whether the request had no body; refusals and server errors occur before a body is read."""
    code = int(entry["responseStatus"].get("code", 0))
    return entry["verb"] == "delete" and code not in _UNREAD and code < 500


def _marks(version: Version) -> bool:
    """Whether it marks an object for deletion."""
    before: Mapping[str, Any] = version.before["metadata"] if version.before else {}
    return "deletionTimestamp" in version.obj["metadata"] and "deletionTimestamp" not in before


def _is_binding(obj: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    is_ours = LABEL_ALLOCATION_UID in (obj["metadata"].get("labels") or {})
    return is_ours and bool(obj["spec"].get("nodeName")) and not before["spec"].get("nodeName")


def _account(entry: Json) -> str:
    return str(entry["user"]["username"]).rpartition(":")[2]


@contextlib.contextmanager
def connected(address: RedisAddress) -> Generator[Any]:
    """A client of that Redis."""
    client: Any = redis.Redis(**address.options(), socket_timeout=10.0)
    try:
        yield client
    finally:
        client.close()


def _numbers(entry_id: bytes) -> tuple[int, int]:
    first, _, second = entry_id.decode().partition("-")
    return int(first), int(second)


def _texted(fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in fields.items()}
