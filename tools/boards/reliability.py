"""The dashboard about reliability: leaders, promises, and what was repaired."""

from tools.boards.panel import FAULTS, RATE, Board, Panel, rate

RELIABILITY = Board(
    name="reliability",
    title="Slipway: does it hold",
    rows={
        "Who leads": (
            Panel(
                "Leaders",
                "Is every pool led, and the feed published? 1 is yes.",
                (("max by (lease) (slipway_leader)", "{{lease}}"),),
            ),
            Panel(
                "Changes of leaders",
                "How often does leadership change hands?",
                ((f"sum by (lease) (increase(slipway_leader_changes_total[{RATE}]))", "{{lease}}"),),
            ),
            Panel(
                "Processes that began again",
                "What was started anew?",
                (
                    (
                        f"sum by (service) (changes(process_start_time_seconds[{RATE}])"
                        " * on (instance) group_left (service) max by (instance, service) (slipway_build))",
                        "{{service}}",
                    ),
                ),
            ),
        ),
        "Promises": (
            Panel(
                "Broken invariants",
                "Did the last audit find anything broken?",
                (("max by (invariant) (slipway_audit_violations)", "{{invariant}}"),),
            ),
            Panel(
                "Age of the last audit",
                "Does anybody look?",
                (("time() - max(slipway_audit_last_run_seconds)", ""),),
                unit="s",
            ),
            Panel(
                "Time of an audit",
                "How long does a look take?",
                (("max(slipway_audit_duration_seconds)", ""),),
                unit="s",
            ),
            Panel("Stuck launches", "Which launches and teardowns need somebody?", (("max(slipway_stuck)", ""),)),
            Panel(
                "Dead letters",
                "What was given up?",
                ((f"sum by (stream) (increase(slipway_dead_letters_total[{RATE}]))", "{{stream}}"),),
                quiet=FAULTS,
            ),
            Panel(
                "Mistakes in policies",
                "Which pool's policy is left out in part?",
                (("max by (pool) (slipway_policy_faults)", "{{pool}}"),),
            ),
        ),
        "What was mended": (
            Panel(
                "Watches opened again",
                "Do watches break? `ended` is how each ends after a while.",
                ((rate("slipway_watch_restarts_total", "resource", "reason"), "{{resource}} {{reason}}"),),
                unit="ops",
                quiet="no watch has ended yet",
            ),
            Panel(
                "Breaks of the feed",
                "How often does the scheduler have to LIST?",
                ((rate("slipway_feed_gaps_total", "reason"), "{{reason}}"),),
                unit="ops",
                quiet=FAULTS,
            ),
            Panel(
                "Errors of loops",
                "Which loop fails, and by what?",
                ((rate("slipway_loop_errors_total", "loop", "error"), "{{loop}} {{error}}"),),
                unit="ops",
                quiet=FAULTS,
            ),
            Panel(
                "Taken over",
                "What did a worker leave that others had to take?",
                ((rate("slipway_claims_total", "stream"), "{{stream}}"),),
                unit="ops",
            ),
            Panel(
                "Swept",
                "What was left over?",
                ((rate("slipway_swept_total", "kind"), "{{kind}}"),),
                unit="ops",
                quiet="nothing was left over",
            ),
            Panel(
                "Spans that were dropped",
                "Is what traces show complete?",
                ((rate("slipway_spans_dropped_total", "to"), "{{to}}"),),
                unit="ops",
            ),
        ),
    },
)
