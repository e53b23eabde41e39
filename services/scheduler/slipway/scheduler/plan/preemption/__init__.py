"""Preemption: which running work is evicted or moved so that other work can be placed."""
