"""Logs of deleted allocations: read from the archive, by callers who could read them before."""

from pathlib import Path

from slipway.logarchive.archive import LogArchive
from slipway.logarchive.objects import open_archive
from slipway.logarchive.pieces import START, ArchiveRecord
from slipway.model.ids import AllocationId
from slipway.streams.logpacks import LogLine, StoredLine
from tests.support.access import teams_world

GONE = AllocationId("gone-0a1b2c3d")


async def archive_one(folder: Path) -> str:
    """Write the log of a deleted allocation of team-red, and return the address of the archive."""
    url = folder.as_uri()
    archive = LogArchive(open_archive(url))
    line = LogLine(attempt=1, rank=0, time="2026-01-02T03:04:05Z", text="the last words", number=1)
    record = ArchiveRecord(
        allocation=GONE,
        workspace="team-red",
        name="gone",
        uid="0a1b2c3d-0000-0000-0000-000000000000",
        ended_at="2026-01-02T03:04:06Z",
        end="5-0",
        logs={"1/0/stdout/": 1},
        main="main",
        containers=("main", "side"),
    )
    await archive.write_record(record)
    assert await archive.add("team-red", GONE, START, [StoredLine(cursor="5-0", line=line)])
    return url


async def test_an_archived_log_is_read_by_its_workspace_only(tmp_path: Path) -> None:
    """For other callers the log does not exist, with the same detail as an unknown id; no other route shows a deleted
    allocation."""
    url = await archive_one(tmp_path / "archive")
    (tmp_path / "tokens").mkdir()
    async with teams_world("token", tmp_path / "tokens", log_archive_url=url) as teams:
        red = await teams.token("ada", {"team-red": "viewer"})
        blue = await teams.token("bob", {"team-blue": "admin"})
        found = await teams.call("GET", f"/allocations/{GONE}/logs", red)
        assert (found.status_code, found.text) == (200, "the last words\n")
        hidden = await teams.call("GET", f"/allocations/{GONE}/logs", blue)
        nowhere = await teams.call("GET", "/allocations/none-0a1b2c3d/logs", blue)
        assert hidden.status_code == nowhere.status_code == 404
        assert hidden.json()["detail"].replace(GONE, "X") == nowhere.json()["detail"].replace("none-0a1b2c3d", "X")
        assert (await teams.call("GET", f"/allocations/{GONE}", red)).status_code == 404
        assert (await teams.call("GET", f"/allocations/{GONE}/context", red)).status_code == 404


async def test_an_archived_log_is_found_by_its_whole_id_only(tmp_path: Path) -> None:
    """A name or the beginning of an id finds only existing allocations; a text that is no id is not looked for in the
    archive."""
    url = await archive_one(tmp_path / "archive")
    (tmp_path / "tokens").mkdir()
    async with teams_world("token", tmp_path / "tokens", log_archive_url=url) as teams:
        red = await teams.token("ada", {"team-red": "viewer"})
        for text in ("gone", "gone-0a1b", f"{GONE}4", f"{GONE}%0a", f"{'a' * 300}-0a1b2c3d"):
            assert (await teams.call("GET", f"/allocations/{text}/logs", red)).status_code == 404


async def test_an_archived_log_has_the_filters_of_any_log(tmp_path: Path) -> None:
    """The containers are those that the allocation had; `follow` ends at once, because no line can follow."""
    url = await archive_one(tmp_path / "archive")
    (tmp_path / "tokens").mkdir()
    async with teams_world("token", tmp_path / "tokens", log_archive_url=url) as teams:
        red = await teams.token("ada", {"team-red": "viewer"})
        for query, text in (("search=LAST", "the last words\n"), ("rank=1", ""), ("container=side", "")):
            found = await teams.call("GET", f"/allocations/{GONE}/logs?{query}", red)
            assert (found.status_code, found.text) == (200, text)
        refused = await teams.call("GET", f"/allocations/{GONE}/logs?container=other", red)
        assert refused.status_code == 400
        followed = await teams.call("GET", f"/allocations/{GONE}/logs?follow=true", red)
        assert followed.text == "the last words\n"
