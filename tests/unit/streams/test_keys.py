"""The names that others read by, exactly."""

from slipway.model.ids import AllocationId
from slipway.streams import keys
from tests.support.redis import an_id


def test_the_names_are_the_documented_ones() -> None:
    """Integrations use these very strings; the braces are hash tags."""
    assert keys.allocation(an_id()) == "slipway:alloc:{train-0123abcd}"
    assert keys.logs(an_id()) == "slipway:logs:{train-0123abcd}"
    assert keys.trace(an_id()) == "slipway:trace:{train-0123abcd}"
    assert keys.activity(an_id()) == "slipway:activity:{train-0123abcd}"
    assert (keys.EVENT_KEYS[0], keys.EVENT_KEYS[-1]) == ("slipway:events:{00}", "slipway:events:{15}")
    assert (keys.WORK_KEYS[7], len(keys.WORK_KEYS)) == ("slipway:work:{07}", 16)
    assert {keys.CLUSTER.prefix, keys.WAKE.prefix, keys.DEAD.prefix} == {
        "slipway:cluster",
        "slipway:wake",
        "slipway:dead",
    }


def test_the_shard_never_changes() -> None:
    """Processes of different versions must agree; a change would split the order of a subject."""
    assert keys.shard_of(AllocationId("123456789")) == 0xCBF43926 % 16  # the check value of CRC-32
    assert [keys.shard_of(an_id(f"run-{number}")) for number in range(6)] == [4, 10, 9, 7, 14, 0]


def test_every_stream_is_bounded() -> None:
    """By a cap, a life time, or by trimming what is acknowledged."""
    assert all(family.length_max or family.ttl_s or family.group for family in keys.TABLE)
