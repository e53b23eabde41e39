"""The health of a server: reported by each implementation, on one server and on a cluster, without any change."""

from slipway.streams.ports import Streams, WorkHint
from tests.support.redis import Backend, an_id


async def test_reading_the_health_changes_nothing(backend: Backend, streams: Streams) -> None:
    """The check reports the kind of server, and creates no key."""
    found = await streams.conditions.look()
    assert tuple(map(int, found.version.split(".")[:2])) >= (7, 0)
    assert found.product
    assert found.time is not None
    assert abs(found.time - found.asked_at) < 5.0
    assert (found.policy, found.refused, found.unread) == ("noeviction", [], [])
    assert (found.dead, found.waiting, found.stale_consumers) == (0, 0, 0)
    assert await backend.keys() == set()


async def test_dead_letters_are_counted(streams: Streams) -> None:
    """Every dead letter is counted."""
    await streams.hints.send([WorkHint(namespace="ns", allocation=an_id())])
    queue = streams.work_queue("a")
    [claimed] = await queue.claim(limit=10, block_s=1)
    await queue.dead_letter(claimed, cause="x")
    assert (await streams.conditions.look()).dead == 1
