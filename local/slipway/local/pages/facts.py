"""The facts about its allocation that a page shows, read from the pod's environment.

Pure: takes the environment, returns rows. The rows contain only the variables listed here, and no secret.
"""

import platform
from collections.abc import Mapping

Row = tuple[str, str]


def facts_of(env: Mapping[str, str]) -> list[Row]:
    """Return name and value of each known fact, in the order of the page."""
    world = env.get("WORLD_SIZE", "1")
    trace = env.get("TRACEPARENT", "").split("-")
    rows = [
        ("Allocation", env.get("SLIPWAY_ALLOCATION_ID", "")),
        ("Attempt", env.get("SLIPWAY_ATTEMPT", "")),
        ("Rank", f"{env['SLIPWAY_RANK']} of {world}" if env.get("SLIPWAY_RANK") else ""),
        ("Pod", env.get("HOSTNAME", "")),
        ("Address", env.get("SLIPWAY_POD_IP", "")),
        ("Devices", env.get("SLIPWAY_DEVICES", "")),
        ("Trace", trace[1] if len(trace) == 4 else ""),
        ("Python", platform.python_version()),
    ]
    return [(name, value) for name, value in rows if value]
