"""What a plan looks at: the nodes and what is used on them, what waits, what the queues have used. Decides nothing."""
