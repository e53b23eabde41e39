"""Redis loses everything, is down, or never existed: no launch is lost."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gangs import all_running, assert_succeeded, assert_whole, gang_body, let_go
from tests.support.local_stack import RunningStack, data_of, running_stack
from tests.support.wait import wait_until

Json = dict[str, Any]
BACK_S = 60.0
"""Seconds within which streams of ended allocations are complete again."""


def sequence(stack: RunningStack, id_: str) -> list[int]:
    """The seqs of an allocation's stream, as any client reads them."""
    with stack.redis() as client:
        entries: Any = client.xrange(f"slipway:alloc:{{{id_}}}")
    seqs = [int(entry_id.split("-")[1]) for entry_id, _ in entries]
    assert [data_of(fields["data"])["seq"] for _, fields in entries] == seqs
    return seqs


def assert_back(stack: RunningStack, id_: str, timeout_s: float = BACK_S) -> None:
    """Wait until the stream is complete: 1, 2, 3 up to the last transition."""
    last = stack.view(id_)["status"]["seq"]
    wait_until(lambda: sequence(stack, id_) == list(range(1, last + 1)), f"stream of {id_}", timeout_s=timeout_s)


def test_flushall_during_launches_loses_nothing(stack: RunningStack, marks: Path) -> None:
    """Every gang is launched, runs and ends; all their streams are complete again within a minute."""
    before = stack.launch({"kind": "command", "command": ["true"]})
    stack.wait_for(before, "Terminated")
    ids: list[str] = []
    with stack.redis() as client:
        for _ in range(4):
            ids.append(stack.launch(gang_body(marks)))
            client.flushall()
            time.sleep(0.03)
            client.flushall()
    for id_ in ids:
        assert all_running(stack, id_)["phase"] == "Running"
        assert_whole(stack, marks, id_)
    with stack.redis() as client:
        client.flushall()
    flushed = time.monotonic()
    let_go(marks)
    for id_ in ids:
        assert_succeeded(stack, id_)
    for id_ in [before, *ids]:
        assert_back(stack, id_, timeout_s=max(5.0, flushed + BACK_S - time.monotonic()))


def full(stack: RunningStack) -> None:
    with stack.redis() as client:
        client.config_set("maxmemory", 1)


def read_only(stack: RunningStack) -> None:
    with stack.redis() as client:
        client.replicaof("127.0.0.1", 1)


def hung(stack: RunningStack) -> None:
    os.kill(server_of(stack), signal.SIGSTOP)


def trimmed(stack: RunningStack) -> None:
    """Delete every stream under its readers, and a third of the other keys."""
    with stack.redis() as client:
        for number, key in enumerate(client.keys("slipway:*")):
            if number % 3 == 0:
                client.delete(key)
            elif client.type(key) == "stream":
                client.xtrim(key, maxlen=0, approximate=False)


def healed(stack: RunningStack) -> None:
    os.kill(server_of(stack), signal.SIGCONT)
    with stack.redis() as client:
        client.replicaof("NO", "ONE")
        client.config_set("maxmemory", 0)


def server_of(stack: RunningStack) -> int:
    assert stack.stack.valkey is not None
    assert stack.stack.valkey.pid is not None
    return stack.stack.valkey.pid


@pytest.mark.parametrize("breaks", [full, read_only, hung, trimmed])
def test_a_server_that_refuses_writes_delays_work_and_loses_nothing(
    stack: RunningStack, marks: Path, breaks: Callable[[RunningStack], None]
) -> None:
    """A gang is launched, runs and ends meanwhile; afterwards its stream becomes complete without help."""
    breaks(stack)
    try:
        id_ = stack.launch(gang_body(marks))
        assert all_running(stack, id_)["phase"] == "Running"
        assert_whole(stack, marks, id_)
        let_go(marks)
        assert_succeeded(stack, id_)
    finally:
        healed(stack)
    assert_back(stack, id_)


def test_redis_may_be_away(stack: RunningStack, marks: Path) -> None:
    """A launch without Redis is only slower; when Redis is back, the stream is complete."""
    stack.stop_redis()
    try:
        let_go(marks)
        id_ = stack.launch(gang_body(marks))
        assert_succeeded(stack, id_)
        events: list[Json] = stack.ask(lambda api: api.get(f"/allocations/{id_}/events")["items"])
        assert [event["data"]["seq"] for event in events] == list(range(1, len(events) + 1))
    finally:
        stack.start_redis()
    assert_back(stack, id_)


def test_a_server_that_is_killed_is_started_again(stack: RunningStack, marks: Path) -> None:
    """The local stack restarts it like its other parts: later events are stored there."""
    id_ = stack.launch(gang_body(marks))
    all_running(stack, id_)
    before = server_of(stack)
    os.kill(before, signal.SIGKILL)
    valkey = stack.stack.valkey
    assert valkey is not None
    wait_until(lambda: valkey.pid not in (None, before), "another server runs")
    let_go(marks)
    assert_succeeded(stack, id_)
    assert_back(stack, id_)


def test_without_redis_at_all(tmp_path: Path, marks: Path) -> None:
    """R0: launches, finishes and cancels work; events and logs are still shown."""
    with running_stack(tmp_path / "r0", redis=False) as stack:
        assert stack.stack.redis_url == ""
        gang = stack.launch(gang_body(marks))
        waiting = stack.launch(gang_body(marks, ranks=1, hold=True))
        assert all_running(stack, gang)["phase"] == "Running"
        assert_whole(stack, marks, gang)
        let_go(marks)
        assert_succeeded(stack, gang)
        assert stack.command("kill", waiting, "--wait").code == 0
        assert stack.view(waiting)["result"] == "Canceled"
        done = stack.command("run", "--", "python", "-c", "print('said without Redis')")
        assert done.code == 0, done.err
        assert done.out == "said without Redis\n"
