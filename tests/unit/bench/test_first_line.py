"""The rows of a first line on a real node: each side's medians, and steps that only one side has."""

from bench.first_line import STEPS, Samples, rows_of


def test_a_step_that_a_job_does_not_have_has_no_peer() -> None:
    """A step that a Job does not have, admission and release, has no peer; every other step and the first line are
    compared."""
    ours = [{step: 10.0 * number for number, step in enumerate(STEPS, 1)} | {"first": first} for first in (80, 90, 100)]
    theirs = {step: 5.0 for step in STEPS if step not in ("Assigned", "release")}
    rows = {each.id: each for each in rows_of(Samples(ours, [theirs | {"first": first} for first in (30, 45, 60)]))}
    assert (rows["FIRST-p50"].ours, rows["FIRST-p50"].peer, rows["FIRST-p50"].ratio) == (90, 45, 2)
    assert (rows["FIRST-p95"].ours, rows["FIRST-p95"].peer) == (100, 60)
    assert {step for step in STEPS if rows[f"FIRST-at-{step}"].peer is None} == {"Assigned", "release"}
