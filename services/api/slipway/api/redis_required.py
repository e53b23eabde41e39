"""What is kept in Redis only says so when Redis is away."""

import contextlib
from collections.abc import Generator

from slipway.api.http_errors import RedisAwayError
from slipway.errors import BusyError, DeadlineError, UnavailableError


@contextlib.contextmanager
def needs_redis(what: str) -> Generator[None]:
    """Turns an absent server into a refusal that names what cannot be had."""
    try:
        yield
    except BusyError:
        raise  # Redis is there
    except (UnavailableError, DeadlineError) as error:
        raise RedisAwayError(f"{what} are kept in Redis, which cannot be reached right now") from error
