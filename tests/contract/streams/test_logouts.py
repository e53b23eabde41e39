"""Every replica of the api reads the same ended logins and used codes."""

from slipway.streams import keys
from slipway.streams.ports import LogoutPage, Streams
from tests.support.redis import Backend


async def test_a_logout_of_one_replica_is_read_by_the_others(streams: Streams, backend: Backend) -> None:
    """Another replica reads from the beginning or after a cursor; a repeated write does no harm; without news the
    cursor stays."""
    others = backend.connect()
    assert await others.logouts.read(None, limit=9) == LogoutPage(ended={}, cursor=None)
    await streams.logouts.append({"a1": 1_800_000_000.5, "b2": 1_800_000_001.0})
    await streams.logouts.append({"a1": 1_800_000_000.5})
    first = await others.logouts.read(None, limit=2)
    assert (first.ended, first.has_more) == ({"a1": 1_800_000_000.5, "b2": 1_800_000_001.0}, True)
    second = await others.logouts.read(first.cursor, limit=2)
    assert (second.ended, second.has_more) == ({"a1": 1_800_000_000.5}, False)
    assert await others.logouts.read(second.cursor, limit=2) == LogoutPage(ended={}, cursor=second.cursor)


async def test_a_loss_is_said(streams: Streams, backend: Backend) -> None:
    """A reader with a cursor from before the loss is notified, and begins anew."""
    await streams.logouts.append({"a": 1.0})
    cursor = (await streams.logouts.read(None, limit=9)).cursor
    await backend.flush()
    assert (await streams.logouts.read(cursor, limit=9)).is_lost
    assert not (await streams.logouts.read(None, limit=9)).is_lost


async def test_what_cannot_be_read_is_skipped(streams: Streams, backend: Backend) -> None:
    """Entries of another version or of an attacker are skipped: the rest is read, and the cursor is behind them."""
    for fields in ({"x": b"y"}, {"login": b"a", "ends": b"-1"}, {"login": b"a b", "ends": b"1"}):
        await backend.add_raw(keys.LOGOUTS.prefix, None, fields)
    await streams.logouts.append({"a": 1.0})
    page = await streams.logouts.read(None, limit=9)
    assert page.ended == {"a": 1.0}
    assert (await streams.logouts.read(page.cursor, limit=9)).ended == {}


async def test_a_code_is_taken_once(streams: Streams, backend: Backend) -> None:
    """The first process that takes a code wins."""
    others = backend.connect()
    assert [await streams.logouts.take("a", 60), await others.logouts.take("a", 60)] == [True, False]
    assert await others.logouts.take("b", 60)


async def test_the_stored_login_is_the_last_one_written(streams: Streams, backend: Backend) -> None:
    """Any process may replace the stored value of a login; other logins keep theirs."""
    others = backend.connect()
    assert await others.logouts.kept("a") == ""
    await streams.logouts.keep("a", "first", 60)
    await others.logouts.keep("a", "second", 60)
    assert (await streams.logouts.kept("a"), await streams.logouts.kept("b")) == ("second", "")
