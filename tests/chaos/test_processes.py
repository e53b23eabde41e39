"""The parts of the stage that are processes: each fault has the described effect on them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from slipway.runtime.clock import SystemClock
from tests.chaos.processes import RedisProcess
from tests.chaos.stage import NO_SHIFT, find_faketime
from tests.conformance.system.process import ServiceProcess
from tests.support.ports import free_port
from tests.support.redis import server_binary


def test_a_process_that_was_ended_has_no_id_until_it_is_started_again(tmp_path: Path) -> None:
    """Reading it is no error: a fault may select its victim at the moment in which another fault restarts it."""
    process = ServiceProcess(
        "idle", [sys.executable, "-c", "import signal; signal.pause()"], {}, "127.0.0.1:1", tmp_path / "idle.log"
    )
    assert process.pid_if_any is None
    process.start()
    try:
        first = process.pid_if_any
        assert first == process.pid
        process.kill()
        assert process.pid_if_any is None
        process.start()
        assert process.pid_if_any not in (None, first)
    finally:
        process.kill()


async def test_a_redis_that_failed_over_has_what_the_replica_heard_and_nothing_else(tmp_path: Path) -> None:
    """Writes after the replica fell behind were acknowledged, and are gone."""
    server_binary("redis")
    port = free_port()
    server = RedisProcess(tmp_path, port)
    await server.start()
    client: Any = redis.asyncio.Redis(port=port)
    try:
        await client.set("before", "1")
        server.fork()
        await client.set("after", "1")
        await server.kill()
        server.fail_over()
        await server.start()
        assert await client.keys("*") == [b"before"]
    finally:
        await client.aclose()
        await server.stop()


def test_a_clock_that_is_put_right_again_runs_at_its_own_rate(tmp_path: Path) -> None:
    """Also after a faster rate: a fault that continues after its end would be blamed on the next ones."""
    library = find_faketime()
    if not library:
        pytest.skip("no libfaketime (Debian: apt install faketime)")
    clock = tmp_path / "clock"
    clock.write_text(f"{NO_SHIFT}\n", encoding="utf-8")
    env = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    program = "import sys, time\nfor _ in sys.stdin: print(time.time(), flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def wrong_by(words: str) -> float:
        clock.write_text(f"{words}\n", encoding="utf-8")
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        return abs(float(child.stdout.readline()) - SystemClock().now())

    try:
        assert wrong_by(NO_SHIFT) < 5.0
        assert wrong_by("+0 x100000") > 60.0
        assert wrong_by(NO_SHIFT) < 5.0
    finally:
        child.communicate()
