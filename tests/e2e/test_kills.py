"""Any process is killed with -9 while gangs are launched: every gang starts whole, each pod once, and succeeds."""

import threading
import time
from pathlib import Path

import pytest

from tests.support.gangs import all_running, assert_succeeded, assert_whole, gang_body, let_go
from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

AGES_S = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Seconds between the launch of each gang and the kill, so that each is at another point of its launch."""


def launch_all(stack: RunningStack, marks: Path) -> tuple[list[str], list[threading.Thread]]:
    """Launch the gangs so that they have these ages when this returns."""
    ids: list[str] = []
    moment = time.monotonic() + max(AGES_S) + 0.05

    def launch(age_s: float) -> None:
        time.sleep(max(0.0, moment - age_s - time.monotonic()))
        ids.append(stack.launch(gang_body(marks)))

    threads = [threading.Thread(target=launch, args=(age_s,)) for age_s in AGES_S]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, moment - time.monotonic()))
    return ids, threads


@pytest.mark.parametrize("victim", ["api", "scheduler", "podworker", "watcher", "nodes", "cluster"])
def test_a_kill_during_a_launch_changes_nothing(stack: RunningStack, marks: Path, victim: str) -> None:
    """Exactly N bound pods per gang, every container started once, result Succeeded in the first attempt.

    A node that dies between recording a start and the start never makes that start, because it starts nothing twice:
    then the gang needs another attempt.
    """
    attempts = 2 if victim == "nodes" else 1
    ids, threads = launch_all(stack, marks)
    killed = stack.kill(victim)
    for thread in threads:
        thread.join()
    assert len(ids) == len(AGES_S)
    for id_ in ids:
        assert all_running(stack, id_)["phase"] == "Running"
        assert_whole(stack, marks, id_, attempts=attempts)
    wait_until(lambda: stack.pid(victim) not in (0, killed), f"{victim} is started again")
    let_go(marks)
    for id_ in ids:
        assert_succeeded(stack, id_, attempts=attempts)
