"""Whom a queue lets its work preempt: values of `preemption.withinQueue` and `preemption.reclaim`."""

NEVER, ANY, NEWER = "Never", "Any", "LowerOrNewerEqual"
