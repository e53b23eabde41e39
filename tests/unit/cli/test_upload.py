"""`-c` and `-i`: small folders are sent in the launch, larger ones are uploaded once; failures are reported."""

import os
from pathlib import Path

from slipway.api.settings import Settings
from slipway.kube.resources import CONFIG_MAPS
from slipway.pods.context import LABEL_CONTEXT
from tests.support.api_world import ApiWorld, api_world
from tests.support.cli import CliUser
from tests.support.http_stub import serve_app

RUN = ("run", "--image", "a", "-d")


def a_large_folder(root: Path) -> Path:
    """A folder that is too large for a launch."""
    root.mkdir()
    (root / "noise").write_bytes(os.urandom(300_000))
    return root


async def test_a_small_folder_goes_with_the_launch(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """A small folder is sent with the launch as `files`; nothing is uploaded."""
    (tmp_path / "train.py").write_text("print(1)")
    ran = await cli_user.run(*RUN, "--name", "small", "-c", str(tmp_path), "--", "python", "train.py")
    assert ran.code == 0, ran.err
    spec = (await world.stored("small")).spec
    assert [file.path for file in spec.files] == ["train.py"]
    assert spec.context is None


async def test_a_large_one_is_uploaded_once(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """A large folder is uploaded once, and the second launch finds it; `notebook start` has the option too."""
    root = a_large_folder(tmp_path / "in")
    first = await cli_user.run(*RUN, "--name", "first", "-c", str(root), "--", "true")
    again = await cli_user.run(*RUN, "--name", "again", "-c", str(root), "--", "true")
    more = await cli_user.run("notebook", "start", "-d", "--image", "a", "--name", "more", "-c", str(root))
    assert (first.code, again.code, more.code) == (0, 0, 0), first.err + again.err + more.err
    assert "uploaded in" in first.err
    assert "was uploaded before" in again.err
    found = {(await world.stored(name)).spec.context for name in ("first", "again", "more")}
    assert len(found) == 1
    assert found != {None}


async def test_a_dry_run_uploads_nothing(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """A dry run uploads nothing and says so."""
    root = a_large_folder(tmp_path / "in")
    ran = await cli_user.run(*RUN, "--dry-run", "-c", str(root), "--", "true")
    assert ran.code == 0, ran.err
    assert "uploads nothing" in ran.err
    assert (await world.kube.list(CONFIG_MAPS, label_selector=LABEL_CONTEXT)).items == []
    assert await world.names() == []


async def test_what_the_api_refuses_is_said(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """A folder that the API refuses causes exit code 2 with the API's message."""
    root = a_large_folder(tmp_path / "in")
    ran = await cli_user.run(*RUN, "-n", "nowhere", "-c", str(root), "--", "true")
    assert ran.code == 2
    assert "there is no namespace nowhere" in ran.err


async def test_an_empty_folder(cli_user: CliUser, tmp_path: Path) -> None:
    """An empty folder is refused, because there is nothing to send."""
    ran = await cli_user.run(*RUN, "-c", str(tmp_path), "--", "true")
    assert (ran.code, "the folder is empty" in ran.err) == (2, True)


async def test_a_server_that_takes_less(tmp_path: Path) -> None:
    """A server that refuses the size answers before it has read everything: its message is shown, not the broken
    connection."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "noise").write_bytes(os.urandom(8_000_000))
    async with (
        api_world(Settings(context_bytes_max=1_000_000)) as small,
        serve_app(small.app, before_stop=small.stop.set) as url,
    ):
        ran = await CliUser(url).run(*RUN, "-c", str(tmp_path / "in"), "--", "true")
    assert ran.code == 1
    assert "at most 1000000 bytes are allowed" in ran.err
