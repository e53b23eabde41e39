"""The metrics reference, from the table of instruments."""

from slipway.runtime.telemetry import INSTRUMENTS
from tools.reference.markdown import code, phrase, table

TOP = """# Metrics

Every service serves its metrics at `/metrics` in Prometheus text format, or in OpenMetrics with exemplars if the
scraper requests it. The values of labels are closed sets; the id of an allocation, a pod or a user is never a label.
For names that people choose (pools, queues, extenders), the number of values per process is limited; further names are
counted as `other`. `..._since_seconds` and `..._heard_seconds` are times: `time() - x` is the age. Which panel shows
which metric: [Operating](../operating.md#dashboards).
"""


def page() -> str:
    """Return one row per instrument."""
    rows = [
        (code(one.name), one.kind, one.unit, ", ".join(code(label) for label in one.labels), phrase(one.help))
        for one in INSTRUMENTS
    ]
    return TOP + "\n" + table(("name", "kind", "unit", "labels", "what"), rows)
