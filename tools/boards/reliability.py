"""The dashboard about reliability: leaders, promises, and what was repaired."""

from tools.boards.panel import FAULTS, RATE, Board, Panel, rate

RELIABILITY = Board(
    name="reliability",
    title="Slipway: is it reliable",
    rows={
        "Leadership": (
            Panel(
                "Leaders",
                "Does every pool have a leader, and does a leader publish the cluster feed? 1 is yes.",
                (("max by (lease) (slipway_leader)", "{{lease}}"),),
            ),
            Panel(
                "Changes of leaders",
                "How often does the leader change?",
                ((f"sum by (lease) (increase(slipway_leader_changes_total[{RATE}]))", "{{lease}}"),),
            ),
            Panel(
                "Restarts of processes",
                "Which services restarted?",
                (
                    (
                        f"sum by (service) (changes(process_start_time_seconds[{RATE}])"
                        " * on (instance) group_left (service) max by (instance, service) (slipway_build))",
                        "{{service}}",
                    ),
                ),
            ),
        ),
        "Invariants": (
            Panel(
                "Broken invariants",
                "Did the last audit find violations?",
                (("max by (invariant) (slipway_audit_violations)", "{{invariant}}"),),
            ),
            Panel(
                "Age of the last audit",
                "Do audits run?",
                (("time() - max(slipway_audit_last_run_seconds)", ""),),
                unit="s",
            ),
            Panel(
                "Time of an audit",
                "How long does an audit take?",
                (("max(slipway_audit_duration_seconds)", ""),),
                unit="s",
            ),
            Panel(
                "Stuck launches",
                "How many launches and teardowns need an administrator?",
                (("max(slipway_stuck)", ""),),
            ),
            Panel(
                "Dead letters",
                "Which messages were never handled?",
                ((f"sum by (stream) (increase(slipway_dead_letters_total[{RATE}]))", "{{stream}}"),),
                quiet=FAULTS,
            ),
            Panel(
                "Errors in policies",
                "Which pool's policy is ignored in part?",
                (("max by (pool) (slipway_policy_faults)", "{{pool}}"),),
            ),
        ),
        "What was repaired": (
            Panel(
                "Restarts of watches",
                "Do watches break? `ended` is the normal end of a watch after some time.",
                ((rate("slipway_watch_restarts_total", "resource", "reason"), "{{resource}} {{reason}}"),),
                unit="ops",
                quiet="no watch has ended yet",
            ),
            Panel(
                "Gaps in the feed",
                "How often does the scheduler have to LIST?",
                ((rate("slipway_feed_gaps_total", "reason"), "{{reason}}"),),
                unit="ops",
                quiet=FAULTS,
            ),
            Panel(
                "Errors of loops",
                "Which loop fails, with which error?",
                ((rate("slipway_loop_errors_total", "loop", "error"), "{{loop}} {{error}}"),),
                unit="ops",
                quiet=FAULTS,
            ),
            Panel(
                "Claimed messages",
                "Which messages of a lost worker did other workers claim?",
                ((rate("slipway_claims_total", "stream"), "{{stream}}"),),
                unit="ops",
            ),
            Panel(
                "Swept objects",
                "Which leftover objects were deleted?",
                ((rate("slipway_swept_total", "kind"), "{{kind}}"),),
                unit="ops",
                quiet="there were no leftovers",
            ),
            Panel(
                "Dropped spans",
                "Are traces complete?",
                ((rate("slipway_spans_dropped_total", "to"), "{{to}}"),),
                unit="ops",
            ),
        ),
    },
)
