"""Whose turn it is: the tree of queues and its quotas, the checks before a turn, the cursor of each queue."""
