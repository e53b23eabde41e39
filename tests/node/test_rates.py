"""Logs at a rate: eight ranks print at once for a while, through real kubelets that rotate their files."""

import re

from tests.node.conftest import Product
from tests.node.nodes import LOG_BYTES_MAX
from tests.node.numbered_lines import NumberedOutput

RANKS, PER_SECOND, SECONDS = 8, 2_500, 12
AT_ONCE = 50
LINES = PER_SECOND * SECONDS
PRINTS = f"""
import sys, time
began = time.monotonic()
for first in range(0, {LINES}, {AT_ONCE}):
    time.sleep(max(0.0, began + first / {PER_SECOND} - time.monotonic()))
    sys.stdout.write("".join(f"line {{n}} {{'x' * 260}}\\n" for n in range(first, first + {AT_ONCE})))
print("took", round(time.monotonic() - began, 1))
"""


def test_each_line_at_a_rate_is_stored_once_or_counted_as_missing(product: Product) -> None:
    """Stored lines of each rank are in order and once, and missing lines are counted at their position.

    Lines that a node removed before they were read cannot be counted: the log shows that lines are missing, with the
    rank. Each rank prints twice the size of a log file, so that the kubelet begins a new one while the rank prints.
    """
    assert LINES * 270 > 1.9 * LOG_BYTES_MAX
    options = ("--ranks", str(RANKS), "--detach")
    ran = product.run("python3", "-c", PRINTS, options=options)
    found = re.search(r"\brun-[a-z0-9]+-[0-9a-f]+\b", ran.out + ran.err)
    assert found is not None, ran
    id_ = found.group()
    product.wait(id_, "terminated", 240)
    assert product.view(id_)["result"] == "Succeeded"
    # Followed, because lines on their way from the nodes arrive too.
    shown = product.slipway("logs", "--follow", id_, timeout_s=240)
    assert shown.code == 0, shown.err[-1000:]
    took = set(re.findall(r"^\[(\d+)\] took ", shown.out, re.MULTILINE))
    for rank in map(str, range(RANKS)):
        printed = NumberedOutput(shown.out, shown.err, rank)
        printed.check(LINES)
        assert printed.said or rank in took
