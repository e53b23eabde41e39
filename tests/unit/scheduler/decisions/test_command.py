"""`slipway replay` of a file: its output and its exit codes."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from slipway.cli.main import main
from slipway.model.facts import PoolFact
from slipway.scheduler.decisions import record
from slipway.scheduler.decisions.record import line_of
from slipway.scheduler.recorder import OLD_SUFFIX, FileSink
from slipway.streams.decisions import DecisionEntry
from tests.support.planner import a_node, a_role, an_allocation
from tests.support.recording_leader import RecordingLeader


async def a_log(path: Path, *, shadow: PoolFact | None = None, count: int = 3, pool: str = "default") -> Path:
    """Write a log file with `count` recorded ticks, and return its path."""
    leadership = RecordingLeader(FileSink(path, size_max=1 << 20), pool=pool)
    leadership.furnish(*(a_node(f"n{index}", cpu=4) for index in range(3)), pool=PoolFact(name=pool, shadow=shadow))
    for number in range(count):
        leadership.submit(*(an_allocation(f"a{number}-{index}", a_role(1), pool=pool) for index in range(2)))
        assert leadership.tick().admits
    await leadership.recorder.flush()
    return path


def forged(path: Path) -> None:
    """Rewrite the last record: its first admission names another node, and its seal is valid."""
    lines = path.read_bytes().splitlines(keepends=True)
    line = json.loads(lines[-1])
    made = record.unpack(msgspec.json.decode(json.dumps(line["data"]), type=bytes))
    first, *rest = made.decided.admits
    elsewhere = "n2" if first.placements[0] != "n2" else "n0"
    moved = msgspec.structs.replace(first, placements={0: elsewhere})
    decided = msgspec.structs.replace(made.decided, admits=(moved, *rest))
    data = record.pack(msgspec.structs.replace(made, decided=decided))
    entry = DecisionEntry(chain=line["chain"], number=line["number"], tick=line["tick"], data=data)
    path.write_bytes(b"".join([*lines[:-1], line_of("default", entry)]))


async def test_a_sound_log_is_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 0, and one line states that the log was reproduced."""
    path = await a_log(tmp_path / "log")
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out == (
        "ticks 1 to 3 of pool default: 3 ticks, 6 decisions, recorded by test; reproduced bit for bit\n"
    )
    assert main(["replay", str(path), "--from", "2", "--to", "2", "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["first"], report["last"], report["ticks"], report["differences"]) == (2, 2, 1, [])


async def test_a_difference_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1; the output names the tick, the allocation, the recorded decision and the replayed one."""
    path = await a_log(tmp_path / "log")
    forged(path)
    assert main(["replay", str(path)]) == 1
    said = capsys.readouterr().out
    assert "NOT reproduced, 1 difference" in said
    assert "tick 3: admit default/a2-0: recorded {" in said


def _cut(text: bytes) -> bytes:
    return text[: len(text) // 2]


def _flip(text: bytes) -> bytes:
    return text[:80] + bytes([text[80] ^ 1]) + text[81:]


def _longer(text: bytes) -> bytes:
    return text.replace(b'"data":"', b'"data":"x', 1)


def _foreign(text: bytes) -> bytes:
    return b"not a log\n" + text


def _nothing(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("spoil", [_cut, _flip, _longer, _foreign, _nothing])
async def test_a_damaged_log_is_refused(
    tmp_path: Path, spoil: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged log gets exit code 2, and a message without a traceback."""
    path = await a_log(tmp_path / "log")
    path.write_bytes(spoil(path.read_bytes()))
    assert main(["replay", str(path)]) == 2
    assert "error:" in capsys.readouterr().err


async def test_another_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay with another policy prints what that policy would decide; a difference is no failure."""
    path = await a_log(tmp_path / "log", count=1)
    policy = tmp_path / "policy.yaml"
    policy.write_text("scores: {MostAllocated: 1}\nbackfill: false\n")
    assert main(["replay", str(path), "--policy", str(policy)]) == 0
    said = capsys.readouterr().out
    assert "the other policy makes 1 of these decisions and decides 1 differently" in said
    assert "tick 1: would admit default/a0-1 differently: n0, not n1" in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scores: {Nope: 1}", "scores.Nope"),
        ("skores: {}", "skores: unknown field"),
        ("backfill: maybe", "backfill"),
        ("aging: soon", "aging|duration|soon"),
        ("- 1", "must be a mapping"),
        ("{", "neither YAML nor JSON"),
    ],
)
async def test_a_bad_policy(tmp_path: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad policy file is refused with exit code 2, and the error names the wrong field."""
    path = await a_log(tmp_path / "log", count=1)
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    assert main(["replay", str(path), "--policy", str(policy)]) == 2
    error = capsys.readouterr().err
    assert any(part in error for part in told.split("|")), error


async def test_the_shadow_of_that_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--shadow` replays with the shadow policy that the recorded facts contain."""
    packed = PoolFact(name="default", scores={"MostAllocated": 1})
    path = await a_log(tmp_path / "log", count=1, shadow=packed)
    assert main(["replay", str(path), "--shadow"]) == 0
    assert "tick 1: would admit default/a0-1 differently: n0, not n1" in capsys.readouterr().out


async def test_pools_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with records of several pools needs `--pool`; without it the exit code is 2."""
    path = await a_log(tmp_path / "log", pool="default")
    other = await a_log(tmp_path / "other", pool="default")
    path.write_bytes(path.read_bytes() + other.read_bytes().replace(b'"pool":"default"', b'"pool":"other"'))
    assert main(["replay", str(path)]) == 2
    assert "--pool" in capsys.readouterr().err
    assert main(["replay", str(path), "--pool", "default"]) == 0


async def test_a_file_begins_anew_beyond_its_cap(tmp_path: Path) -> None:
    """The full file is kept under another name (`OLD_SUFFIX`); the new file begins with a base record."""
    path = tmp_path / "log"
    leadership = RecordingLeader(FileSink(path, size_max=4_000)).furnish(a_node("n0", cpu=64))
    for number in range(12):
        leadership.submit(an_allocation(f"a{number}"))
        leadership.tick()
    await leadership.recorder.flush()
    assert path.with_name(path.name + OLD_SUFFIX).exists()
    assert path.stat().st_size <= 4_000
    assert main(["replay", str(path), "-q"]) == 0


async def test_any_process_reproduces_the_same_bits(tmp_path: Path) -> None:
    """A replay prints the same bytes in processes with different hash seeds."""
    path = await a_log(tmp_path / "log")
    said: set[bytes] = set()
    for seed in ("1", "2", "77"):
        ran = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "slipway.cli.main", "replay", str(path), "-o", "json"),
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await ran.communicate()
        assert ran.returncode == 0
        said.add(out)
    assert len(said) == 1
