"""A panel, a dashboard of panels, and the two forms of query that most of them ask."""

import msgspec

Query = tuple[str, str]
"""(PromQL, legend)"""

RATE = "$__rate_interval"
FAULTS = "nothing has failed"


class Panel(msgspec.Struct, frozen=True):
    """One panel. `unit` is Grafana's; `width` of 24."""

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
    """A quantile of a histogram."""
    return f"histogram_quantile({part}, sum by ({', '.join(('le', *by))}) (rate({metric}_bucket[{RATE}])))"


def rate(metric: str, *by: str) -> str:
    """How often a second."""
    return f"sum by ({', '.join(by)}) (rate({metric}[{RATE}]))"
