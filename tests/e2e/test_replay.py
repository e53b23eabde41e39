"""Another process repeats the decisions of a running system's scheduler, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.cli import CommandResult
from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

Json = dict[str, Any]


def run_some(stack: RunningStack, count: int) -> None:
    """Launch allocations that start and end, one that is too large, and one that is held and then resumed."""
    ids = [stack.launch({"kind": "command", "command": ["true"], "priority": number}) for number in range(count)]
    held = stack.launch({"kind": "command", "command": ["true"], "hold": True})
    large = stack.launch({"kind": "command", "command": ["true"], "ranks": [{"resources": {"cpu": "4000"}}]})
    assert stack.command("resume", held).code == 0
    for id_ in [*ids, held]:
        stack.wait_for(id_, "Terminated")
    assert stack.command("kill", large).code == 0


def replayed(stack: RunningStack, *words: str) -> Json:
    """The report of a replay, which must succeed."""
    ran = stack.command("replay", "-o", "json", *words)
    assert ran.code == 0, ran.out + ran.err
    return json.loads(ran.out)


def decisions_of(stack: RunningStack) -> int:
    """The tick of the ledger: the number of ticks that have decided something."""
    [pool] = stack.ask(lambda api: api.get("/pools")["items"])
    return int(pool["tick"])


def test_a_live_system_is_replayed(stack: RunningStack, tmp_path: Path) -> None:
    """A separate process replays every recorded tick; damage to the stored log is found."""
    run_some(stack, 6)
    last = decisions_of(stack)
    wait_until(lambda: replayed(stack)["last"] == last, "the last tick in the log")
    report = replayed(stack, "--save", str(tmp_path / "log"))
    assert report["ticks"] >= 2
    assert (report["differences"], report["skipped"]) == ([], [])
    assert report["decisions"] == report["same"]
    text = (tmp_path / "log").read_bytes()
    for place in (len(text) // 3, len(text) // 2, len(text) - 40):
        (tmp_path / "bad").write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        assert stack.command("replay", str(tmp_path / "bad")).code in (1, 2)


def test_the_log_survives_its_loss(stack: RunningStack) -> None:
    """After a FLUSHALL the next tick that decides begins a new, complete log; so does another leader's."""
    run_some(stack, 2)
    with stack.redis() as client:
        client.flushall()
    before = decisions_of(stack)
    run_some(stack, 2)
    wait_until(lambda: replayed(stack)["last"] == decisions_of(stack), "the last tick in the log")
    report = replayed(stack)
    assert report["first"] > before
    assert (report["differences"], report["skipped"]) == ([], [])
    stack.kill("scheduler")
    run_some(stack, 2)
    wait_until(lambda: replayed(stack)["last"] == decisions_of(stack), "the new leader's last tick", timeout_s=30.0)
    report = replayed(stack)
    assert report["differences"] == []
    assert report["ticks"] >= 2


def test_without_redis_there_is_a_file(stack: RunningStack, tmp_path: Path) -> None:
    """A scheduler of single runs stores its log in a file."""
    stack.halt("scheduler")
    try:
        id_ = stack.launch({"kind": "command", "command": ["true"]})
        env = {**stack.environment(), "SLIPWAY_LISTEN": "127.0.0.1:0", "SLIPWAY_DECISION_LOG": str(tmp_path / "log")}
        env.pop("SLIPWAY_REDIS_URL")
        argv = [sys.executable, "-m", "slipway.scheduler.main", "--once"]
        subprocess.run(argv, env=env, capture_output=True, timeout=60, check=True)
    finally:
        stack.resume("scheduler")
    ran: CommandResult = stack.command("replay", str(tmp_path / "log"))
    assert (ran.code, "reproduced bit for bit" in ran.out) == (0, True), ran.err
    stack.wait_for(id_, "Terminated")
