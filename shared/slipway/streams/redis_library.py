"""What the streams take from redis-py, imported without what redis-py would load and nothing here uses.

Owns the first import of `redis`. With the OpenTelemetry SDK installed, redis-py loads all of the SDK's metrics when it
is imported, for metrics that must be asked for and are not: that is a fifth of the start of a service, and 3 MiB of its
memory. Hidden for as long as the import takes, the SDK counts as not installed (redis-py has a branch for that), and
our own traces load what they need of it later.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_UNUSED: Final = "opentelemetry.sdk.metrics"


@contextmanager
def _hidden(module: str) -> Generator[None, None, None]:
    """The module cannot be imported while inside. One that is loaded already costs nothing more, and stays."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment] # pyright: ignore[reportArgumentType] - None says "absent"
    try:
        yield
    finally:
        del sys.modules[module]


with _hidden(_UNUSED):
    from redis import exceptions
    from redis.asyncio.connection import (
        AbstractConnection,
        Connection,
        SSLConnection,
        UnixDomainSocketConnection,
        parse_url,
    )
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff
    from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

__all__ = [
    "REDIS_CLUSTER_HASH_SLOTS",
    "AbstractConnection",
    "Connection",
    "NoBackoff",
    "Retry",
    "SSLConnection",
    "Sentinel",
    "UnixDomainSocketConnection",
    "exceptions",
    "key_slot",
    "parse_url",
]
