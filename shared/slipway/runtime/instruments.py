"""Counters, gauges and histograms with a bounded number of series, and exemplars that link an observation to its trace.

This module limits, in one process, the values of a label and the series of an instrument. Values beyond the limit are
counted under `other`. It knows none of our instruments (`telemetry.py` declares them) and no tracing SDK.

Invariants: every instrument has at most `SERIES_MAX` series and one more. An admitted value is never changed to `other`
later. `labels` of an existing series costs one dictionary lookup.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import prometheus_client as prometheus
from opentelemetry import trace as otel
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from slipway.runtime.traceparent import parse_traceparent

OTHER: Final = "other"
SERIES_MAX: Final = 2_000
VALUES_MAX: Final = 64
"""The limit on the values of one label, over all instruments, unless `MOST` sets another limit."""
MOST: Final = {"route": 300, "queue": 100, "reason": 100, "error": 100, "command": 100}
"""{label: limit on its values}. The limit of `route` fits the number of routes of the api."""
LATENCY_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WAITS_S: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)

Merge = Callable[[float, float], float]

_values: dict[str, set[str]] = {}


def _sum(one: float, other: float) -> float:
    return one + other


def admitted(label: str, value: str) -> str:
    """Return the value, or `other` when the label already has as many values as it may have."""
    known = _values.setdefault(label, set())
    if value in known:
        return value
    if len(known) >= MOST.get(label, VALUES_MAX):
        return OTHER
    known.add(value)
    return value


class _Bounded(prometheus.metrics.MetricWrapperBase):
    """The common part of the three kinds of instruments."""

    _labelnames: tuple[str, ...]
    _metrics: dict[Sequence[str], Any]

    def labels(self, *labelvalues: Any, **labelkwargs: Any) -> Any:
        """Return the series of these labels; create it when it does not exist. Labels are given by name only."""
        values = tuple([str(labelkwargs[name]) for name in self._labelnames])
        child = self._metrics.get(values)
        if child is not None:
            return child
        values = tuple(admitted(name, value) for name, value in zip(self._labelnames, values, strict=True))
        if values not in self._metrics and len(self._metrics) >= SERIES_MAX:
            values = (OTHER,) * len(values)
        return super().labels(*labelvalues, **dict(zip(self._labelnames, values, strict=True)))


class Counter(_Bounded, prometheus.Counter):
    """A counter with a bounded number of series."""


class Gauge(_Bounded, prometheus.Gauge):
    """A gauge with a bounded number of series."""

    def set_all(self, under: tuple[str, ...], told: Mapping[str, float], merge: Merge = _sum) -> None:
        """Set all series under `under`, which are values of all labels but the last, from {value of the last label:
        number}.

        Other series under the same values are removed. `merge` combines two numbers that share `other`.
        """
        last = self._labelnames[-1]
        under = tuple(admitted(name, value) for name, value in zip(self._labelnames[:-1], under, strict=True))
        merged: dict[str, float] = {}
        for value, number in told.items():
            name = admitted(last, value)
            merged[name] = merge(merged[name], number) if name in merged else number
        for name, number in merged.items():
            self.labels(**dict(zip(self._labelnames, (*under, name), strict=True))).set(number)
        for values in [values for values in self._metrics if values[:-1] == under and values[-1] not in merged]:
            self.remove(*values)

    def drop(self, values: tuple[str, ...]) -> None:
        """Remove one series, because the thing that it measured no longer exists."""
        if values in self._metrics:
            self.remove(*values)


class Histogram(_Bounded, prometheus.Histogram):
    """A histogram with a bounded number of series."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None, *, of: str | None = None) -> None:
        """Observe `amount`, with its trace as the exemplar.

        The trace is that of `of` (a traceparent), else that of the current span. There is no exemplar when that trace
        is not recorded.
        """
        super().observe(amount, exemplar or _exemplar(of))


def _exemplar(traceparent: str | None) -> dict[str, str] | None:
    if traceparent is not None:
        ref = parse_traceparent(traceparent)
        if ref is None or not ref.sampled:
            return None
        return {"trace_id": f"{ref.trace_id:032x}", "span_id": f"{ref.span_id:016x}"}
    context = otel.get_current_span().get_span_context()
    if not context.trace_flags.sampled:
        return None
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def render(registry: Collector, accept: str) -> tuple[str, bytes]:
    """Return (content type, all metrics): OpenMetrics with the exemplars when the scraper accepts it, else text."""
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)
