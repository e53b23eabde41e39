"""The metrics reference, from the table of instruments."""

from slipway.runtime.telemetry import INSTRUMENTS
from tools.reference.markdown import code, phrase, table

TOP = """# Metrics

Every service serves them at `/metrics` in Prometheus text format, or in OpenMetrics with exemplars where the scraper
asks for it. Labels are closed sets; the id of an allocation, a pod or a user is never one. Names that people give
(pools, queues, extenders) are kept to so many values per process; what comes beyond is `other`. `..._since_seconds` and
`..._heard_seconds` are moments: `time() - x` is the age. Which panel shows what:
[Operating](../operating.md#dashboards).
"""


def page() -> str:
    """Return one row per instrument."""
    rows = [
        (code(one.name), one.kind, one.unit, ", ".join(code(label) for label in one.labels), phrase(one.help))
        for one in INSTRUMENTS
    ]
    return TOP + "\n" + table(("name", "kind", "unit", "labels", "what"), rows)
