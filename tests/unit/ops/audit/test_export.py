"""The gauges of a repeated audit."""

from slipway.ops.audit.live.command import export
from slipway.ops.audit.live.report import AuditReport, InvariantLine
from slipway.runtime import telemetry


def gauges(**looked_at: int | None) -> dict[str, float]:
    """{invariant: its gauge} after an audit that examined this number of objects for each."""
    lines = [InvariantLine(invariant=name, promise="", looked_at=count) for name, count in looked_at.items()]
    export(AuditReport(at=1.0, watched_s=1.0, versions=1, is_complete=True, invariants=lines), took_s=1.0)
    samples = [sample for metric in telemetry.AUDIT_VIOLATIONS.collect() for sample in metric.samples]
    return {sample.labels["invariant"]: sample.value for sample in samples}


def test_an_invariant_that_cannot_be_judged_any_more_loses_its_gauge() -> None:
    """An invariant that cannot be judged any more, as without Redis, loses its gauge, because the last number is
    outdated."""
    assert gauges(I3=4, I14=2) == {"I3": 0.0, "I14": 0.0}
    assert gauges(I3=4, I14=None) == {"I3": 0.0}
    assert gauges(I3=4, I14=2) == {"I3": 0.0, "I14": 0.0}
