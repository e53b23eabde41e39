"""The file of a backup: damage is reported with the name of the file or the number of the line."""

import gzip
from pathlib import Path

import pytest

from slipway.crd.meta import ObjectMeta
from slipway.errors import InvalidError
from slipway.ops.backup import backup
from slipway.ops.backup.backup import FORMAT, BackupLine, BackupObject, Header

HEADER = Header(slipway_backup=FORMAT, created_at="2026-11-30T08:00:00Z", version="0.1.0", namespace="slipway-system")


def a_file(folder: Path) -> Path:
    path = folder / "backup.jsonl.gz"
    names = [f"queue-{number:03}" for number in range(300)]
    lines = [BackupLine("Queue.slipway.dev", BackupObject(metadata=ObjectMeta(name=name))) for name in names]
    backup.write_file(path, HEADER, lines)
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    header, lines = backup.read_file(a_file(tmp_path))
    assert header == HEADER
    assert (len(lines), lines[7].object.metadata.name) == (300, "queue-007")


@pytest.mark.parametrize("damage", ["middle", "end", "head", "checksum"])
def test_a_damaged_file_is_refused_in_words(damage: str, tmp_path: Path) -> None:
    """A damaged file is refused with a message, whichever part of the compression is damaged."""
    path = a_file(tmp_path)
    content = bytearray(path.read_bytes())
    match damage:
        case "middle":
            content[len(content) // 2 : len(content) // 2 + 40] = b"\xff" * 40
        case "end":
            del content[-20:]
        case "head":
            content[:2] = b"no"
        case _:
            content[-8:-4] = b"\0" * 4
    path.write_bytes(content)
    with pytest.raises(InvalidError, match=r"backup\.jsonl\.gz: the file is incomplete, damaged, or not gzip"):
        backup.read_file(path)


@pytest.mark.parametrize("at", range(0, 240, 8))
def test_bytes_that_were_changed_are_no_traceback(at: int, tmp_path: Path) -> None:
    """Changed bytes cause no traceback, although the compression library raises its own error for some of them."""
    path = a_file(tmp_path)
    content = bytearray(path.read_bytes())
    place = 20 + at * (len(content) - 60) // 240
    content[place : place + 12] = bytes(255 - each for each in content[place : place + 12])
    path.write_bytes(content)
    with pytest.raises(InvalidError):
        backup.read_file(path)


def test_an_empty_file_is_no_backup(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(InvalidError, match="line 1 does not belong to a backup"):
        backup.read_file(path)
