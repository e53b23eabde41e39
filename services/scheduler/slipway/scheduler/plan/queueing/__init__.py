"""The order of pending work: the queue tree and its quotas, the checks before admission, a cursor for each queue."""
