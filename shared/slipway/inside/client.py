"""What a rank says to Slipway and asks of it: the library for code that runs inside a pod.

Owns the calls and where their address and token come from. It must not know anything of the rest of Slipway, and uses
the standard library only: this one file may be copied into any image.
"""

import os


def api_address() -> str:
    """Where the API is for this rank; empty outside of an allocation."""
    return os.environ.get("SLIPWAY_API", "").rstrip("/")
