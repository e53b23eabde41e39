"""Allocations as clients read and change them: views, lists, events, logs, commands in ranks."""
