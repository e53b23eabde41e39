"""HOME for our programs and their children: that of the image when it is writable, else that of the rank.

Jupyter's images have a home with settings that their users expect. Other images have no home for the uid of the rank.
Only a program inside the container can distinguish the two. Standard library only.
"""

from __future__ import annotations

import os

OF_RANK = "/run/slipway/home"
"""An empty folder that every uid may write, when the pod has one (`slipway.crd.kinds.HOME_PATH`)."""


def with_home(env: dict[str, str]) -> dict[str, str]:
    """Return `env` with a writable HOME."""
    home = env.get("HOME", "")
    if home and os.path.isdir(home) and os.access(home, os.W_OK):
        return env
    if os.access(OF_RANK, os.W_OK):
        return {**env, "HOME": OF_RANK}
    return {**env, "HOME": env.get("TMPDIR") or "/tmp"}  # noqa: S108 - a user without a home of its own
