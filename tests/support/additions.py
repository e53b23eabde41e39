"""The edits that a newcomer makes by hand when following the lists of CONTRIBUTING.md: for each list, in the order of
its steps.

Owns one small addition for each list; it does not know how the addition is tested. Each addition has its own test, as
its list requires.
"""

from collections.abc import Mapping, Sequence

import msgspec


class HandEdit(msgspec.Struct, frozen=True):
    """One file that is edited by hand: created with `text`, or changed by each pair of `changes` (a text that the file
    contains once, its replacement)."""

    path: str
    text: str = ""
    changes: tuple[tuple[str, str], ...] = ()


_PLACEMENT = "services/scheduler/slipway/scheduler/plan/placement"
_API = "services/api/slipway/api"

_FILTER = (
    HandEdit(
        f"{_PLACEMENT}/filters/gpu_only.py",
        '''"""GpuOnly: a node with the label `gpu-only: "true"` takes no work without GPUs."""

from slipway.model.resources import GPU
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "GpuOnly"
REFUSAL = NodeRefusal("GpuOnly", "is for work with GPUs", "are for work with GPUs")


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Nodes with the label, for a rank that requests no GPU."""
    if not request.requests.get(GPU):
        yield REFUSAL, usage.table.label("gpu-only").select(("true",))[at]
''',
    ),
    HandEdit(
        f"{_PLACEMENT}/filters/__init__.py",
        changes=(
            ("    extenders,\n    gpu_sharing,\n", "    extenders,\n    gpu_only,\n    gpu_sharing,\n"),
            (
                "    NodeFilter(gpu_sharing.NAME, gpu_sharing.refuse),\n",
                "    NodeFilter(gpu_only.NAME, gpu_only.refuse),\n"
                "    NodeFilter(gpu_sharing.NAME, gpu_sharing.refuse),\n",
            ),
        ),
    ),
    HandEdit(
        "docs/scheduling.md",
        changes=(
            (
                "| GpuSharing | nodes that",
                "| GpuOnly | nodes with the label `gpu-only`, for work without GPUs | `GpuOnly` | Slipway |\n"
                "| GpuSharing | nodes that",
            ),
        ),
    ),
    HandEdit(
        "tests/unit/scheduler/plan/test_gpu_only.py",
        '''"""GpuOnly, in a scenario of `slipway simulate`."""

from pathlib import Path

import pytest

from slipway.scheduler.simulate.command import main

SCENARIO = """
nodes: [{name: n, cpu: 4, gpus: 1, labels: {gpu-only: "true"}}]
allocations:
  - {name: light, ranks: [{cpu: 1}]}
  - {name: heavy, ranks: [{cpu: 1, gpus: 1}]}
"""


def test_only_work_with_gpus_starts_on_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other work waits, and its reason names the filter's words."""
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    assert main([str(path)]) == 0
    told = capsys.readouterr().out
    phases = {line.split()[0]: line.split()[1] for line in told.splitlines() if line.startswith(("light ", "heavy "))}
    assert phases == {"light": "Pending", "heavy": "Running"}
    assert "1 is for work with GPUs" in " ".join(told.split())
''',
    ),
)

_SCORE = (
    HandEdit(
        f"{_PLACEMENT}/scores/cool_nodes.py",
        '''"""CoolNodes: prefers nodes with the label `cooling: liquid`."""

import numpy as np

from slipway.scheduler.plan.placement.scores.base import SCORE_MAX, Extra
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "CoolNodes"


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """100 for a node with the label, 0 for the others."""
    return np.where(usage.table.label("cooling").select(("liquid",))[at], SCORE_MAX, 0).astype(np.int64)
''',
    ),
    HandEdit(
        f"{_PLACEMENT}/scores/__init__.py",
        changes=(
            ("    best_fit,\n    device_best_fit,\n", "    best_fit,\n    cool_nodes,\n    device_best_fit,\n"),
            (
                "        Score(topology_packing.NAME,",
                "        Score(cool_nodes.NAME, cool_nodes.score, is_static=True),\n"
                "        Score(topology_packing.NAME,",
            ),
        ),
    ),
    HandEdit(
        "docs/scheduling.md",
        changes=(
            (
                "| GpuFragmentation, BestFit,",
                "| CoolNodes | 100 with the label `cooling: liquid`, else 0 | |\n| GpuFragmentation, BestFit,",
            ),
        ),
    ),
    HandEdit(
        "tests/unit/scheduler/plan/test_cool_nodes.py",
        '''"""CoolNodes, in a scenario of `slipway simulate`."""

import json
from pathlib import Path

import pytest

from slipway.scheduler.simulate.command import main

SCENARIO = """
nodes: [{name: air, cpu: 4}, {name: water, cpu: 4, labels: {cooling: liquid}}]
pool: {scores: {CoolNodes: 1}}
allocations: [{name: a, ranks: [{cpu: 1}]}]
"""


def test_work_goes_to_the_cool_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """100 with the label, 0 without it."""
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    assert main([str(path), "-o", "json", "--explain-scores"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"] == {"air": {"CoolNodes": 0}, "water": {"CoolNodes": 100}}
    assert found["allocations"]["a"]["placements"][0]["node"] == "water"
''',
    ),
)

_ROUTE = (
    HandEdit(
        f"{_API}/cluster/clock_routes.py",
        '''"""The clock of the api, for clients that compare times with their own."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.deps import parts_of
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.model.times import format_time


class ClockView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What time it is."""

    time: str
    """the time of this process (RFC 3339)"""


async def read_clock(request: Request) -> Response:
    """The time of this process."""
    return json_response(ClockView(time=format_time(parts_of(request).clock.now())))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/clock",
        handler=read_clock,
        summary="The time of the api",
        tag="clock",
        answer=ClockView,
    ),
)
''',
    ),
    HandEdit(
        f"{_API}/app.py",
        changes=(
            (
                "from slipway.api.cluster import condition_routes, dead_letter_routes, decision_routes, node_routes,"
                " simulate_routes\n",
                "from slipway.api.cluster import (\n    clock_routes,\n    condition_routes,\n    dead_letter_routes,\n"
                "    decision_routes,\n    node_routes,\n    simulate_routes,\n)\n",
            ),
            (
                "    *condition_routes.ENDPOINTS,\n",
                "    *condition_routes.ENDPOINTS,\n    *clock_routes.ENDPOINTS,\n",
            ),
        ),
    ),
    HandEdit(
        f"{_API}/auth/route_rules.py",
        changes=(
            (
                '    "GET /api/v1/me": RouteRule(PermissionScope.KNOWN),\n',
                '    "GET /api/v1/me": RouteRule(PermissionScope.KNOWN),\n'
                '    "GET /api/v1/clock": RouteRule(PermissionScope.KNOWN),\n',
            ),
        ),
    ),
    HandEdit(
        "tests/unit/api/test_clock.py",
        '''"""The clock of the api."""

from pathlib import Path

from slipway.model.times import parse_time
from tests.support.access import teams_world
from tests.support.api_world import ApiWorld


async def test_the_time_is_that_of_the_process(world: ApiWorld) -> None:
    """Between the moments before and after the call."""
    before = world.clock.now()
    answer = await world.get("/clock")
    assert int(before) <= parse_time(answer.json()["time"]) <= world.clock.now()


async def test_any_caller_with_a_token_may_ask(tmp_path: Path) -> None:
    """The row of the authorisation table: 401 without a token, 200 with the least role."""
    async with teams_world("token", tmp_path) as teams:
        viewer = await teams.token("ada", {"team-red": "viewer"})
        assert (await teams.call("GET", "/clock", {})).status_code == 401
        assert (await teams.call("GET", "/clock", viewer)).status_code == 200
''',
    ),
)

_WAITING = '"waiting": {"type": "boolean", "description": "whether the service inside has nothing to show yet"}'
_EVENT = (
    HandEdit(
        "shared/slipway/model/lifecycle.py",
        changes=(
            ('    UPDATED = "updated"\n', '    UPDATED = "updated"\n    WAITING = "waiting"\n'),
            (
                "    Transition(E.UPDATED, _OPEN, None, W.WATCHER),\n",
                "    Transition(E.UPDATED, _OPEN, None, W.WATCHER),\n"
                "    Transition(E.WAITING, frozenset({P.RUNNING}), None, W.WATCHER),\n",
            ),
        ),
    ),
    HandEdit(
        "services/watcher/slipway/watcher/reduce.py",
        changes=(
            (
                'Event.UPDATED, now=view.now, data={"waiting": signals.waiting}',
                'Event.WAITING, now=view.now, data={"waiting": signals.waiting}',
            ),
        ),
    ),
    HandEdit(
        f"{_API}/http/documents.py",
        changes=(
            (
                f"        {_WAITING},\n",
                "",
            ),
            (
                "    Event.UPDATED: {\n",
                f"    Event.WAITING: {{\n        {_WAITING},\n    }},\n    Event.UPDATED: {{\n",
            ),
        ),
    ),
    HandEdit(
        "tests/unit/watcher/test_waiting.py",
        '''"""An attempt that says that it waits is told as an event of its own."""

from slipway.crd.v1alpha1 import Signals
from slipway.model.lifecycle import Event
from slipway.watcher.reduce import reduce
from tests.support.builders import T0, a_pod, an_allocation


def test_an_attempt_that_waits_is_told_once() -> None:
    """The event says whether it waits, and a second look writes nothing."""
    story = an_allocation().assigned().released().running().with_spec(signals=Signals(waiting=True, attempt=1))
    pods = [a_pod().running().it]
    told = reduce(story.it, pods, now=T0 + 5).allocation
    last = told.status.transitions[-1]
    assert (last.type, last.data) == (Event.WAITING, {"waiting": True})
    assert not reduce(told, pods, now=T0 + 6).changed
''',
    ),
)

_SETTING = (
    HandEdit(
        f"{_API}/settings.py",
        changes=(
            (
                "    hosts: Annotated[\n",
                "    search_characters_max: Annotated[\n"
                "        int,\n"
                '        Meta(ge=1, le=10_000, description="Longest text of a search, in characters."),\n'
                "    ] = 200\n"
                "    hosts: Annotated[\n",
            ),
        ),
    ),
    HandEdit(
        f"{_API}/http/endpoint.py",
        changes=(
            ("SEARCH_CHARACTERS_MAX = 200\n", ""),
            (
                "    if len(text) > SEARCH_CHARACTERS_MAX:\n"
                '        raise bad_param(name, f"at most {SEARCH_CHARACTERS_MAX} characters, not {len(text)}")\n',
                "    most = parts_of(request).settings.search_characters_max\n"
                "    if len(text) > most:\n"
                '        raise bad_param(name, f"at most {most} characters, not {len(text)}")\n',
            ),
        ),
    ),
    HandEdit(
        "helm/values.yaml",
        changes=(("    requestTimeoutS: 30\n", "    requestTimeoutS: 30\n    searchCharactersMax: 200\n"),),
    ),
    HandEdit(
        "tests/unit/api/test_search_length.py",
        '''"""How long the text of a search may be is a setting."""

from slipway.api.settings import Settings
from slipway.runtime.settings import load
from tests.support.api_world import api_world


async def test_a_search_is_as_long_as_the_setting_says() -> None:
    """A text of that length is accepted; a longer one is refused, with the setting's number."""
    async with api_world(load(Settings, {"SLIPWAY_SEARCH_CHARACTERS_MAX": "3"})) as world:
        assert (await world.get("/allocations?search=abc")).status_code == 200
        refused = await world.get("/allocations?search=abcd")
        assert (refused.status_code, "at most 3 characters, not 4" in refused.text) == (400, True)
''',
    ),
)

_FIELD = (
    HandEdit(
        "shared/slipway/crd/v1alpha1.py",
        changes=(
            (
                "    max_restarts: Annotated[int, Meta(ge=0, le=1000)] = 0\n",
                '    contact: Annotated[str, Meta(max_length=253)] = ""\n'
                '    """whom to ask about it, such as the address of a team"""\n'
                "    max_restarts: Annotated[int, Meta(ge=0, le=1000)] = 0\n",
            ),
        ),
    ),
    HandEdit(
        "shared/slipway/cli/verbs/show.py",
        changes=(
            (
                '        ("User", str(view.get("user") or "")),\n',
                '        ("User", str(view.get("user") or "")),\n'
                '        ("Contact", str(spec.get("contact") or "")),\n',
            ),
        ),
    ),
    HandEdit(
        "tests/unit/api/test_contact.py",
        '''"""Whom to ask about an allocation."""

from tests.support.api_world import ApiWorld


async def test_a_launch_names_whom_to_ask(world: ApiWorld) -> None:
    """The field is accepted, stored by the API server with its schema, and answered; one that is too long is not."""
    launched = await world.launch(contact="team@example")
    assert (await world.stored(launched["name"])).spec.contact == "team@example"
    assert (await world.get(f"/allocations/{launched['id']}")).json()["spec"]["contact"] == "team@example"
    body = {"kind": "command", "image": "a", "command": ["true"], "contact": "x" * 254}
    assert (await world.post("/allocations", body)).json()["errors"][0]["pointer"] == "/contact"
''',
    ),
)

_RULE = (
    HandEdit(
        "shared/slipway/crd/rules.py",
        changes=(('"preemptible", "maxRestarts")\n', '"preemptible", "maxRestarts", "contact")\n'),),
    ),
    HandEdit(
        "tests/support/allocation_values.py",
        changes=(('    "requestHash": ["a", "b"],\n', '    "requestHash": ["a", "b"],\n    "contact": ["a", "b"],\n'),),
    ),
    HandEdit(
        "tests/unit/crd/test_contact_rule.py",
        '''"""Whom to ask about an allocation does not change."""

import pytest

from slipway.errors import InvalidError
from slipway.kube.resources import ALLOCATIONS
from tests.support.api_world import api_world


async def test_the_contact_stays() -> None:
    """The API server refuses another one."""
    async with api_world() as world:
        name = (await world.launch(contact="team@example"))["name"]
        with pytest.raises(InvalidError, match="contact cannot be changed"):
            await world.kube.patch(ALLOCATIONS, name, {"spec": {"contact": "other"}}, namespace="default")
        assert (await world.stored(name)).spec.contact == "team@example"
''',
    ),
)

_PAGE = (
    HandEdit(
        f"{_API}/pages/about.js",
        """// `/about`: which version answers.
import { facts } from "./facts.js";
import { html } from "./runtime.js";

export function About() {
  return html`<div class="head"><h1 tabindex="-1">About</h1></div><p>Slipway ${facts.version}</p>`;
}
""",
    ),
    HandEdit(
        f"{_API}/pages/main.js",
        changes=(
            (
                "// The other pages are loaded after",
                'const About = latePage(() => import("./about.js"), "About");\n// The other pages are loaded after',
            ),
            ('  "/more": [MorePages,', '  "/about": [About, () => "About"],\n  "/more": [MorePages,'),
            (
                '  { href: "/tokens", text: "Tokens"',
                '  { href: "/about", text: "About", key: "a", about: "Which version answers." },\n'
                '  { href: "/tokens", text: "Tokens"',
            ),
        ),
    ),
    HandEdit(f"{_API}/auth/route_rules.py", changes=(('"/dead", "/more"),\n', '"/dead", "/about", "/more"),\n'),)),
    HandEdit(
        "tests/browser/test_about_page.py",
        '''"""The page about the version."""

from slipway.runtime.service import version
from tests.browser.chromium import Page
from tests.browser.test_pages import Visit
from tests.support.local_stack import RunningStack


def test_the_page_says_which_version_answers(stack: RunningStack, page: Page) -> None:
    """From the page More to the page, by its link."""
    visit = Visit(stack, page)
    visit.go("/more")
    visit.press("About")
    visit.shows(version())
''',
    ),
)

_METRIC = (
    HandEdit(
        "shared/slipway/runtime/telemetry.py",
        changes=(
            (
                'RETRIES = _counter("retries"',
                'TOKEN_LISTS = _counter("token_lists", "answers", (), "Lists of tokens that were answered.")\n'
                'RETRIES = _counter("retries"',
            ),
        ),
    ),
    HandEdit(
        f"{_API}/auth/token_routes.py",
        changes=(
            (
                "from slipway.model.apitokens import TokenRecord\n",
                "from slipway.model.apitokens import TokenRecord\nfrom slipway.runtime import telemetry\n",
            ),
            ("    now = parts.clock.now()\n", "    now = parts.clock.now()\n    telemetry.TOKEN_LISTS.inc()\n"),
        ),
    ),
    HandEdit(
        "tools/boards/services.py",
        changes=(
            (
                '        "Scheduler": (\n',
                '        "Tokens": (\n'
                "            Panel(\n"
                '                "Lists of tokens",\n'
                '                "Does anyone look at the tokens?",\n'
                '                ((rate("slipway_token_lists_total"), "lists"),),\n'
                '                unit="ops",\n'
                "            ),\n"
                "        ),\n"
                '        "Scheduler": (\n',
            ),
        ),
    ),
)

_ALERT = (
    HandEdit(
        "helm/files/alerts/work.yaml",
        changes=(
            (
                "  - alert: SlipwayStuck\n",
                """  - alert: SlipwayTokensListed
    expr: sum(increase(slipway_token_lists_total[15m])) > 100
    labels: {severity: warning}
    annotations:
      summary: The tokens were listed {{ $value }} times within 15 minutes
      description: A program asks for the list of tokens over and over.
      runbook: docs/runbooks/tokens-listed.md
  - alert: SlipwayStuck
""",
            ),
        ),
    ),
    HandEdit(
        "docs/runbooks/tokens-listed.md",
        """# The tokens are listed over and over

**When.** More than 100 lists within 15 minutes.

**What it means for users.** Nothing yet: the api answers.

## What to do

1. Find the caller in the audit trail.

## It is over when

Fewer lists are asked for.
""",
    ),
)

_VALUE = (
    HandEdit(
        "tools/chart_parts.py",
        changes=(
            (
                "        **_network_of_pods(),\n",
                '        "contact": shapes.text("Whom to ask about this installation.", pattern=r"^[ -~]*$"),\n'
                "        **_network_of_pods(),\n",
            ),
        ),
    ),
    HandEdit("helm/values.yaml", changes=(('\nnameOverride: ""\n', '\ncontact: ""\nnameOverride: ""\n'),)),
    HandEdit(
        "helm/templates/NOTES.txt",
        changes=(
            (
                "is in namespace {{ .Release.Namespace }}.\n",
                "is in namespace {{ .Release.Namespace }}.\n"
                "{{- with .Values.contact }} Ask {{ . }} about it.{{ end }}\n",
            ),
        ),
    ),
    HandEdit(
        "tests/integration/helm/matrix.py",
        changes=(
            ('    "one of each": {name:', '    "a contact": {"contact": "team@example"},\n    "one of each": {name:'),
            (
                '    "a size": ({"size": "huge"}, "size"),\n',
                '    "a contact": ({"contact": "\\n"}, "contact"),\n    "a size": ({"size": "huge"}, "size"),\n',
            ),
        ),
    ),
)

_CALL = (
    HandEdit(
        "helm/templates/podworker/rbac.yaml",
        changes=(
            ("  resources: [namespaces]\n  verbs: [get]\n", "  resources: [namespaces, nodes]\n  verbs: [get]\n"),
        ),
    ),
    HandEdit(
        "helm/README.md",
        changes=(
            (
                "| `configmaps`, `services` | create | launches:",
                "| `nodes` | get | whether a node is there: `services/podworker/slipway/podworker/launch.py` |\n"
                "| `configmaps`, `services` | create | launches:",
            ),
        ),
    ),
    HandEdit(
        "shared/slipway/ops/doctor/installed.py",
        changes=(
            (
                '(_C, "", ("namespaces",), ("get",)),\n',
                '(_C, "", ("namespaces", "nodes"), ("get",)),\n',
            ),
        ),
    ),
)

ADDITIONS: Mapping[str, Sequence[HandEdit]] = {
    "a filter of the planner": _FILTER,
    "a score of the planner": _SCORE,
    "a route": _ROUTE,
    "an event or a transition": _EVENT,
    "a setting": _SETTING,
    "a field of a custom resource": _FIELD,
    "a rule of the API server": _RULE,
    "a page": _PAGE,
    "a metric": _METRIC,
    "an alert": _ALERT,
    "a value of the chart": _VALUE,
    "a call of Kubernetes": _CALL,
}
