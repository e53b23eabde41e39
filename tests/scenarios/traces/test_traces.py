"""Each `NAME.csv` beside this file, with `NAME.mapping.yaml` and the cluster in `NAME.yaml`, gives the answer of
`NAME.expect.json`.

An expectation contains only the checked fields, as those of the scenarios do.
"""

import json
from pathlib import Path

import pytest

from slipway.scheduler.simulate.command import main
from tests.scenarios.test_scenarios import differences

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("*.csv")))
def test_trace(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer contains everything that is expected."""
    trace, mapping = str(HERE / f"{name}.csv"), str(HERE / f"{name}.mapping.yaml")
    assert main([str(HERE / f"{name}.yaml"), "--trace", trace, "--mapping", mapping, "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expected = json.loads((HERE / f"{name}.expect.json").read_text(encoding="utf-8"))
    assert differences(expected, answer) == []
