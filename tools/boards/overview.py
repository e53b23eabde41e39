"""The dashboard about waiting work: what waits, why, since when; and how work moves through the system."""

from tools.boards.panel import Board, Panel, p99, rate

OVERVIEW = Board(
    name="overview",
    title="Slipway: what waits, why, since when",
    rows={
        "What waits, why, since when": (
            Panel("Waiting now", "How many allocations wait?", (("sum(slipway_pending)", ""),), kind="stat", width=4),
            Panel(
                "Longest wait",
                "How long has the oldest pending allocation waited?",
                (("time() - min(slipway_queue_since_seconds)", ""),),
                unit="s",
                kind="stat",
                width=4,
                quiet="nothing waits",
            ),
            Panel(
                "Placed now",
                "How many allocations are admitted and have not ended?",
                (("sum(slipway_placed)", ""),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Stuck now",
                "How many launches and teardowns need an administrator?",
                (("max(slipway_stuck)", ""),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Running processes",
                "Which services run, in which version?",
                (("count by (service, version) (slipway_build)", "{{service}} {{version}}"),),
                kind="stat",
            ),
            Panel(
                "Waiting, by reason",
                "Why do allocations wait? The first closed gate, in the words of `slipway explain`.",
                (("max by (pool, reason) (slipway_pending) > 0", "{{pool}} {{reason}}"),),
                quiet="nothing waits",
                width=12,
            ),
            Panel(
                "Longest wait, by reason",
                "How long has the oldest allocation waited behind each gate?",
                (("time() - min by (pool, reason) (slipway_pending_since_seconds)", "{{pool}} {{reason}}"),),
                unit="s",
                quiet="nothing waits",
                width=12,
            ),
            Panel(
                "Waiting, by queue",
                "In which queue do allocations wait?",
                (("max by (pool, queue) (slipway_queue_pending)", "{{pool}} {{queue}}"),),
                width=12,
            ),
            Panel(
                "Longest wait, by queue",
                "How long has the oldest allocation of each queue waited?",
                (("time() - min by (pool, queue) (slipway_queue_since_seconds)", "{{pool}} {{queue}}"),),
                unit="s",
                quiet="nothing waits",
                width=12,
            ),
        ),
        "How work progresses": (
            Panel(
                "Wait for admission",
                "How long did admitted allocations wait?",
                tuple(
                    (p99("slipway_queue_wait_seconds", "pool", part=part), f"{{{{pool}}}} {name}")
                    for part, name in (("0.5", "half"), ("0.99", "99 %"))
                ),
                unit="s",
            ),
            Panel(
                "Wait for admission, by reason, 99 %",
                "How long did admitted allocations wait, by the last gate in their status? None: no gate was in their "
                "status.",
                ((p99("slipway_queue_wait_seconds", "pool", "reason"), "{{pool}} {{reason}}"),),
                unit="s",
            ),
            Panel(
                "Launches",
                "How many launches are requested, and how do the requests end?",
                ((rate("slipway_launches_total", "kind", "outcome"), "{{kind}} {{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Ends, by result",
                "How do allocations end?",
                ((rate("slipway_ends_total", "result"), "{{result}}"),),
                unit="ops",
            ),
            Panel(
                "Ends, by reason",
                "Why do allocations end?",
                ((rate("slipway_ends_total", "result", "reason"), "{{result}} {{reason}}"),),
                unit="ops",
            ),
            Panel(
                "Transitions",
                "What happens to allocations?",
                ((rate("slipway_transitions_total", "event"), "{{event}}"),),
                unit="ops",
            ),
            Panel(
                "Decisions",
                "What does the scheduler decide?",
                ((rate("slipway_decisions_total", "pool", "kind"), "{{pool}} {{kind}}"),),
                unit="ops",
            ),
            Panel(
                "Preemptions",
                "How many allocations and ranks are evicted for other allocations?",
                ((rate("slipway_preemptions_total", "pool", "what"), "{{pool}} {{what}}"),),
                unit="ops",
                quiet="nothing was preempted",
            ),
            Panel(
                "Error of forecast starts, median",
                "How much do actual starts differ from the forecast?",
                ((p99("slipway_foreseen_start_error_seconds", "pool", "side", part="0.5"), "{{pool}} {{side}}"),),
                unit="s",
                quiet="no head of a queue had a reservation",
            ),
        ),
    },
)
