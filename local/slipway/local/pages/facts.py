"""What a pod of ours knows of its allocation, for people.

Pure: the environment in, rows out. Secrets are not in that environment, and nothing else of it is shown.
"""

import platform
from collections.abc import Mapping

Row = tuple[str, str]


def facts_of(env: Mapping[str, str]) -> list[Row]:
    """Name and value of each fact that is known, in the order of the page."""
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
