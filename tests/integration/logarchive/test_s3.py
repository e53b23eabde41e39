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
from tests.support.archiver_scene import ArchiverScene
from tests.support.logs import end_logs
from tests.support.s3_gateway import BUCKET, DoorMode, S3Door, S3Gateway

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
async def door(gateway: S3Gateway) -> AsyncGenerator[S3Door]:
    async with S3Door(gateway.port) as found:
        yield found


def set_environment(patch: pytest.MonkeyPatch, address: str, **given: str) -> None:
    for name, value in s3_gateway.environment(address, **given).items():
        patch.setenv(name, value)


def a_scene(patch: pytest.MonkeyPatch, address: str) -> ArchiverScene:
    """A log that is archived on the server at that address."""
    set_environment(patch, address)
    return ArchiverScene(open_archive(URL, call_s=CALL_S))


async def told(scene: ArchiverScene) -> list[str]:
    """The state of the archive that the log shows."""
    lines = await scene.streams.logs.read(scene.id, limit=10_000)
    return [each.line.text for each in lines if each.line.stream == EVENT]


async def end(scene: ArchiverScene) -> None:
    """End the allocation, and let a new process close its archive."""
    await end_logs(scene.streams, scene.id)
    scene.end()
    archiver = scene.archiver()
    await archiver.step()
    scene.clock.ahead_s += 5
    await archiver.step()


async def test_a_whole_life_is_archived_read_and_deleted(
    monkeypatch: pytest.MonkeyPatch, gateway: S3Gateway, door: S3Door
) -> None:
    """The archive has many pieces; a reader gets each line once, also when the stream is gone; after its days
    nothing is left."""
    scene = a_scene(monkeypatch, door.address)
    for _ in range(4):
        await scene.print(200)
        await scene.archiver().step()
    await end(scene)
    assert await scene.numbers() == list(range(1, 801))
    bare = ArchiverScene(open_archive(URL))
    reader = ArchivedLogs(bare.streams.logs, bare.archive, bare.clock)
    assert [each.line.number for each in await reader.read(scene.id, limit=1_000)] == list(range(1, 801))
    scene.show()
    scene.clock.ahead_s += 40 * 86_400.0
    await scene.archiver(days=30).expire()
    assert gateway.objects() == []


@pytest.mark.parametrize("mode", [DoorMode.BUSY, DoorMode.SILENT, DoorMode.LOSES_ANSWERS])
async def test_a_fault_of_the_way_loses_and_doubles_nothing(
    mode: DoorMode, monkeypatch: pytest.MonkeyPatch, door: S3Door
) -> None:
    """While the fault lasts copies fail and the log shows it; afterwards the archive has each line once."""
    scene = a_scene(monkeypatch, door.address)
    archiver = scene.archiver()
    await scene.print(50)
    await archiver.step()
    door.mode = mode
    await scene.print(50, archiver)
    for _ in range(2):
        scene.clock.ahead_s += 60
        await scene.written(archiver.step())
    assert any("not archived yet" in text for text in await told(scene))
    assert archiver.is_archived(scene.id, "uid"), "the end of a pod does not wait for an archive that is away"
    door.mode = DoorMode.OPEN
    scene.clock.ahead_s += 60
    await scene.print(50, archiver)
    await archiver.step()
    await end(scene)
    assert await scene.numbers() == list(range(1, 151))


async def test_a_server_that_was_away_gets_what_the_stream_has(
    monkeypatch: pytest.MonkeyPatch, gateway: S3Gateway
) -> None:
    """The server restarts with its old content, and no line in between is missing."""
    scene = a_scene(monkeypatch, gateway.address)
    archiver = scene.archiver()
    await scene.print(50)
    await archiver.step()
    gateway.stop()
    await scene.print(50, archiver)
    scene.clock.ahead_s += 60
    await scene.written(archiver.step())
    reader = ArchivedLogs(scene.streams.logs, scene.archive, scene.clock)
    first = (await reader.read(scene.id, limit=10))[0].line
    assert (first.stream, "the archive cannot be read now" in first.text) == (EVENT, True)
    gateway.start()
    scene.clock.ahead_s += 60
    await archiver.step()
    await end(scene)
    assert await scene.numbers() == list(range(1, 101))


async def test_credentials_that_are_refused_are_named(monkeypatch: pytest.MonkeyPatch, gateway: S3Gateway) -> None:
    """The log shows that the archive refuses its credentials; once they are right, nothing is lost."""
    set_environment(monkeypatch, gateway.address, key="another-key-than-it-has")
    scene = ArchiverScene(open_archive(URL, call_s=CALL_S))
    archiver = scene.archiver()
    await scene.print(50)
    await scene.written(archiver.step())
    assert any("refuses its credentials" in text for text in await told(scene))
    with pytest.raises(DeniedError):
        await scene.archive.record(scene.id)
    right = a_scene(monkeypatch, gateway.address)
    scene.archive = right.archive
    await scene.archiver().step()
    assert await scene.numbers() == list(range(1, 51))


async def test_a_bucket_that_is_not_there_is_no_empty_archive(
    monkeypatch: pytest.MonkeyPatch, gateway: S3Gateway
) -> None:
    """A wrong bucket name in the settings would otherwise look like an archive without logs."""
    set_environment(monkeypatch, gateway.address)
    archive = LogArchive(open_archive("s3://no-such-bucket/slipway", call_s=CALL_S))
    scene = ArchiverScene()
    with pytest.raises(UnavailableError, match="there is no bucket"):
        await archive.write_record(scene.record())
    with pytest.raises(UnavailableError, match="there is no bucket"):
        await archive.records()
    with pytest.raises(UnavailableError, match="there is no bucket"):
        await archive.record(scene.id)
