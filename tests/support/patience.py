"""A call of the REST API, made again while the API is away: for tests that kill it."""

from collections.abc import Callable
from typing import TypeVar

from slipway.cli.http import Api
from slipway.errors import TransientError
from tests.support.wait import wait_until

T = TypeVar("T")


def ask(connect: Callable[[], Api], call: Callable[[Api], T]) -> T:
    """Return the answer of the call; each try uses a connection of its own."""
    last = "nothing"

    def attempt() -> list[T]:
        nonlocal last
        api = connect()
        try:
            return [call(api)]
        except TransientError as error:
            last = str(error)
            return []
        finally:
            api.close()

    try:
        return wait_until(attempt, "an answer of the API")[0]
    except AssertionError as error:
        raise AssertionError(f"{error}; the API said: {last}") from None
