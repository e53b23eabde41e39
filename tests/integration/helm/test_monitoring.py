"""Alerts and dashboards query existing metrics by existing labels; each alert has a runbook."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from slipway.runtime import telemetry
from tests.support import chart
from tools import dashboards

Json = dict[str, Any]
Asked = tuple[str, set[str]]
"""A queried metric, and its queried labels."""

FILES = chart.CHART / "files"
RUNBOOKS = chart.ROOT / "docs" / "runbooks"
RULES = [rule for path in sorted((FILES / "alerts").iterdir()) for rule in yaml.safe_load(path.read_text())["rules"]]
DASHBOARDS = sorted((FILES / "dashboards").iterdir())
PROCESS = ("cpu_seconds_total", "resident_memory_bytes", "start_time_seconds")
SCRAPED = {"slipway_build": ("instance",)}
"""{metric: labels that Prometheus itself adds, by which it is joined to others}"""
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


def _labels() -> dict[str, set[str]]:
    """`{series: its labels}` of every instrument."""
    # Metrics that the client library has for every process.
    found: dict[str, set[str]] = {f"process_{name}": {"service", "instance"} for name in PROCESS}
    for one in telemetry.INSTRUMENTS:
        for suffix in SUFFIXES.get(one.kind, ("",)):
            found[one.name + suffix] = {
                *one.labels,
                *({"le"} if suffix == "_bucket" else ()),
                *SCRAPED.get(one.name, ()),
            }
    return found


def _queries(path: Path) -> Iterator[str]:
    """The queries of a dashboard, as Grafana sends them."""
    for panel in json.loads(path.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m")


def _asked(expression: str) -> tuple[list[Asked], set[str]]:
    """The metrics of an expression, and the labels that it groups by. Raises ValueError when it is no PromQL."""
    found: list[Asked] = []
    by: set[str] = set()

    def visit(node: Any) -> bool:
        if isinstance(node, promql.VectorSelector):
            found.append((str(node.name), {str(one.name) for one in node.matchers.matchers}))
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            by.update(node.modifier.labels)
        return True

    promql.walk(promql.parse(expression), visit)
    return found, by


ALERTS = [str(rule["expr"]) for rule in RULES]
QUERIES = [query for path in DASHBOARDS for query in _queries(path)]


@pytest.mark.parametrize("expression", [*ALERTS, *QUERIES])
def test_metrics_that_alerts_query_exist(expression: str) -> None:
    """Every queried metric exists with the queried labels, and some service writes it."""
    known, used = _labels(), _used()
    asked, by = _asked(expression)
    assert asked
    # Some labels may come from another metric that is joined.
    assert by <= set[str]().union(*(known.get(name, set()) for name, _ in asked))
    for name, labels in asked:
        assert name in known, name
        assert labels <= known[name], name
        assert any(name.startswith(one) for one in used), f"nobody writes {name}"


def _used() -> set[str]:
    """The metrics whose instrument the product uses outside of its declaration."""
    words: set[str] = set()
    for folder in ("services", "shared", "local"):
        for path in (chart.ROOT / folder).rglob("*.py"):
            if path.name != "telemetry.py":
                words |= set(re.findall(r"\b[A-Z][A-Z_]+\b", path.read_text("utf-8")))
    declared = (chart.ROOT / "shared" / "slipway" / "runtime" / "telemetry.py").read_text("utf-8")
    names = dict(re.findall(r"^([A-Z_]+) = _(?:counter|gauge|histogram)\(\s*\"(\w+)\"", declared, re.MULTILINE))
    # The build metric is set where it is declared.
    return {f"slipway_{name}" for word, name in names.items() if word in words} | {"slipway_build", "process_"}


def test_an_alert_that_asks_for_nothing_is_noticed() -> None:
    """The checks fail for a misspelt metric, a missing label, and a text that is no PromQL."""
    known = _labels()
    ((name, _),), _ = _asked("sum(slipway_stuk) > 0")
    assert name not in known
    ((name, labels),), by = _asked('sum by (pool) (slipway_stuck{queue="a"})')
    assert not labels <= known[name]
    assert not by <= known[name]
    with pytest.raises(ValueError, match="unclosed"):
        _asked("sum(slipway_stuck")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_have_a_description_of_the_action(rule: Json) -> None:
    """An alert has a severity, a description, and a runbook with the steps to take."""
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["alert"].startswith("Slipway")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook"}
    text = Path(chart.ROOT, notes["runbook"]).read_text("utf-8")
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## What to do", "## It is over when"]
    found, by = _asked(rule["expr"])
    asked = by.union(*(labels for _, labels in found))
    for label in re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]):
        assert label in asked, label


@pytest.mark.parametrize("url", ["https://docs.example.org/runbooks", "https://docs.example.org/runbooks/"])
def test_alerts_lead_to_their_runbooks_where_readers_find_them(url: str) -> None:
    """With `runbookUrl` each alert links to its page; without it no alert has a dead link."""
    for given in ({}, {"runbookUrl": url}):
        documents = chart.render({"metrics": {"alerts": {"enabled": True, **given}}})
        groups = chart.find(documents, "PrometheusRule", "alerts")["spec"]["groups"]
        notes = [rule["annotations"] for group in groups for rule in group["rules"]]
        assert len(notes) == len(RULES)
        for each in notes:
            name = Path(each["runbook"]).name
            assert each.get("runbook_url") == (f"https://docs.example.org/runbooks/{name}" if given else None)


def test_every_runbook_belongs_to_an_alert() -> None:
    """Every runbook belongs to an alert, and alert names are unique."""
    assert {Path(rule["annotations"]["runbook"]).name for rule in RULES} == {path.name for path in RUNBOOKS.iterdir()}
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_dashboards_fit_together(path: Path) -> None:
    """Panels have unique names, and do not overlap."""
    board = json.loads(path.read_text("utf-8"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_dashboards_match_their_generating_tables() -> None:
    """`python -m tools.dashboards helm/files/dashboards` would change nothing; each panel has a query."""
    assert {path.name: path.read_text("utf-8") for path in DASHBOARDS} == dashboards.files()
    for board in dashboards.BOARDS:
        for panel in (panel for row in board.rows.values() for panel in row):
            assert "?" in panel.asks, panel.title


def test_the_pages_on_operating_name_panels_that_there_are() -> None:
    """Each panel in bold on those pages is on a dashboard."""
    text = (chart.ROOT / "docs" / "operating.md").read_text("utf-8")
    part = text[text.index("### Dashboards") : text.index("### Traces")]
    titles = {panel.title for board in dashboards.BOARDS for row in board.rows.values() for panel in row}
    named = re.findall(r"\*\*([^*]+)\*\*", part)
    assert named
    assert set(named) <= titles


def test_the_chart_brings_them_all() -> None:
    """Each rule and each dashboard is in the chart when enabled."""
    documents = chart.render({"metrics": {"alerts": {"enabled": True}, "dashboards": {"enabled": True}}})
    groups = chart.find(documents, "PrometheusRule", "alerts")["spec"]["groups"]
    assert [rule for group in groups for rule in group["rules"]] == RULES
    for path in DASHBOARDS:
        kept = chart.find(documents, "ConfigMap", f"dashboard-{path.stem}")["data"][path.name]
        assert json.loads(kept) == json.loads(path.read_text("utf-8"))
