"""Each `NAME.yaml` beside this file, run through the simulator, gives the answer of `NAME.expect.json`.

An expectation contains only the checked fields: objects are compared field by field, arrays element by element.
"""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from slipway.scheduler.simulate.command import main

HERE = Path(__file__).parent
SCENARIOS = sorted(path.stem for path in HERE.glob("*.yaml"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer contains everything that is expected, and the run has no error."""
    assert main([str(HERE / f"{name}.yaml"), "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expected = json.loads((HERE / f"{name}.expect.json").read_text(encoding="utf-8"))
    assert differences(expected, answer) == []


def differences(expected: Any, actual: Any, path: str = "$") -> list[str]:
    """The paths at which `actual` lacks what is `expected`."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        found: list[str] = []
        for key, value in cast("dict[str, Any]", expected).items():
            found += differences(value, cast("dict[str, Any]", actual).get(key), f"{path}.{key}")
        return found
    if isinstance(expected, list) and isinstance(actual, list):
        wanted, given = cast("list[Any]", expected), cast("list[Any]", actual)
        if len(wanted) != len(given):
            return [f"{path}: {len(wanted)} expected, {len(given)} answered: {given}"]
        pairs = enumerate(zip(wanted, given, strict=True))
        return [line for index, (one, other) in pairs for line in differences(one, other, f"{path}[{index}]")]
    return [] if expected == actual else [f"{path}: expected {expected!r}, answered {actual!r}"]
