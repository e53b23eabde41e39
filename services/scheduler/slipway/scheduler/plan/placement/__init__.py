"""Placement of ranks on nodes: filters and scores for one rank, roles, topology, and whole gangs on a what-if copy."""
