"""The program of ranks on real nodes prints every line that it counts, however it is ended."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

from tests.node.rank_reports import PLAYER

LINES, LAST_WORDS, ENDINGS = 3_000, 5, 25
PLAY = {"bursts": [{"afterS": 0, "lines": LINES}, {"afterS": -1, "lines": LAST_WORDS}], "termS": 0.0}


def test_a_signal_in_the_middle_of_a_burst_costs_no_line() -> None:
    """After a signal it prints each counted line and its last words, and ends with 143: a missing line is never its
    own fault."""
    chance = random.Random(1)
    for _ in range(ENDINGS):
        with subprocess.Popen(
            [sys.executable, "-c", PLAYER],
            env={
                **os.environ,
                "PLAY": json.dumps(PLAY),
                "SLIPWAY_ALLOCATION_ID": "run-a",
                "SLIPWAY_ATTEMPT": "1",
                "SLIPWAY_RANK": "0",
            },
            stdout=subprocess.PIPE,
            text=True,
        ) as rank:
            assert rank.stdout is not None
            first = rank.stdout.readline()
            _pass(chance.random() * 0.004)
            rank.send_signal(signal.SIGTERM)
            rest = rank.stdout.read()
            assert rank.wait(30.0) == 143
        numbers = [int(found) for found in re.findall(r"^line (\d+) ", first + rest, re.MULTILINE)]
        assert numbers == list(range(1, LINES + LAST_WORDS + 1))


def _pass(seconds: float) -> None:
    """Let some time of the burst pass; how much depends on the machine."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
