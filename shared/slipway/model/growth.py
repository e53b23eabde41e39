"""Elastic gangs that run with fewer ranks than requested: their message, and the pause after a failed growth.

Owns the message and the pause. Pure.
"""

GROW_AGAIN_S = 600.0
"""Seconds without a new growth after an added rank could not start."""
QUOTA_AGAIN_S = 30.0
"""Seconds of that pause after the first failure because of a namespace quota or of a missing permission."""


def below_count(*, have: int, count: int, gpus: int) -> str:
    """Return `3 of 8 ranks; grows when 5 more GPUs are free`; `gpus` are the whole GPUs that the missing ranks
    request."""
    lacks = f"{gpus} more {'GPU is' if gpus == 1 else 'GPUs are'} free"
    if not gpus:
        lacks = f"there is room for {count - have} more"
    return f"{have} of {count} ranks; grows when {lacks}"
