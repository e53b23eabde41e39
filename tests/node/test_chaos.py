"""Faults on real nodes, including kubelets, containerds and whole machines, for the requested time."""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.chaos import table
from tests.chaos.run import keep
from tests.node.chaos import NodeChaos
from tests.node.conftest import Product

MINUTES = float(os.environ.get("SLIPWAY_CHAOS_MINUTES", "0"))
ONLY = [kind for kind in os.environ.get("SLIPWAY_CHAOS_ONLY", "").split(",") if kind]
GUARD_S = 300.0
SETUP_S = 600.0


@pytest.mark.flaky(reruns=0)  # A second run would hide a rare loss.
@pytest.mark.timeout(SETUP_S + GUARD_S + 4 * MINUTES * 60.0)
@pytest.mark.skipif(not MINUTES, reason="is asked for by its length: SLIPWAY_CHAOS_MINUTES=2")
def test_nothing_is_lost_or_doubled_whatever_fails(product: Product, request: pytest.FixtureRequest) -> None:
    """Every launch ends as its client wanted, no rank runs twice, and each line is stored once or counted as
    missing."""
    seed = getattr(request.config.option, "randomly_seed", 0)
    folder = Path(tempfile.mkdtemp(prefix="slipway-chaos-"))
    seed = seed if isinstance(seed, int) else 0
    run = NodeChaos(product.cluster, folder, seed=seed, minutes=MINUTES, say=say, only=ONLY)
    outcome = asyncio.run(asyncio.wait_for(run.run(), GUARD_S + 2 * MINUTES * 60.0))
    product.connect()
    lines = "\n".join([*outcome.violations, *table.lines(outcome)])
    say(lines)
    if not outcome.is_good:
        keep(run.evidence, outcome, folder)
        pytest.fail(f"{lines}\nthe evidence is in {folder}", pytrace=False)
    shutil.rmtree(folder)
    assert outcome.starts > len(outcome.suffered)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
