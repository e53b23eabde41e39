"""The parts of redis-py that the streams use, imported without modules that redis-py would load and we do not use.

This module owns the first import of `redis`. With the OpenTelemetry SDK installed, redis-py loads all of the SDK's
metrics on import, for metrics that are off by default. That is a fifth of the start of a service and 3 MiB of its
memory. During the import the SDK's metrics are hidden. redis-py then behaves as without the SDK, for which it has a
branch. Our own traces load the parts that they need later.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_UNUSED: Final = "opentelemetry.sdk.metrics"


@contextmanager
def _hidden(module: str) -> Generator[None, None, None]:
    """Make the module impossible to import inside the context. A module that is already loaded stays loaded."""
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
