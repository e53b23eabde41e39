"""Launches: from a body and its templates to one Allocation, with its files and secret values."""
