"""docs/adapters.md: its Lua is run by a real Lua, as Argo CD does, on statuses that Slipway writes."""

import re
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml
from lupa.lua51 import LuaRuntime

from slipway.api.allocations.outside_links import link_templates
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from tests.support.api_world import api_world
from tests.support.builders import a_pod, an_allocation
from tests.support.reductions import a_running, once, settled

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text("utf-8")
Json = dict[str, Any]

SECTION = re.compile(r"^## Backstage and other portals$(.*?)^## ", re.DOTALL | re.MULTILINE)


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
    """Argo CD knows every phase: a running allocation is healthy, one that has not started is progressing, and an ended
    one depends on its result."""
    wanted = {Phase.RUNNING: "Healthy", Phase.TERMINATED: "Degraded"}.get(phase, "Progressing")
    assert health_of({"phase": phase.value})[0] == wanted


@pytest.mark.parametrize("result", list(Result))
def test_argo_knows_every_result(result: Result) -> None:
    """Argo CD knows every result: only a success is healthy."""
    found, message = health_of({"phase": "Terminated", "result": result.value, "message": "rank 0: exit code 7"})
    assert found == ("Healthy" if result is Result.SUCCEEDED else "Degraded")
    assert message == "Terminated: rank 0: exit code 7"


def test_argo_shows_what_is_held_or_cannot_start() -> None:
    """Argo CD shows held allocations and those that cannot start; a past condition, or one of an earlier phase, is not
    shown."""
    assert health_of(None) == ("Progressing", "not seen yet")
    assert health_of({"phase": "Pending"}, {"hold": True})[0] == "Suspended"
    for type_ in ("Stuck", "StartBlocked", "Refused", "Stalled"):
        assert health_of({"phase": "Starting", "conditions": [condition(type_)]}) == ("Degraded", f"why it is {type_}")
        assert health_of({"phase": "Starting", "conditions": [condition(type_, "False")]})[0] == "Progressing"
        assert health_of({"phase": "Running", "conditions": [condition(type_)]})[0] == "Healthy"


def flux_of(status: Json) -> str:
    """The result of the page's expressions in Flux, which evaluates `failed` before `current`."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    [checks] = [read["healthCheckExprs"] for read in map(yaml.safe_load, blocks) if "healthCheckExprs" in read]
    [expressions] = checks
    for verdict in ("failed", "current"):
        if _is_true(expressions[verdict], status):
            return verdict
    return "in progress"


def _is_true(expression: str, status: Json) -> bool:
    """An expression of the form that the page uses: `has(status.conditions) && status.conditions.exists(c, ...)`."""
    found = re.fullmatch(r"has\(status\.conditions\) &&\s+status\.conditions\.exists\(c, (.*)\)", expression.strip())
    assert found is not None, expression
    source = re.sub(r"c\.(\w+)", r"c['\1']", found[1]).replace("&&", "and").replace("||", "or")
    return any(eval(source, {"__builtins__": {}}, {"c": each}) for each in status.get("conditions", ()))


def kstatus_of(status: Json) -> str:
    """The status that kstatus computes for a custom resource that is not being deleted: Stalled first, then Ready."""
    known = {each["type"]: each["status"] for each in status.get("conditions", ())}
    if known.get("Stalled") == "True":
        return "Failed"
    return "InProgress" if known.get("Ready", "True") != "True" else "Current"


def status_of(allocation: Allocation) -> Json:
    """The status of the allocation as JSON."""
    return cast("Json", msgspec.to_builtins(allocation.status))


def test_what_failed_for_good_ends_every_health_check() -> None:
    """A permanent failure ends every health check: Argo CD, the expressions for Flux and kstatus all report it at
    once."""
    failed = status_of(settled(a_running().it, a_pod().exited(7)))
    assert (health_of(failed)[0], flux_of(failed), kstatus_of(failed)) == ("Degraded", "failed", "Failed")
    [stalled] = [each for each in failed["conditions"] if each["type"] == "Stalled"]
    assert (stalled["reason"], stalled["message"]) == ("RankFailed", failed["message"])


def test_a_success_and_a_running_workload_are_current() -> None:
    """Argo CD and the expressions for Flux agree. kstatus alone would wait for a run that has succeeded."""
    starting = an_allocation().assigned().released().condition("Stalled", "NoFit")
    running = status_of(once(starting.it, a_pod().running(ready=True)).allocation)
    assert (health_of(running)[0], flux_of(running), kstatus_of(running)) == ("Healthy", "current", "Current")
    succeeded = status_of(settled(a_running().it, a_pod().exited(0)))
    assert (health_of(succeeded)[0], flux_of(succeeded)) == ("Healthy", "current")


def test_what_waits_is_in_progress() -> None:
    """A waiting allocation is in progress, also before its status is written."""
    assert flux_of({}) == "in progress"
    waiting: Json = {"phase": "Pending", "conditions": [condition("Admitted", "False")]}
    assert (health_of(waiting)[0], flux_of(waiting)) == ("Progressing", "in progress")


def test_what_the_page_shows_can_be_read() -> None:
    """Each block of Python on the page compiles, and each block of YAML is valid."""
    for source in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        compile(source, "docs/adapters.md", "exec")
    for source in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        assert isinstance(yaml.safe_load(source), dict)


async def test_a_portal_finds_the_pods_by_the_label_that_the_launch_gives_them() -> None:
    """A portal finds the pods by their label: the selector for Backstage on the page matches the pods of the page's
    launch in a dry run."""
    [section] = SECTION.findall(PAGE)
    values, launch, component = map(
        yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    )
    links = link_templates(values["api"]["settings"]["outsideLinks"])
    assert [link.title for link in links] == ["GPU dashboard", "Cost"]
    selected = component["metadata"]["annotations"]["backstage.io/kubernetes-id"]
    async with api_world() as world:
        shown = (await world.post("/allocations?dryRun=true", launch)).json()
    pods = [each for each in shown["objects"] if each["kind"] == "Pod"]
    assert [pod["metadata"]["labels"]["backstage.io/kubernetes-id"] for pod in pods] == [selected]
