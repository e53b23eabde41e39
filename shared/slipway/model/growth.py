"""Elastic gangs that run with fewer ranks than they ask for: what is said of them, and how long a failed growth waits.

Owns the words and the pause. Pure.
"""

GROW_AGAIN_S = 600.0
"""A gang of which an added rank could not start asks for no other rank for so long."""
QUOTA_AGAIN_S = 30.0
"""The same, where a quota of its namespace had no room, or a permission was missing, for the first time."""


def below_count(*, have: int, count: int, gpus: int) -> str:
    """`3 of 8 ranks; grows when 5 more GPUs are free`; `gpus` are the whole GPUs that the missing ranks ask for."""
    lacks = f"{gpus} more {'GPU is' if gpus == 1 else 'GPUs are'} free"
    if not gpus:
        lacks = f"there is room for {count - have} more"
    return f"{have} of {count} ranks; grows when {lacks}"
