"""The lines of a watch: no change is left out, however slowly a client reads."""

from contextlib import aclosing

import pytest

from slipway.local.apiserver.store import ServedEvent
from slipway.local.apiserver.watching import Wakers, WatchQuery, watch
from tests.contract.kube.samples import a_config
from tests.unit.local.apiserver.support import a_core, meta_of


def as_line(event: ServedEvent) -> bytes:
    return f"{event.type} {meta_of(event.obj)['name']}\n".encode()


@pytest.mark.parametrize("sends_initial", [False, True])
async def test_a_change_while_the_client_reads_the_present_state_is_sent(*, sends_initial: bool) -> None:
    """The watch has sent the present state. Before the client reads on, one object is deleted and another is created.
    The watch sends both changes."""
    core = a_core()
    core.create("configmaps", "default", a_config("first"))
    kind = core.registry.get("configmaps")
    assert kind is not None
    query = WatchQuery(kind=kind, namespace="default", timeout_s=1.0, bookmarks=True, sends_initial=sends_initial)
    async with aclosing(watch(core, Wakers(core), query, as_line, bookmark_interval_s=60.0)) as lines:
        assert b"ADDED first\n" in await anext(lines)
        core.delete("configmaps", "default", "first")
        core.create("configmaps", "default", a_config("second"))
        assert await anext(lines) == b"DELETED first\nADDED second\n"
