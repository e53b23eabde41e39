"""Scalars from the files of training programs."""

import json
import struct
from pathlib import Path

import pytest

from slipway.local.pages import scalars
from slipway.local.pages.scalars import POINTS_MAX, read_scalars


def field(number: int, wire: int, payload: bytes) -> bytes:
    return bytes([number << 3 | wire]) + payload


def sized(number: int, payload: bytes) -> bytes:
    return field(number, 2, bytes([len(payload)]) + payload)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def record(step: int, *values: bytes) -> bytes:
    """One record of an event file; checksums are not checked."""
    summary = b"".join(sized(1, value) for value in values)
    event = field(1, 1, struct.pack("<d", 1.0)) + field(2, 0, varint(step)) + sized(5, summary)
    return struct.pack("<QI", len(event), 0) + event + b"\0" * 4


def simple(tag: str, value: float) -> bytes:
    return sized(1, tag.encode()) + field(2, 5, struct.pack("<f", value))


def tensor(tag: str, value: float) -> bytes:
    return sized(1, tag.encode()) + sized(8, field(1, 0, b"\1") + sized(4, struct.pack("<f", value)))


def test_event_files_are_read(tmp_path: Path):
    """Event files of old and new writers are read, with large steps too; a folder is a run."""
    run = tmp_path / "train"
    run.mkdir()
    content = record(1, simple("loss", 2.5), tensor("acc", 0.5)) + record(70_000, simple("loss", 1.5))
    (run / "events.out.tfevents.1.host").write_bytes(content)
    assert read_scalars(tmp_path).runs == {"train": {"loss": [(1, 2.5), (70_000, 1.5)], "acc": [(1, 0.5)]}}


def test_a_file_that_is_being_written_is_read_so_far(tmp_path: Path):
    """A file that is being written is read up to its last complete record."""
    content = record(1, simple("loss", 2.0)) + record(2, simple("loss", 1.0))[:-9]
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    assert read_scalars(tmp_path).runs == {".": {"loss": [(1, 2.0)]}}


def test_lines_of_json_are_read(tmp_path: Path):
    """Lines of JSON are read for their numbers; other lines are skipped; without a step the line number is the step."""
    rows = [json.dumps({"step": 5, "loss": 1, "note": "x", "done": True}), "{half", json.dumps({"loss": float("nan")})]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows, json.dumps({"loss": 3})]))
    assert read_scalars(tmp_path).runs == {".": {"loss": [(3, 3.0), (5, 1.0)]}}


@pytest.mark.parametrize(
    "line",
    [
        '{"step": "two", "loss": 9}',
        '{"step": [2], "loss": 9}',
        '{"step": true, "loss": 9}',
        '{"step": Infinity, "loss": 9}',
        '{"step": NaN, "loss": 9}',
        '{"step": 1' + "0" * 400 + ', "loss": 9}',
        '{"step": 2, "loss": 1' + "0" * 400 + "}",
        "[" * 100_000,
    ],
)
def test_a_line_with_a_value_that_is_no_number_is_left_out(tmp_path: Path, line: str):
    """A line whose step or value is no number is skipped, and the other lines are read."""
    (tmp_path / "m.jsonl").write_text("\n".join(['{"step": 1, "loss": 2}', line, '{"step": 3, "loss": 1}']))
    assert read_scalars(tmp_path).runs == {".": {"loss": [(1, 2.0), (3, 1.0)]}}


def test_a_step_that_is_null_is_no_step(tmp_path: Path):
    """A step that is null is replaced by the line number."""
    (tmp_path / "m.jsonl").write_text('{"step": 1, "loss": 2}\n{"loss": 3}\n{"step": null, "loss": 1}')
    assert read_scalars(tmp_path).runs == {".": {"loss": [(1, 2.0), (1, 3.0), (2, 1.0)]}}


def test_long_curves_are_thinned(tmp_path: Path):
    """Long curves are thinned; the first and the last point stay."""
    rows = [json.dumps({"step": step, "loss": step}) for step in range(5000)]
    (tmp_path / "m.jsonl").write_text("\n".join(rows))
    points = read_scalars(tmp_path).runs["."]["loss"]
    assert len(points) == POINTS_MAX
    assert (points[0], points[-1]) == ((0, 0.0), (4999, 4999.0))


def test_rubbish_is_left_out(tmp_path: Path):
    """Invalid content in a file of that name is ignored."""
    (tmp_path / "events.out.tfevents.1").write_bytes(b"\xff" * 200)
    (tmp_path / "events.out.tfevents.2").write_bytes(struct.pack("<QI", 3, 0) + b"\x2a\xff\xff" + b"\0" * 4)
    assert read_scalars(tmp_path).runs == {}


def test_what_a_limit_leaves_out_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file beyond the limit of files, and the end of a file that is too long, are reported; nothing else is."""
    line = '{"step": 1, "loss": 2}\n'
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(line)
    assert read_scalars(tmp_path).left_out == []
    (tmp_path / "a.jsonl").write_text(line + '{"step": 2, "loss": 1}\n')
    monkeypatch.setattr(scalars, "FILES_MAX", 1)
    monkeypatch.setattr(scalars, "FILE_BYTES_MAX", len(line))
    found = read_scalars(tmp_path)
    assert found.runs == {".": {"loss": [(1, 2.0)]}}
    assert [text.partition(":")[0].partition(",")[0] for text in found.left_out] == [
        "Only the first 1 of 2 files are shown",
        "The curves end early",
    ]
    assert "(a.jsonl)" in found.left_out[1]
