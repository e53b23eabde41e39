"""A panel, a dashboard of panels, and the two query forms that most panels use."""

import msgspec

Query = tuple[str, str]
"""(PromQL, legend)"""

RATE = "$__rate_interval"
FAULTS = "nothing has failed"


class Panel(msgspec.Struct, frozen=True):
    """One panel.

    `asks` is the question that it answers; `quiet` is why a healthy system shows no data there; `unit` is a unit of
    Grafana; `width` is of 24 columns.
    """

    title: str
    asks: str
    queries: tuple[Query, ...]
    unit: str = "short"
    quiet: str = ""
    kind: str = "timeseries"
    width: int = 8


class Board(msgspec.Struct, frozen=True):
    """One dashboard: {heading: its panels}."""

    name: str
    title: str
    rows: dict[str, tuple[Panel, ...]]


def p99(metric: str, *by: str, part: str = "0.99") -> str:
    """Return a query for a quantile of a histogram; `part` is the quantile."""
    return f"histogram_quantile({part}, sum by ({', '.join(('le', *by))}) (rate({metric}_bucket[{RATE}])))"


def rate(metric: str, *by: str) -> str:
    """Return a query for a counter's rate per second."""
    return f"sum by ({', '.join(by)}) (rate({metric}[{RATE}]))"
