"""The metrics of four services and an audit under load, as a real Prometheus reads them for the dashboards."""

import socket
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import httpx2
import prometheus_client.parser as text_parser
import pytest
import yaml

from slipway.errors import ControlPlaneError
from slipway.model.reasons import Gate, Reason
from slipway.model.times import parse_time
from slipway.runtime import instruments, telemetry
from slipway.runtime.clock import SystemClock
from slipway.runtime.instruments import OTHER, SERIES_MAX, VALUES_MAX
from slipway.runtime.semconv import METHODS
from slipway.streams.feed import BreakReason
from tests.support import chart
from tests.support.local_stack import RunningStack, running_stack
from tests.support.plain_http import NO_TLS
from tests.support.prometheus import Prometheus, find, running_prometheus
from tests.support.wait import DEADLINE_S, wait_until
from tools.dashboards import BOARDS

Json = dict[str, Any]
Sample = tuple[str, dict[str, str], float]
ENDS_WELL = [sys.executable, "-c", "pass"]
BREAKS = {reason.name.lower() for reason in BreakReason}


def _kinds(error: type[ControlPlaneError]) -> set[str]:
    return {error.__name__.removesuffix("Error").lower()}.union(*map(_kinds, error.__subclasses__()))


CAUSES = _kinds(ControlPlaneError)
"""The causes of a restarted watch: one for each kind of error."""
STAYS = [sys.executable, "-c", "import time; time.sleep(300)"]
SERVICES = ("api", "scheduler", "podworker", "watcher")

NOT_HERE = {
    "slipway_audit_events_total": "audit events have to have a reader outside",
    "slipway_claims_total": "a pod worker has to die with hints in hand",
    "slipway_dead_letters_total": "a hint or a delivery has to be given up",
    "slipway_decision_log_bytes_total": "the decision log is off unless its bytes are set",
    "slipway_decision_log_total": "the decision log is off unless its bytes are set",
    "slipway_extender_call_seconds": "a pool has to have an extender",
    "slipway_extender_calls_total": "a pool has to have an extender",
    "slipway_feed_gaps_total": "the feed has to break",
    "slipway_foreseen_start_error_seconds": "the head of a line has to have a reservation",
    "slipway_http_refused_total": "a listener has to refuse a head or a connection",
    "slipway_http_streams": "somebody has to follow events",
    "slipway_loop_errors_total": "a loop has to fail",
    "slipway_preemptions_total": "work has to make room for other work",
    "slipway_retries_total": "a call has to fail",
    "slipway_shadow_decisions_total": "a pool has to have a shadow policy",
    "slipway_shadow_ticks_total": "a pool has to have a shadow policy",
    "slipway_swept_total": "something has to be left over",
    "slipway_watch_restarts_total": "a watch has to end, which takes a minute",
    "slipway_webhook_events_total": "there has to be a webhook",
    "slipway_webhook_try_seconds": "there has to be a webhook",
    "slipway_webhook_tries_total": "there has to be a webhook",
}
"""{metric: the event that would write it}; a series without labels exists from the start"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    with running_stack(tmp_path_factory.mktemp("measured") / "data", cpus=32, memory="64Gi") as running:
        yield running


@pytest.fixture(scope="module")
def targets(stack: RunningStack) -> Generator[dict[str, str]]:
    """{name: host:port} of the services, and of an audit that runs on."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        audit = f"127.0.0.1:{chosen.getsockname()[1]}"
    argv = [sys.executable, "-m", "slipway.cli.main", "audit", "--every", "3s", "--for", "1s", "--listen", audit]
    process = subprocess.Popen(argv, env=stack.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = {name: stack.stack.children[name].url.removeprefix("http://") for name in SERVICES}
        wait_until(
            lambda: "slipway_audit_violations{" in _text(stack, audit), "the first audit has ended", timeout_s=60.0
        )
        yield found | {"audit": audit}
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def worked(stack: RunningStack, targets: dict[str, str]) -> RunningStack:
    """Allocations of every sort: they succeed, fail, stay, are killed, wait for resources, and are held."""
    ids = [stack.launch({"kind": "command", "image": "local", "command": ENDS_WELL}) for _ in range(3)]
    ids += [stack.launch({"kind": "command", "image": "local", "command": [sys.executable, "-c", "exit(3)"]})]
    for id_ in ids:
        stack.wait_for(id_, "Terminated")
    stack.wait_for(stack.launch({"kind": "command", "image": "local", "command": STAYS}), "Running")
    killed = stack.launch({"kind": "command", "image": "local", "command": STAYS})
    stack.wait_for(killed, "Running")
    stack.ask(lambda api: api.post(f"/allocations/{killed}/kill"))
    stack.wait_for(killed, "Terminated")
    stack.launch({"kind": "command", "image": "local", "command": STAYS, "hold": True})
    huge = {"count": 1, "resources": {"cpu": "400"}}
    stack.launch({"kind": "command", "image": "local", "command": STAYS, "ranks": [huge]})
    wait_until(
        lambda: 'slipway_pending{pool="default",reason="Held"} 1.0' in _text(stack, targets["scheduler"]), "it waits"
    )
    return stack


@pytest.fixture(scope="module")
def prometheus(
    worked: RunningStack, targets: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Generator[Prometheus]:
    program = find()
    if not program:
        pytest.skip("there is no prometheus on PATH, and it cannot be fetched (Debian: apt install prometheus)")
    with running_prometheus(
        program, tmp_path_factory.mktemp("prometheus"), targets, GROUPS, token=worked.stack.token
    ) as running:
        wait_until(lambda: len(running.ask("up == 1")) == len(targets), "all are scraped", timeout_s=30.0)
        for number in range(3):
            id_ = worked.launch({"kind": "command", "image": "local", "command": ENDS_WELL, "name": f"seen-{number}"})
            worked.wait_for(id_, "Terminated")
        wait_until(
            lambda: running.ask("sum(increase(slipway_ends_total[1m])) > 2"), "the rates are there", timeout_s=30.0
        )
        yield running


GROUPS = [yaml.safe_load(path.read_text()) for path in sorted((chart.CHART / "files" / "alerts").iterdir())]


def _text(stack: RunningStack, address: str) -> str:
    try:
        return httpx2.get(f"http://{address}/metrics", headers=stack.headers, verify=NO_TLS, trust_env=False).text
    except httpx2.HTTPError:
        return ""


def _samples(stack: RunningStack, targets: dict[str, str]) -> list[Sample]:
    """(metric, labels, value) of all samples."""
    read: Any = text_parser.text_string_to_metric_families
    found: list[Sample] = []
    for address in targets.values():
        for family in read(_text(stack, address)):
            found += [(sample.name, sample.labels, sample.value) for sample in family.samples]
    return found


def test_every_metric_is_written(worked: RunningStack, targets: dict[str, str]) -> None:
    """Each declared metric has a sample while a system runs, except those that need a certain event."""
    names = {name for name, _, _ in _samples(worked, targets) if name.startswith("slipway_")}
    silent = set[str]()
    for row in telemetry.INSTRUMENTS:
        series = f"{row.name}_count" if row.kind == "histogram" else row.name
        if series not in names:
            silent.add(row.name)
    assert silent - set(NOT_HERE) == set()
    assert set(NOT_HERE) <= {row.name for row in telemetry.INSTRUMENTS}


def test_labels_are_closed_sets(worked: RunningStack, targets: dict[str, str]) -> None:
    """No label value comes from a launch; reasons and methods are from closed lists."""
    ids = {item["id"] for item in worked.ask(lambda api: api.get("/allocations"))["items"]}
    words = {
        "reason": {*Gate, *Reason, OTHER, "None", "ended", "short", *BREAKS, *CAUSES},
        "method": METHODS | {"_OTHER"},
    }
    values: dict[str, set[str]] = {}
    for name, labels, _ in _samples(worked, targets):
        for label, value in labels.items() if name.startswith("slipway_") else ():
            values.setdefault(label, set()).add(value)
    for label, seen in values.items():
        assert not seen & ids
        assert label in ("le", "version") or len(seen) <= instruments.MOST.get(label, VALUES_MAX) + 1, label
        assert label not in words or seen <= words[label], (label, seen - words[label])
    assert max(len(_text(worked, address).splitlines()) for address in targets.values()) < SERIES_MAX


def test_every_panel_shows_something(prometheus: Prometheus) -> None:
    """Prometheus accepts each query; where the panel may not be empty, the result is a number."""
    empty: list[str] = []
    for board in BOARDS:
        for panel in (panel for row in board.rows.values() for panel in row):
            for expression, _ in panel.queries:
                found = prometheus.ask(expression.replace("$__rate_interval", "1m"))
                if not panel.quiet and not any(value == value for _, value in found):
                    empty.append(f"{board.name}: {panel.title}")
    assert empty == []


def test_metrics_show_what_waits_why_and_since_when(worked: RunningStack, prometheus: Prometheus) -> None:
    """The overview shows two waiting, one held and one too large allocation, each in its queue, with its creation
    time."""
    overview = {panel.title: panel.queries[0][0] for row in BOARDS[0].rows.values() for panel in row}
    assert [value for _, value in prometheus.ask(overview["Waiting now"])] == [2.0]
    why = {labels["reason"] for labels, _ in prometheus.ask(overview["Waiting, by reason"])}
    assert "Held" in why
    assert len(why) == 2
    since = {labels["reason"]: value for labels, value in prometheus.ask(overview["Longest wait, by reason"])}
    assert set(since) == why
    listed: list[Json] = worked.ask(lambda api: api.get("/allocations"))["items"]
    made = [parse_time(each["createdAt"]) for each in listed if each["phase"] == "Pending"]
    ages = sorted(SystemClock().now() - at for at in made)
    assert sorted(since.values()) == pytest.approx(ages, abs=5.0)
    queues = {labels["queue"]: value for labels, value in prometheus.ask(overview["Waiting, by queue"])}
    assert queues["default"] == 2.0
    assert [labels["queue"] for labels, _ in prometheus.ask(overview["Longest wait, by queue"])] == ["default"]


def test_every_alert_is_evaluated(prometheus: Prometheus) -> None:
    """Prometheus accepts every alert, and none fires for a healthy system."""
    wanted = {rule["alert"] for group in GROUPS for rule in group["rules"]}
    wait_until(lambda: set(prometheus.rules().values()) == {"ok"}, "all rules are evaluated", timeout_s=30.0)
    assert set(prometheus.rules()) == wanted
    firing = {labels["alertname"] for labels, _ in prometheus.ask('ALERTS{alertstate="firing"}')}
    assert firing == set()


def test_an_exemplar_leads_to_a_trace(worked: RunningStack, prometheus: Prometheus) -> None:
    """A dot on the panel of launch steps leads to the allocation of that launch."""
    kept = prometheus.exemplars("slipway_launch_step_seconds_bucket")
    assert kept
    items: list[Json] = worked.ask(lambda api: api.get("/allocations"))["items"]
    traces = {worked.ask(lambda api, id_=item["id"]: api.get(f"/allocations/{id_}/trace"))["traceId"] for item in items}
    assert {labels["trace_id"] for labels in kept} <= traces


def test_a_part_that_is_away_is_told(prometheus: Prometheus, worked: RunningStack) -> None:
    """Without a pod worker hints wait: the lag of the stream rises, and falls when a pod worker runs again."""
    worked.halt("podworker")
    id_ = worked.launch({"kind": "command", "image": "local", "command": ENDS_WELL})
    lag = 'max(slipway_stream_lag{stream="work"})'
    wait_until(lambda: prometheus.ask(f"{lag} > 0"), "the hint is seen to wait", timeout_s=30.0)
    worked.resume("podworker")
    worked.wait_for(id_, "Terminated")
    wait_until(lambda: prometheus.ask(f"{lag} == 0"), "nothing waits", timeout_s=30.0)
