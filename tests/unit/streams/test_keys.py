"""The exact names of the keys that other programs read."""

from slipway.model.ids import AllocationId
from slipway.streams import keys
from tests.support.redis import an_id


def test_the_names_are_the_documented_ones() -> None:
    """The names of the keys are the documented ones, because integrations use them; the braces are hash tags."""
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
    """The shard of an allocation never changes: processes of different versions must agree, and a change would break
    the order of its entries."""
    assert keys.shard_of(AllocationId("123456789")) == 0xCBF43926 % 16  # the check value of CRC-32
    assert [keys.shard_of(an_id(f"run-{number}")) for number in range(6)] == [4, 10, 9, 7, 14, 0]


def test_every_stream_is_bounded() -> None:
    """Every stream is bounded: by a cap, a lifetime, or by trimming acknowledged entries."""
    assert all(family.length_max or family.ttl_s or family.group for family in keys.TABLE)
