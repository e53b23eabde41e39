"""`slipway run` and its standard input, which reaches no rank."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.cli import main
from tests.support.cli import CliUser

WARNING = "the standard input does not reach the ranks"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(end to read, end to write)."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


async def test_input_in_a_pipe_is_not_lost_silently(
    cli_user: CliUser, monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    """Input in a pipe causes a note that it reaches no rank, and how to send it; an empty pipe causes none."""
    with os.fdopen(pipe[0], closefd=False) as given:
        monkeypatch.setattr("sys.stdin", given)
        empty = await cli_user.run("run", "-d", "--image", "i", "--", "cat")
        os.write(pipe[1], b"data\n")
        full = await cli_user.run("run", "-d", "--image", "i", "--", "cat")
    assert (empty.code, empty.err) == (main.OK, "")
    assert (full.code, WARNING in full.err, "--file PATH" in full.err) == (main.OK, True, True)


@pytest.mark.parametrize(("read", "is_told"), [(0, True), (3, False)])
async def test_input_from_a_file_is_not_lost_silently(
    cli_user: CliUser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: int, is_told: bool
) -> None:
    """Input from a file causes the same note, unless another program reads the file, as a shell reads its script: then
    the position is not at the start."""
    file = tmp_path / "input"
    file.write_text("data\n", "utf-8")
    with file.open(encoding="utf-8") as given:
        os.lseek(given.fileno(), read, os.SEEK_SET)
        monkeypatch.setattr("sys.stdin", given)
        ran = await cli_user.run("run", "-d", "--image", "i", "--", "cat")
    assert (WARNING in ran.err) is is_told
