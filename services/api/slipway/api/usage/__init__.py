"""Usage: sums of the past, shares of queues and users, and the utilisation of GPUs."""
