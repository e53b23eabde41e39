"""Queues, jobs and workspaces, and the positions of what waits."""
