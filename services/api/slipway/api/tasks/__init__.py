"""Calls from inside pods: their tokens, gatherings, rendezvous, signals, the notice of a preemption."""
