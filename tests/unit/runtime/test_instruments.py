"""Instruments: a bounded number of series with any labels, exemplars when the scraper can read them."""

from collections.abc import Callable, Iterable
from typing import Any

import prometheus_client as prometheus
import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from slipway.runtime import instruments, telemetry
from slipway.runtime.instruments import OTHER, SERIES_MAX, VALUES_MAX, Counter, Gauge, Histogram
from tests.unit.runtime.test_telemetry import RecordingSink

Read = Callable[[str], Iterable[Any]]
read_text: Read = parser.text_string_to_metric_families
read_openmetrics: Read = openmetrics_parser.text_string_to_metric_families  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "_values", {})


def series(registry: prometheus.CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """{label values: value} of the samples of that name."""
    samples = (sample for family in registry.collect() for sample in family.samples if sample.name == name)
    return {tuple(sample.labels.values()): sample.value for sample in samples}


def test_a_label_has_so_many_values_and_then_other() -> None:
    """A label has a limited number of values, and further ones become `other`: the first ones stay, and the sum is
    complete."""
    registry = prometheus.CollectorRegistry()
    counter = Counter("x", "x", ("extender",), registry=registry)
    for _ in range(2):
        for number in range(VALUES_MAX + 10):
            counter.labels(extender=f"e{number}").inc()
    found = series(registry, "x_total")
    assert len(found) == VALUES_MAX + 1
    assert (found["e0",], found[OTHER,], sum(found.values())) == (2, 20, 2 * (VALUES_MAX + 10))


def test_an_instrument_has_so_many_series() -> None:
    """An instrument has a limited number of series, also when each of its labels is within its own limit."""
    registry = prometheus.CollectorRegistry()
    counter = Counter("x", "x", ("a", "b"), registry=registry)
    for first in range(60):
        for second in range(60):
            counter.labels(a=f"a{first}", b=f"b{second}").inc()
    found = series(registry, "x_total")
    assert len(found) == SERIES_MAX + 1
    assert (found[OTHER, OTHER], sum(found.values())) == (3600 - SERIES_MAX, 3600)


def test_a_gauge_tells_of_what_is_there() -> None:
    """A gauge shows what exists: series that are no longer set disappear; those that share `other` are merged; other
    pools are unchanged."""
    registry = prometheus.CollectorRegistry()
    gauge = Gauge("x", "x", ("pool", "queue"), registry=registry)
    gauge.set_all(("red",), {"a": 1, "b": 2})
    gauge.set_all(("blue",), {"a": 7})
    gauge.set_all(("red",), {"b": 3})
    assert series(registry, "x") == {("red", "b"): 3, ("blue", "a"): 7}
    gauge.set_all(("red",), {f"q{number}": 1.0 for number in range(120)})
    found = series(registry, "x")
    assert sum(value for (pool, _), value in found.items() if pool == "red") == 120
    assert found["red", OTHER] > 1
    gauge.set_all(("red",), {f"q{number}": float(number) for number in range(120)}, merge=min)
    assert series(registry, "x")["red", OTHER] == instruments.MOST["queue"] - 2


def test_exemplars_lead_to_the_trace() -> None:
    """Exemplars lead to the trace in OpenMetrics, when a scraper requests it; the plain text format, which has no
    exemplars, is unchanged."""
    registry = prometheus.CollectorRegistry()
    histogram = Histogram("x_seconds", "x", ("phase",), registry=registry, buckets=(1.0, 2.0))
    telemetry.setup("test", sink=RecordingSink())
    try:
        with telemetry.span("work", allocation_id="a-1"):
            ids = telemetry.current_ids()
            histogram.labels(phase="plan").observe(0.5)
        histogram.labels(phase="plan").observe(1.5)
        histogram.labels(phase="plan").observe(3.0, of="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        histogram.labels(phase="plan").observe(3.0, of="00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-00")
    finally:
        telemetry.shutdown()
    content_type, text = instruments.render(registry, OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    (family,) = read_openmetrics(text.decode())
    found = {sample.labels["le"]: sample.exemplar for sample in family.samples if sample.name == "x_seconds_bucket"}
    assert ids is not None
    first, last = found["1.0"], found["+Inf"]
    assert first is not None
    assert last is not None
    assert (first.labels, first.value) == ({"trace_id": ids[0], "span_id": ids[1]}, 0.5)
    assert found["2.0"] is None
    assert last.labels["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    plain_type, plain = instruments.render(registry, "text/plain")
    assert plain_type.startswith("text/plain; version=0.0.4")
    assert b"trace_id" not in plain
    assert [each.name for each in read_text(plain.decode())] == ["x_seconds"]


def test_everything_of_ours_can_be_read_in_both_formats() -> None:
    """The parsers of Prometheus' own client read all our metrics in both formats."""
    for accept, read in ((OPENMETRICS, read_openmetrics), ("", read_text)):
        _, text = telemetry.render_metrics(accept)
        names = {family.name for family in read(text.decode())}
        assert {row.name.removesuffix("_total") for row in telemetry.INSTRUMENTS if not row.labels} <= {
            name.removesuffix("_total") for name in names
        }
