"""Hooks of a `CoreKube` that make some calls fail: before the server does the call, or after it, so that the answer is
lost."""

import asyncio

from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from tests.support.kube_core import Hook


def failing(verb: Verb, plural: str, times: int) -> Hook:
    """A hook that makes the first `times` calls of this kind fail."""
    left = [times]

    async def strike(called: Verb, what: str) -> None:
        await asyncio.sleep(0)
        if called is verb and what == plural and left[0]:
            left[0] -= 1
            raise UnavailableError("down")

    return strike
