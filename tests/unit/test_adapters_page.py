"""docs/adapters.md: its Lua is run by a real Lua, as Argo CD does, on statuses that Slipway writes."""

import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text("utf-8")
Json = dict[str, Any]


def health_of(status: Json | None, spec: Json | None = None) -> tuple[str, str]:
    """(status, message) that Argo CD would show of an Allocation. Argo CD's Lua is 5.1, too."""
    [source] = re.findall(r"^```lua\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    lua = cast("Any", LuaRuntime(unpack_returned_tuples=True))
    lua.globals().obj = lua.table_from({"spec": spec or {}, "status": status}, recursive=True)
    found = lua.execute(source)
    return str(found["status"]), str(found["message"])


def condition(type_: str, status: str = "True") -> Json:
    """One condition."""
    return {"type": type_, "status": status, "message": f"why it is {type_}"}


@pytest.mark.parametrize("phase", list(Phase))
def test_argo_knows_every_phase(phase: Phase) -> None:
    """What runs is healthy, what has not started is progressing; what has ended depends on its result."""
    wanted = {Phase.RUNNING: "Healthy", Phase.TERMINATED: "Degraded"}.get(phase, "Progressing")
    assert health_of({"phase": phase.value})[0] == wanted


@pytest.mark.parametrize("result", list(Result))
def test_argo_knows_every_result(result: Result) -> None:
    """Only a success is healthy."""
    found, message = health_of({"phase": "Terminated", "result": result.value, "message": "rank 0: exit code 7"})
    assert found == ("Healthy" if result is Result.SUCCEEDED else "Degraded")
    assert message == "Terminated: rank 0: exit code 7"


def test_argo_shows_what_is_held_or_cannot_start() -> None:
    """A condition that has passed, or that a later phase has left behind, is not shown."""
    assert health_of(None) == ("Progressing", "not seen yet")
    assert health_of({"phase": "Pending"}, {"hold": True})[0] == "Suspended"
    for type_ in ("Stuck", "StartBlocked", "Refused"):
        assert health_of({"phase": "Starting", "conditions": [condition(type_)]}) == ("Degraded", f"why it is {type_}")
        assert health_of({"phase": "Starting", "conditions": [condition(type_, "False")]})[0] == "Progressing"
        assert health_of({"phase": "Running", "conditions": [condition(type_)]})[0] == "Healthy"


def test_what_the_page_shows_can_be_read() -> None:
    """Each block of Python compiles, each of YAML is YAML."""
    for source in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        compile(source, "docs/adapters.md", "exec")
    for source in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        assert isinstance(yaml.safe_load(source), dict)
