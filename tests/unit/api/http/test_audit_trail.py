"""Audit events reach their reader in order and once, by their ids; the reader is also told how many were lost."""

import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.http.audit import (
    ANYWHERE,
    AUDIT,
    BATCH_MAX,
    CONTENT_TYPE,
    LOST,
    AuditFile,
    AuditTrail,
    AuditWebhook,
    FileRetention,
)
from slipway.api.main import audit_destination
from slipway.api.settings import Settings
from slipway.api.webhooks import hook
from slipway.api.webhooks.hook import key_text
from slipway.api.webhooks.sender import Sender
from slipway.errors import InvalidError, UnavailableError
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.runtime.settings import load
from tests.support.access import Teams, teams_world
from tests.support.clock import FakeClock
from tests.support.http_stub import serve

Json = dict[str, Any]
DAY_S = 86_400


class AuditReader:
    """A reader that accepts batches, unless it is away."""

    def __init__(self) -> None:
        self.is_away = False
        self.batches: list[tuple[str, list[Json]]] = []
        self.tried: list[str] = []

    async def write(self, events: Sequence[bytes], *, id_: str) -> None:
        self.tried.append(id_)
        if self.is_away:
            raise UnavailableError("the reader is away")
        self.batches.append((id_, [json.loads(each) for each in events]))

    @property
    def got(self) -> list[Json]:
        return [event for _, batch in self.batches for event in batch]


@pytest.fixture
def reader() -> AuditReader:
    return AuditReader()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def a_trail(reader: AuditReader, clock: FakeClock, *, backlog_max: int = 1000, retry_s: float = 60.0) -> AuditTrail:
    random = SeededRandom(1)
    return AuditTrail(reader, clock, random, source="/slipway/api", backlog_max=backlog_max, retry_s=retry_s)


async def test_an_event_is_a_cloud_event(reader: AuditReader, clock: FakeClock) -> None:
    """The event has an id, the source, the time, and the content of the line in the log."""
    trail = a_trail(reader, clock)
    trail.offer({"user": "ada", "status": 201}, subject="POST /api/v1/jobs")
    await trail.step()
    [event] = reader.got
    assert (event["specversion"], event["type"], event["source"]) == ("1.0", AUDIT, "/slipway/api")
    assert (event["subject"], event["data"]) == ("POST /api/v1/jobs", {"user": "ada", "status": 201})
    assert event["time"].endswith("Z")
    assert len(event["id"]) == 32


async def test_events_come_in_batches_and_in_order(reader: AuditReader, clock: FakeClock) -> None:
    """Each event has an id of its own."""
    trail = a_trail(reader, clock)
    for number in range(BATCH_MAX + 50):
        trail.offer({"number": number}, subject="x")
    await trail.step()
    await trail.step()
    assert [len(batch) for _, batch in reader.batches] == [BATCH_MAX, 50]
    assert [each["data"]["number"] for each in reader.got] == list(range(BATCH_MAX + 50))
    assert len({each["id"] for each in reader.got}) == BATCH_MAX + 50


async def test_an_unavailable_receiver_gets_the_same_batch_again(reader: AuditReader, clock: FakeClock) -> None:
    """The id is the same, so that the reader can drop a batch that it has."""
    trail = a_trail(reader, clock)
    reader.is_away = True
    trail.offer({"number": 1}, subject="x")
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await trail.step()
    reader.is_away = False
    trail.offer({"number": 2}, subject="x")
    await trail.step()
    await trail.step()
    assert len(set(reader.tried[:3])) == 1
    assert [each["data"]["number"] for each in reader.got] == [1, 2]


async def test_a_full_backlog_is_told_to_the_reader(reader: AuditReader, clock: FakeClock) -> None:
    """The reader is told how many events are missing, and from when to when, at the place where they are missing."""
    trail = a_trail(reader, clock, backlog_max=100)
    for number in range(130):
        trail.offer({"number": number}, subject="x")
    await trail.step()
    trail.offer({"number": 130}, subject="x")
    await trail.step()
    types = [each["type"] for each in reader.got]
    assert types == [*([AUDIT] * 100), LOST, AUDIT]
    lost = reader.got[100]["data"]
    assert lost["lost"] == 30
    assert lost["since"] <= lost["until"]


async def test_lost_events_are_reported_even_if_no_event_follows(reader: AuditReader, clock: FakeClock) -> None:
    """The reader is told as soon as the backlog is empty."""
    trail = a_trail(reader, clock, backlog_max=100)
    for number in range(101):
        trail.offer({"number": number}, subject="x")
    await trail.step()
    await trail.step()
    assert reader.got[-1]["type"] == LOST


async def test_a_batch_has_a_budget(reader: AuditReader, clock: FakeClock) -> None:
    """After `retry_s` a batch is given up and counted as lost, and later events are sent."""
    trail = a_trail(reader, clock, retry_s=60.0)
    reader.is_away = True
    trail.offer({"number": 1}, subject="x")
    with pytest.raises(UnavailableError):
        await trail.step()
    await clock.sleep(61)
    with pytest.raises(UnavailableError):
        await trail.step()
    reader.is_away = False
    trail.offer({"number": 2}, subject="x")
    await trail.step()
    assert [(each["type"], each["data"].get("lost")) for each in reader.got] == [(LOST, 1), (AUDIT, None)]


async def test_the_end_of_the_process_delivers_what_is_left(reader: AuditReader, clock: FakeClock) -> None:
    """The flush does not hang on a reader that is away."""
    trail = a_trail(reader, clock)
    for number in range(BATCH_MAX * 2 + 1):
        trail.offer({"number": number}, subject="x")
    await trail.flush()
    assert len(reader.got) == BATCH_MAX * 2 + 1
    reader.is_away = True
    trail.offer({"number": 0}, subject="x")
    await trail.flush()


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def keeps(**changes: int) -> FileRetention:
    return FileRetention(**{"bytes_max": 200, "files_max": 2, "days_max": 0, **changes})


async def test_a_file_is_rotated_and_the_oldest_go(tmp_path: Path) -> None:
    """Lines are whole, only our user can read the files, and no more of them are kept than the setting states."""
    file = AuditFile(tmp_path / "audit.jsonl", keeps(), SystemClock())
    for number in range(10):
        await file.write([b'{"number": %d, "x": "%s"}' % (number, b"x" * 50)] * 2, id_="")
    found = files_in(tmp_path)
    assert len(found) == 3
    for each in found:
        assert each.stat().st_mode & 0o777 == 0o600
        assert all(json.loads(line) for line in each.read_text("utf-8").splitlines())
    assert '"number": 9' in (tmp_path / "audit.jsonl").read_text("utf-8")


async def test_old_files_go(tmp_path: Path) -> None:
    """Files are deleted by their age in days; the file that is written to stays, and so do files with other names."""
    file = AuditFile(tmp_path / "audit.jsonl", keeps(days_max=30, files_max=100), SystemClock())
    old, young = (tmp_path / f"audit.jsonl.2026010{day}T000000000Z{end}" for day, end in ((1, ".1"), (2, "")))
    others = [tmp_path / f"audit.jsonl{end}" for end in (".bak", ".old", ".20260101", ".20260101T000000000Z.gz", "x")]
    for path, days in ((old, 31), (young, 29), *((other, 99) for other in others)):
        path.write_text("{}\n", "utf-8")
        at = SystemClock().now() - days * DAY_S
        os.utime(path, (at, at))
    await file.write([b"{}"], id_="")
    assert {*files_in(tmp_path)} == {tmp_path / "audit.jsonl", young, *others}


async def test_a_full_file_that_cannot_be_deleted_changes_nothing_else(tmp_path: Path) -> None:
    """The batch is written once; the other files beyond the retention are deleted."""
    file = AuditFile(tmp_path / "audit.jsonl", keeps(files_max=0), SystemClock())
    stuck, full = tmp_path / "audit.jsonl.20260101T000000000Z", tmp_path / "audit.jsonl.20260102T000000000Z"
    (stuck / "inside").mkdir(parents=True)
    full.write_text("{}\n", "utf-8")
    for number in range(3):
        await file.write([b'{"number": %d}' % number], id_="")
    lines = (tmp_path / "audit.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1, 2]
    assert files_in(tmp_path) == [tmp_path / "audit.jsonl", stuck]


async def test_a_batch_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """No part of the batch stays, so that it can be written again as a whole."""
    file = AuditFile(tmp_path / "audit.jsonl", keeps(bytes_max=10_000), SystemClock())
    await file.write([b'{"number": 0}'], id_="")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    batch = [b'{"number": %d}' % number for number in range(1, 100)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(UnavailableError, match="cannot be written"):
            await file.write(batch, id_="")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "audit.jsonl").read_bytes() == b'{"number": 0}\n'
    await file.write(batch, id_="")
    lines = (tmp_path / "audit.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(100))


async def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    """The error names the file; the batch is not lost."""
    file = AuditFile(tmp_path / "nowhere" / "audit.jsonl", keeps(), SystemClock())
    with pytest.raises(UnavailableError, match=r"audit\.jsonl cannot be written"):
        await file.write([b"{}"], id_="")


async def test_a_webhook_gets_signed_batches(tmp_path: Path) -> None:
    """The batch has the content type of CloudEvents batches. Its address may be inside the network, since the operator
    chose it. A receiver that refuses counts as away; the error of an incomplete folder names the missing files."""
    clock = SystemClock()
    sender = Sender(clock, timeout_s=5.0, allowed=ANYWHERE)
    webhook = AuditWebhook(tmp_path, sender)
    with pytest.raises(UnavailableError, match="needs the files url and key"):
        await webhook.write([b"{}"], id_="a")
    statuses, key = [204, 500], b"k" * 32

    async def answer(_request: Request) -> Response:
        return Response(status_code=statuses.pop(0))

    async with serve(answer) as stub:
        (tmp_path / "url").write_text(stub.url, "utf-8")
        (tmp_path / "key").write_text(key_text(key), "utf-8")
        await webhook.write([b'{"id": "1"}', b'{"id": "2"}'], id_="a")
        with pytest.raises(UnavailableError, match="answered 500"):
            await webhook.write([b"{}"], id_="b")
    got = stub.requests[0]
    assert json.loads(got.body) == [{"id": "1"}, {"id": "2"}]
    assert got.headers["content-type"] == CONTENT_TYPE
    stamp = got.headers[hook.TIMESTAMP]
    assert got.headers[hook.SIGNATURE] == f"v1,{hook.sign(key, 'a', stamp, got.body)}"
    await webhook.aclose()


def test_events_go_to_one_reader(tmp_path: Path) -> None:
    """The settings of a file and of a webhook are refused together; the error names both."""
    with pytest.raises(InvalidError, match="SLIPWAY_AUDIT_FILE and SLIPWAY_AUDIT_WEBHOOK_DIR"):
        load(Settings, {"SLIPWAY_AUDIT_FILE": "/a/b", "SLIPWAY_AUDIT_WEBHOOK_DIR": "/c"})
    assert audit_destination(Settings(), SystemClock()) is None
    assert isinstance(audit_destination(Settings(audit_file="/a/b"), SystemClock()), AuditFile)
    assert isinstance(audit_destination(Settings(audit_webhook_dir="/c"), SystemClock()), AuditWebhook)


async def test_the_log_and_the_receiver_get_the_same_event(
    reader: AuditReader, clock: FakeClock, tmp_path: Path
) -> None:
    """The reader gets changes, also refused ones, with the id of the request; it gets no reads and no tokens."""
    async with teams_world("token", tmp_path) as teams:
        await changes(teams, a_trail(reader, clock), reader)


async def changes(teams: Teams, trail: AuditTrail, reader: AuditReader) -> None:
    headers = await teams.token("ada", {"team-red": "editor"})
    teams.world.app.state.audit_trail = trail
    await teams.call("GET", "/allocations", headers)
    await teams.call("POST", f"/allocations/{teams.ids['red']}/kill", {**headers, "X-Request-Id": "abc"})
    await teams.call("POST", f"/allocations/{teams.ids['blue']}/kill", headers)
    await trail.step()
    killed, refused = (each["data"] for each in reader.got)
    assert (killed["user"], killed["status"], killed["requestId"]) == ("ada", 202, "abc")
    assert killed["object"] == {"id": teams.ids["red"]}
    assert (refused["user"], refused["status"]) == ("ada", 404)
    assert headers["Authorization"].removeprefix("Bearer ") not in json.dumps(reader.got)
