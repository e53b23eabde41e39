"""The archive of logs on a real S3 server that is down, slow, busy, refuses, and loses its answers.

Each fault is in the server or in the connection; then it ends. Each time no line that the stream still has may be lost
or doubled, and a reader must learn while the archive cannot be read.
"""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from slipway.errors import DeniedError, UnavailableError
from slipway.logarchive.archive import LogArchive
from slipway.logarchive.objects import open_archive
from slipway.logarchive.reader import ArchivedLogs
from slipway.streams.logpacks import EVENT
from tests.support import s3_gateway
from tests.support.archiver_harness import ArchiverHarness
from tests.support.logs import end_logs
from tests.support.s3_gateway import BUCKET, S3FaultMode, S3FaultProxy, S3Gateway

pytestmark = pytest.mark.costly
URL = f"s3://{BUCKET}/slipway"
CALL_S = 2.0


@pytest.fixture(scope="module")
def program() -> str:
    """The server's program, built once."""
    found = s3_gateway.find()
    if not found:
        pytest.skip("there is no Go to build an S3 server with")
    return found


@pytest.fixture
def gateway(program: str, tmp_path: Path) -> Generator[S3Gateway]:
    with s3_gateway.running_gateway(program, tmp_path) as found:
        yield found


@pytest.fixture
async def fault_proxy(gateway: S3Gateway) -> AsyncGenerator[S3FaultProxy]:
    async with S3FaultProxy(gateway.port) as found:
        yield found


def set_environment(patch: pytest.MonkeyPatch, address: str, **given: str) -> None:
    for name, value in s3_gateway.environment(address, **given).items():
        patch.setenv(name, value)


def a_harness(patch: pytest.MonkeyPatch, address: str) -> ArchiverHarness:
    """A log that is archived on the server at that address."""
    set_environment(patch, address)
    return ArchiverHarness(open_archive(URL, call_s=CALL_S))


async def archive_messages(harness: ArchiverHarness) -> list[str]:
    """The state of the archive that the log shows."""
    lines = await harness.streams.logs.read(harness.id, limit=10_000)
    return [each.line.text for each in lines if each.line.stream == EVENT]


async def end(harness: ArchiverHarness) -> None:
    """End the allocation, and let a new process close its archive."""
    await end_logs(harness.streams, harness.id)
    harness.end()
    archiver = harness.archiver()
    await archiver.step()
    harness.clock.ahead_s += 5
    await archiver.step()


async def test_a_whole_life_is_archived_read_and_deleted(
    monkeypatch: pytest.MonkeyPatch, gateway: S3Gateway, fault_proxy: S3FaultProxy
) -> None:
    """The archive has many pieces; a reader gets each line once, also when the stream is gone; after its days
    nothing is left."""
    harness = a_harness(monkeypatch, fault_proxy.address)
    for _ in range(4):
        await harness.print(200)
        await harness.archiver().step()
    await end(harness)
    assert await harness.numbers() == list(range(1, 801))
    bare = ArchiverHarness(open_archive(URL))
    reader = ArchivedLogs(bare.streams.logs, bare.archive, bare.clock)
    assert [each.line.number for each in await reader.read(harness.id, limit=1_000)] == list(range(1, 801))
    harness.show()
    harness.clock.ahead_s += 40 * 86_400.0
    await harness.archiver(days=30).expire()
    assert gateway.objects() == []


@pytest.mark.parametrize("mode", [S3FaultMode.BUSY, S3FaultMode.SILENT, S3FaultMode.LOSES_ANSWERS])
async def test_a_network_fault_loses_and_duplicates_no_line(
    mode: S3FaultMode, monkeypatch: pytest.MonkeyPatch, fault_proxy: S3FaultProxy
) -> None:
    """While the fault lasts copies fail and the log shows it; afterwards the archive has each line once."""
    harness = a_harness(monkeypatch, fault_proxy.address)
    archiver = harness.archiver()
    await harness.print(50)
    await archiver.step()
    fault_proxy.mode = mode
    await harness.print(50, archiver)
    for _ in range(2):
        harness.clock.ahead_s += 60
        await harness.written(archiver.step())
    assert any("not archived yet" in text for text in await archive_messages(harness))
    assert archiver.is_archived(harness.id, "uid"), "the end of a pod does not wait for an archive that is away"
    fault_proxy.mode = S3FaultMode.OPEN
    harness.clock.ahead_s += 60
    await harness.print(50, archiver)
    await archiver.step()
    await end(harness)
    assert await harness.numbers() == list(range(1, 151))


async def test_a_server_that_was_away_gets_what_the_stream_has(
    monkeypatch: pytest.MonkeyPatch, gateway: S3Gateway
) -> None:
    """The server restarts with its old content, and no line in between is missing."""
    harness = a_harness(monkeypatch, gateway.address)
    archiver = harness.archiver()
    await harness.print(50)
    await archiver.step()
    gateway.stop()
    await harness.print(50, archiver)
    harness.clock.ahead_s += 60
    await harness.written(archiver.step())
    reader = ArchivedLogs(harness.streams.logs, harness.archive, harness.clock)
    first = (await reader.read(harness.id, limit=10))[0].line
    assert (first.stream, "the archive cannot be read now" in first.text) == (EVENT, True)
    gateway.start()
    harness.clock.ahead_s += 60
    await archiver.step()
    await end(harness)
    assert await harness.numbers() == list(range(1, 101))


async def test_credentials_that_are_refused_are_named(monkeypatch: pytest.MonkeyPatch, gateway: S3Gateway) -> None:
    """The log shows that the archive refuses its credentials; once they are right, nothing is lost."""
    set_environment(monkeypatch, gateway.address, key="another-key-than-it-has")
    harness = ArchiverHarness(open_archive(URL, call_s=CALL_S))
    archiver = harness.archiver()
    await harness.print(50)
    await harness.written(archiver.step())
    assert any("refuses its credentials" in text for text in await archive_messages(harness))
    with pytest.raises(DeniedError):
        await harness.archive.record(harness.id)
    right = a_harness(monkeypatch, gateway.address)
    harness.archive = right.archive
    await harness.archiver().step()
    assert await harness.numbers() == list(range(1, 51))


async def test_a_missing_bucket_is_not_treated_as_an_empty_archive(
    monkeypatch: pytest.MonkeyPatch, gateway: S3Gateway
) -> None:
    """A wrong bucket name in the settings would otherwise look like an archive without logs."""
    set_environment(monkeypatch, gateway.address)
    archive = LogArchive(open_archive("s3://no-such-bucket/slipway", call_s=CALL_S))
    harness = ArchiverHarness()
    with pytest.raises(UnavailableError, match="there is no bucket"):
        await archive.write_record(harness.record())
    with pytest.raises(UnavailableError, match="there is no bucket"):
        await archive.records()
    with pytest.raises(UnavailableError, match="there is no bucket"):
        await archive.record(harness.id)
