"""Windows in scenarios: bad values are refused with their path; a run in which only windows begin and end is over."""

import pytest

from slipway.errors import InvalidError
from slipway.scheduler.simulate.run import IDLE_WAKES_MAX, simulate
from slipway.scheduler.simulate.scenario import decode

NODES = "nodes: [{name: n, cpu: 1}]\n"


def a_scenario(window: str, more: str = "") -> str:
    return NODES + f"pool: {{windows: [{{name: w, {window}}}]}}\n" + more


@pytest.mark.parametrize(
    ("window", "complaint"),
    [
        ("start: 0, duration: 1h", "pool.windows[0]: state either queues"),
        ("start: 0, duration: 1h, maintenance: true, queues: [default]", "pool.windows[0]: state either queues"),
        ("start: 0, duration: 1h, queues: [q]", "pool.windows[0].queues[0]: there is no queue q"),
        (
            "start: 0, duration: 1h, maintenance: true, nodeNames: [m]",
            "pool.windows[0].nodeNames[0]: there is no node m",
        ),
        ("start: 0, duration: 1h, maintenance: true, nodeNames: [n], nodes: 1", "pool.windows[0].nodeNames: names"),
        ("start: 0, duration: 1h, maintenance: true, nodes: 1, gpus: 1", "pool.windows[0].gpus: state either"),
        ("start: noon, duration: 1h, maintenance: true", "pool.windows[0].start: 'noon' is not an RFC 3339 time"),
        ("start: 0, duration: soon, maintenance: true", "pool.windows[0].duration: 'soon' is not a duration"),
        ("start: 0, duration: 0, maintenance: true", "pool.windows[0].duration: is 0"),
        ("start: 0, duration: 1h, maintenance: true, timeZone: X/Y", "pool.windows[0].timeZone: there is no time zone"),
        (
            "start: 9, duration: 1h, maintenance: true, repeat: {every: Daily, until: 8}",
            "pool.windows[0].repeat.until: is before start",
        ),
        ("start: 0, duration: 1d, maintenance: true, repeat: {every: Daily}", "pool.windows[0].duration: a window"),
    ],
)
def test_windows_that_make_no_sense(window: str, complaint: str) -> None:
    """Each complaint begins with the path of the field."""
    with pytest.raises(InvalidError) as caught:
        decode(a_scenario(window))
    assert str(caught.value).startswith(complaint)


def test_a_run_in_which_only_windows_come_and_go_is_over() -> None:
    """Work that never fits between two windows waits; the run ends without an `until`."""
    window = "start: 3600, duration: 1h, repeat: {every: Daily}, maintenance: true"
    work = "allocations: [{name: long, submit: 60, maxRuntime: 90000, ranks: [{cpu: 1}]}]"
    outcome = simulate(decode(a_scenario(window, work)))
    assert outcome.end == 60.0
    assert outcome.explanations["default/long"].gate.value == "NoFit"
    assert outcome.ticks < IDLE_WAKES_MAX
