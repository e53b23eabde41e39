"""A clear refusal for data that is stored only in Redis, when Redis cannot be reached."""

import contextlib
from collections.abc import Generator

from slipway.api.http_errors import RedisUnavailableError
from slipway.errors import BusyError, DeadlineError, UnavailableError


@contextlib.contextmanager
def needs_redis(what: str) -> Generator[None]:
    """Turn an error of an unreachable Redis into RedisUnavailableError; `what` names the missing data (plural)."""
    try:
        yield
    except BusyError:
        raise  # Redis is reachable; only the connections of this process are all in use
    except (UnavailableError, DeadlineError) as error:
        raise RedisUnavailableError(f"{what} are stored in Redis, which cannot be reached right now") from error
