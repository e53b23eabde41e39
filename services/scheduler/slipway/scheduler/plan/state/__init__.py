"""The state that a plan reads: nodes, their usage, pending work, and the queues' past use. Decides nothing."""
