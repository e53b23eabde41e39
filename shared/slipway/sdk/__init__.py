"""The Python SDK: `from slipway.sdk import Client, AsyncClient, consume`.

`slipway` is a namespace package and can export nothing itself. The names are loaded when they are first used, so that
the command, which uses modules of this package, starts quickly.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipway.sdk.async_client import AsyncClient, AsyncRun
    from slipway.sdk.client import Client, Run
    from slipway.sdk.server_version import VersionWarning
    from slipway.sdk.subscriptions import Subscription, async_consume, consume

__all__ = ["AsyncClient", "AsyncRun", "Client", "Run", "Subscription", "VersionWarning", "async_consume", "consume"]

_MODULES = {"AsyncClient": "async_client", "AsyncRun": "async_client", "Client": "client", "Run": "client"} | {
    "VersionWarning": "server_version",
    "Subscription": "subscriptions",
    "async_consume": "subscriptions",
    "consume": "subscriptions",
}


def __getattr__(name: str) -> Any:
    """Return an exported name; the first use imports its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
