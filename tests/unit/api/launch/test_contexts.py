"""Uploaded archives: stored once, whole or not at all; a member that may not be in one is named."""

import asyncio
import hashlib
import tarfile
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from starlette.requests import ClientDisconnect

from slipway.api.launch.contexts import PieceCache
from slipway.api.settings import Settings
from slipway.errors import UnavailableError
from slipway.inside import fetch
from slipway.inside.fetch import ArchiveLimits
from slipway.kube.errors import Verb
from slipway.kube.resources import CONFIG_MAPS
from slipway.pods import context
from slipway.runtime import retry
from slipway.runtime.tasks import TaskGroup
from tests.support.access import teams_world
from tests.support.api_world import ApiWorld, api_world
from tests.support.archives import an_archive
from tests.support.slow_load import SlowLoad, outcome, turns

Json = dict[str, Any]
SMALL = an_archive({"train.py": b"print(1)", "data/a.txt": b"a"})
LARGE = an_archive({"noise": Random(1).randbytes(2_500_000)})


async def put(world: ApiWorld, content: Any, query: str = "", **headers: str) -> httpx2.Response:
    """An upload."""
    return await world.http.put(f"/api/v1/contexts{query}", content=content, headers=headers)


async def maps(world: ApiWorld) -> list[str]:
    """The ConfigMaps of archives."""
    listed = await world.kube.list(CONFIG_MAPS, label_selector=context.LABEL_CONTEXT)
    return sorted(item.metadata.name for item in listed.items)


async def test_an_archive_is_addressed_by_its_content(world: ApiWorld) -> None:
    """A new archive gets 201 with its SHA-256; the same bytes again get 200, and are stored once."""
    first, again = await put(world, SMALL), await put(world, SMALL)
    digest = hashlib.sha256(SMALL).hexdigest()
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.json() == {
        "id": digest, "workspace": "default", "bytes": len(SMALL), "files": 2, "unpackedBytes": 9
    }  # fmt: skip
    assert await maps(world) == [context.index_name(digest), context.piece_name(digest, 0)]
    assert (await world.get(f"/contexts/{digest}")).json() == first.json()


async def test_a_large_one_is_kept_in_pieces_and_comes_back_whole(world: ApiWorld) -> None:
    """The ranks of an allocation download what was uploaded, byte by byte."""
    id_ = (await put(world, LARGE)).json()["id"]
    assert len(await maps(world)) == 1 + -(-len(LARGE) // context.PIECE_BYTES)
    launched = await world.launch(context=id_)
    got = await world.get(f"/allocations/{launched['id']}/context")
    assert got.status_code == 200
    assert got.content == LARGE
    assert got.headers["content-length"] == str(len(LARGE))
    assert launched["spec"]["context"] == id_


async def test_a_body_without_a_length(world: ApiWorld) -> None:
    """A body in chunks is accepted as well, and its bytes are counted."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        for begin in range(0, len(SMALL), 7):
            yield SMALL[begin : begin + 7]

    assert (await put(world, chunks())).status_code == 201


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (an_archive({"../up": b""}), "'../up': leads out of the folder"),
        (an_archive({"/etc/passwd": b""}), "'/etc/passwd': must be a path below the folder"),
        (an_archive({}, kinds={"link": tarfile.SYMTYPE}), "'link': is a symbolic link"),
        (an_archive({}, kinds={"link": tarfile.LNKTYPE}), "'link': is a hard link"),
        (an_archive({}, kinds={"tty": tarfile.CHRTYPE}), "'tty': is a device"),
        (an_archive({}, kinds={"pipe": tarfile.FIFOTYPE}), "'pipe': is a pipe"),
        (SMALL[:-20], "damaged"),
        (b"PK\x03\x04 a zip", "no gzipped tar"),
        (b"", "empty"),
    ],
    ids=["up", "absolute", "symbolic link", "hard link", "device", "pipe", "cut off", "zip", "empty"],
)
async def test_what_may_not_be_in_one_is_named(world: ApiWorld, content: bytes, said: str) -> None:
    """The archive gets 422, with the member and what to do instead; nothing is stored."""
    response = await put(world, content)
    assert (response.status_code, response.json()["code"]) == (422, "invalid-archive")
    assert said in response.json()["detail"]
    assert await maps(world) == []


async def test_too_much() -> None:
    """An archive that is too long gets 413: at once if its length is announced, else as soon as too much has come."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(LARGE), 4096):
            yield LARGE[start : start + 4096]

    async with api_world(Settings(context_bytes_max=10_000)) as world:
        for content in (b"x" * 10_001, chunks()):
            response = await put(world, content)
            assert (response.status_code, response.json()["code"]) == (413, "body-too-large")
            assert ".slipwayignore" in response.json()["detail"]


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("?workspace=nowhere", 400, "there is no namespace nowhere"),
        ("?workspace=..%2Fx", 400, "there is no namespace"),
        ("?workspace=kube-system", 400, "is not a workspace"),
        ("?id=abc", 400, "64 hexadecimal digits"),
        (f"?id={'0' * 64}", 400, "send it again"),
    ],
)
async def test_bad_parameters(world: ApiWorld, query: str, status: int, said: str) -> None:
    """Each bad parameter gets 400, and the detail says what is wrong with it."""
    response = await put(world, SMALL, query)
    assert response.status_code == status
    assert said in response.json()["detail"]


async def test_another_type_of_body(world: ApiWorld) -> None:
    """Another type gets 415, with the one to send."""
    response = await put(world, b"{}", **{"content-type": "application/json"})
    assert (response.status_code, "application/gzip" in response.json()["detail"]) == (415, True)


async def test_a_known_one_is_not_read(world: ApiWorld) -> None:
    """A client that names the id of a stored archive need not send it."""
    id_ = (await put(world, SMALL)).json()["id"]
    assert (await put(world, b"", f"?id={id_}")).status_code == 200


async def test_an_interrupted_upload_is_resumed(world: ApiWorld) -> None:
    """If the API server goes away midway, there is 503 and no context; the next upload writes what is missing."""
    failing = 3

    async def before(verb: Verb, plural: str) -> None:
        nonlocal failing
        await asyncio.sleep(0)
        if verb is Verb.CREATE and plural == "configmaps":
            failing -= 1
            if failing <= 0:
                raise UnavailableError("gone")

    world.kube.before, hop = before, world.kube.before
    id_ = hashlib.sha256(LARGE).hexdigest()
    world.parts.contexts.policy = retry.QUICK
    assert (await put(world, LARGE)).status_code == 503
    assert (await world.get(f"/contexts/{id_}")).status_code == 404
    refused = await world.post("/allocations", {"kind": "command", "image": "a", "command": ["a"], "context": id_})
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/context"]
    world.kube.before = hop
    assert (await put(world, LARGE)).status_code == 201
    assert (await world.get(f"/contexts/{id_}")).status_code == 200


async def test_a_piece_of_another_index_is_replaced(world: ApiWorld) -> None:
    """The index was deleted and its pieces still exist: they are replaced, not trusted."""
    id_ = (await put(world, SMALL)).json()["id"]
    await world.kube.delete(CONFIG_MAPS, context.index_name(id_), namespace="default")
    assert (await put(world, SMALL)).status_code == 201
    launched = await world.launch(context=id_)
    assert (await world.get(f"/allocations/{launched['id']}/context")).content == SMALL


async def test_only_so_many_at_once() -> None:
    """While another upload is under way, a second one gets 429 with Retry-After."""
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncGenerator[bytes, None]:
        begun.set()
        yield SMALL[:10]
        await goes_on.wait()
        yield SMALL[10:]

    async with api_world(Settings(context_uploads_max=1)) as world, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(put(world, slow()))
        async with asyncio.timeout(10):
            await begun.wait()
        second = await put(world, SMALL)
        goes_on.set()
        assert second.status_code == 429
        assert second.headers["retry-after"]
        assert (await first).status_code == 201


async def test_one_user_sends_only_so_many_at_once(tmp_path: Path) -> None:
    """The refusal names the user and the setting; another user's upload is received beside it."""
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncGenerator[bytes, None]:
        begun.set()
        yield SMALL[:10]
        await goes_on.wait()
        yield SMALL[10:]

    async with teams_world("token", tmp_path) as teams, asyncio.TaskGroup() as tasks:
        ada, bob = [await teams.token(name, {"*": "admin"}) for name in ("ada", "bob")]
        first = tasks.create_task(put(teams.world, slow(), **ada))
        async with asyncio.timeout(10):
            await begun.wait()
        second, other = await put(teams.world, SMALL, **ada), await put(teams.world, SMALL, **bob)
        goes_on.set()
        assert second.status_code == 429
        assert second.json()["detail"].startswith("ada has 1 uploads under way")
        assert "SLIPWAY_CONTEXT_UPLOADS_PER_USER_MAX" in second.json()["detail"]
        assert (other.status_code, (await first).status_code) == (201, 200)


async def test_a_workspace_stores_only_so_many_bytes() -> None:
    """An archive above the limit gets 429, which names both sizes and what to do; one that is stored may be sent
    again."""
    async with api_world(Settings(context_workspace_bytes_max=len(SMALL) + 1000)) as world:
        assert (await put(world, SMALL)).status_code == 201
        known = await maps(world)

        async def pieces() -> AsyncGenerator[bytes, None]:
            yield LARGE

        for content in (LARGE, pieces()):
            refused = await put(world, content)
            assert (refused.status_code, refused.json()["code"]) == (429, "quota-exceeded")
            assert "SLIPWAY_CONTEXT_WORKSPACE_BYTES_MAX" in refused.json()["detail"]
        assert await maps(world) == known
        assert (await put(world, SMALL)).status_code == 200


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (ArchiveLimits(unpacked_bytes=1024 * 1024), "unpacks to more than 1048576 bytes"),
        (ArchiveLimits(members=50), "more than 50 files and folders"),
    ],
)
async def test_what_unpacks_to_too_much_is_refused_while_it_arrives(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch, limits: ArchiveLimits, said: str
) -> None:
    """An archive that unpacks to too many bytes or files is refused before the rest of it is sent."""
    bomb = an_archive({**{f"f{number}": b"" for number in range(60)}, "zeros": bytes(8 * 1024 * 1024)})
    monkeypatch.setattr(fetch, "check", partial(fetch.check, limits=limits))
    has_ended = False

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal has_ended
        yield bomb
        for _ in range(2000):
            # As over a network: other tasks run between the packets.
            await asyncio.sleep(0.005)
            yield b"\0"
        has_ended = True

    refused = await put(world, endless())
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-archive")
    assert said in refused.json()["detail"]
    assert not has_ended
    assert await maps(world) == []


async def test_an_upload_that_breaks_off_leaves_no_thread_behind(world: ApiWorld) -> None:
    """The thread that unpacks it ends, and the next upload is received."""

    async def broken() -> AsyncGenerator[bytes, None]:
        yield SMALL[:10]
        raise ClientDisconnect

    for _ in range(3 * world.parts.settings.context_uploads_max):
        assert (await put(world, broken())).status_code != 201
    async with asyncio.timeout(10):
        assert (await put(world, SMALL)).status_code == 201


async def test_of_an_allocation_without_one(world: ApiWorld) -> None:
    """The allocation gets 404, and so does a text that is no id, with what ids look like."""
    launched = await world.launch()
    assert (await world.get(f"/allocations/{launched['id']}/context")).status_code == 404
    none = await world.get("/contexts/nope")
    assert (none.status_code, "64 hexadecimal" in none.json()["detail"]) == (404, True)


async def test_a_bad_context_of_a_launch(world: ApiWorld) -> None:
    """A context that is no id, or was not uploaded, gets 422 with the pointer and how to upload."""
    for bad in ("abc", "0" * 64, "A" * 64):
        response = await world.post("/allocations", {"kind": "command", "image": "a", "command": ["a"], "context": bad})
        assert [error["pointer"] for error in response.json()["errors"]] == ["/context"]


async def test_a_piece_is_read_once_at_a_time() -> None:
    """After a read has failed, a new caller waits for the next read of the same piece."""
    pieces, load = PieceCache(1024), SlowLoad()
    async with TaskGroup() as group:
        tasks = [group.create_task(outcome(pieces.get(("a", 0), load))) for _ in range(2)]
        await turns()
        load.ends[0].set_exception(UnavailableError("away"))
        await asyncio.wait(tasks[:1])
        tasks.append(group.create_task(outcome(pieces.get(("a", 0), load))))
        await turns()
        assert load.running == 1
        load.ends[1].set_result(b"piece")
    assert isinstance(tasks[0].result(), UnavailableError)
    assert [task.result() for task in tasks[1:]] == [b"piece", b"piece"]
