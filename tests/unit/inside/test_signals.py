"""Signals to a process of ours inside a pod reach the program that it runs, at any time."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from slipway.inside.signals import started

SLEEPS = ("/bin/sh", "-c", "exec sleep 60")
HOOKED = (signal.SIGUSR1, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers_of_the_tests() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in HOOKED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("is_early", [True, False], ids=["while-it-starts", "later"])
def test_a_signal_is_passed_on(is_early: bool) -> None:
    """A signal is passed on, also one that arrives before the program has started."""

    def start() -> "subprocess.Popen[bytes]":
        if is_early:
            os.kill(os.getpid(), signal.SIGUSR1)
        return subprocess.Popen(SLEEPS)

    with started(start, HOOKED) as child:
        if not is_early:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert child.wait(20) == -signal.SIGUSR1


def test_a_program_that_cannot_start_leaves_the_handlers_as_they_were() -> None:
    """A program that cannot start leaves the handlers unchanged, because no program would receive the signals."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(FileNotFoundError):
        started(lambda: subprocess.Popen(["/no/such/program"]), HOOKED)
    assert signal.getsignal(signal.SIGTERM) == before
