"""Values of a queue's `preemption.withinQueue` and `preemption.reclaim`, which define what its work may preempt."""

NEVER, ANY, NEWER = "Never", "Any", "LowerOrNewerEqual"
