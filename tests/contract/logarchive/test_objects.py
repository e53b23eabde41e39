"""The rules that the archive of logs needs of an object store, for each implementation: in memory, in a folder, on S3.

`SLIPWAY_TEST_ARCHIVE_URL` adds a server of your own, such as gs://bucket/prefix with the variables `GOOGLE_*`.
"""

import asyncio
import os
import uuid
from collections.abc import Generator
from pathlib import Path

import pytest

from slipway.logarchive.archive import ArchiveObjects
from slipway.logarchive.objects import open_archive
from slipway.runtime.clock import SystemClock
from tests.support import s3_gateway
from tests.support.archive_objects import MemoryObjects

SERVER = "SLIPWAY_TEST_ARCHIVE_URL"


@pytest.fixture(scope="module")
def s3_address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """`host:port` of a real S3 server."""
    program = s3_gateway.find()
    if not program:
        pytest.skip("there is no Go to build an S3 server with")
    with s3_gateway.running_gateway(program, tmp_path_factory.mktemp("s3")) as gateway:
        yield gateway.address


@pytest.fixture(params=["memory", "folder", pytest.param("s3", marks=pytest.mark.costly), "server"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchiveObjects:
    match request.param:
        case "memory":
            return MemoryObjects()
        case "folder":
            return open_archive((tmp_path / "a folder").as_uri())
        case "s3":
            for name, value in s3_gateway.environment(request.getfixturevalue("s3_address")).items():
                monkeypatch.setenv(name, value)
            return open_archive(f"s3://{s3_gateway.BUCKET}/{uuid.uuid4()}")
        case _:
            if SERVER not in os.environ:
                pytest.skip(f"{SERVER} names no server")
            return open_archive(f"{os.environ[SERVER]}/{uuid.uuid4()}")


async def test_an_object_is_created_once(objects: ArchiveObjects) -> None:
    """A second create fails, and the first object stays."""
    assert await objects.create("v1/a", b"one")
    assert not await objects.create("v1/a", b"two")
    assert await objects.get("v1/a") == b"one"


async def test_of_several_creators_one_succeeds(objects: ArchiveObjects) -> None:
    """Of several concurrent creators one succeeds."""
    made = await asyncio.gather(*(objects.create("v1/a", b"%d" % number) for number in range(8)))
    assert sum(made) == 1
    assert await objects.get("v1/a") == b"%d" % made.index(True)


async def test_put_replaces(objects: ArchiveObjects) -> None:
    """A put replaces an existing object."""
    await objects.put("v1/a", b"one")
    await objects.put("v1/a", b"two")
    assert await objects.get("v1/a") == b"two"


async def test_what_is_not_there_is_none(objects: ArchiveObjects) -> None:
    """A missing object is None, and an empty folder has no paths."""
    assert await objects.get("v1/nothing") is None
    assert await objects.paths("v1/nothing/") == []


async def test_paths_come_sorted_and_in_pages(objects: ArchiveObjects) -> None:
    """Paths are sorted; a page begins after the last path of the one before; objects in other folders are not
    listed."""
    for name in ("c", "a", "d", "b"):
        await objects.create(f"v1/x/{name}", b"")
    await objects.create("v1/xy/z", b"")
    assert await objects.paths("v1/x/", limit=3) == ["v1/x/a", "v1/x/b", "v1/x/c"]
    assert await objects.paths("v1/x/", after="v1/x/c", limit=3) == ["v1/x/d"]


async def test_deleting_what_is_not_there_is_no_error(objects: ArchiveObjects) -> None:
    """A delete of a missing object is no error, so that it can be repeated."""
    await objects.create("v1/a", b"")
    await objects.delete(["v1/a", "v1/b"])
    await objects.delete(["v1/a"])
    assert await objects.paths("v1/") == []


async def test_bytes_come_back_as_they_were(objects: ArchiveObjects) -> None:
    """An object is read back byte by byte, also when it is large and no text."""
    data = bytes(range(256)) * 8192
    await objects.create("v1/logs/large", data)
    assert await objects.get("v1/logs/large") == data


async def test_sizes_are_those_of_the_objects(objects: ArchiveObjects) -> None:
    """Sizes are listed in the order of paths, in pages as paths are, each with the time at which it was stored."""
    for name, count in (("b", 20), ("a", 3), ("c", 0)):
        await objects.create(f"v1/x/{name}", b"." * count)
    found = [*await objects.sizes("v1/x/", limit=2), *await objects.sizes("v1/x/", after="v1/x/b")]
    assert [(each.path, each.bytes) for each in found] == [("v1/x/a", 3), ("v1/x/b", 20), ("v1/x/c", 0)]
    assert all(abs(each.stored_ms / 1000 - SystemClock().now()) < 600 for each in found)
