"""Work of a scenario that waits for other work to end."""

import pytest

from slipway.errors import InvalidError
from slipway.scheduler.simulate.forecast import forecast
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import decode

NODES = "nodes: [{name: n, cpu: 2}]\n"
CHAIN = """
allocations:
  - {name: prep, duration: 10, ranks: [{cpu: 1}]}
  - {name: data, duration: 30, ranks: [{cpu: 1}]}
  - {name: train, after: [prep, data], duration: 5, ranks: [{cpu: 2}]}
  - {name: later, submit: 1, duration: 5, ranks: [{cpu: 1}]}
"""


def test_it_starts_when_the_last_has_ended() -> None:
    """Nothing is reserved for such work: work that arrived later starts before it."""
    lives = simulate(decode(NODES + CHAIN)).world.lives
    assert {name: life.first_start for name, life in lives.items()} == {"prep": 0, "data": 0, "later": 10, "train": 30}


def test_its_start_is_foreseen_where_the_ends_are_known() -> None:
    """The estimate follows from run limits; where work may run for ever, there is none."""
    first, second = "{{name: a, {limit} ranks: [{{cpu: 2}}]}}", "{{name: b, after: [a], ranks: [{{cpu: 1}}]}}"
    one = f"allocations: [{first}, {second}]\nuntil: 1"
    for limit, latest in (("maxRuntime: 60,", 60), ("", None)):
        scenario = decode(NODES + one.format(limit=limit))
        found = forecast(scenario, simulate(scenario))["b"]
        assert found.latest == latest
        assert (found.earliest is None) == (latest is None)


@pytest.mark.parametrize("names", ["[gone]", "[b]", "[c]"])
def test_only_what_is_above_it_can_be_named(names: str) -> None:
    """Only allocations above can be named, so no work waits for itself, and no two wait for each other."""
    text = (
        f"allocations: [{{name: a, ranks: [{{}}]}}"
        f", {{name: b, after: {names}, ranks: [{{}}]}}, {{name: c, ranks: [{{}}]}}]"
    )
    with pytest.raises(InvalidError, match=r"allocations\[1\]\.after\[0\]: there is no allocation \w+ before this one"):
        decode(NODES + text)
