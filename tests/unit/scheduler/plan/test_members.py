"""Members in blocks behave like one sorted list, after any additions and removals, and wherever a view begins."""

from bisect import bisect_left, bisect_right

from hypothesis import given
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact
from slipway.model.position import WorkKey
from slipway.scheduler.plan.state.pending import Member, MemberList, Members, order_of
from tests.support.planner import an_allocation

BLOCK = 3


def _member(number: int) -> Member:
    key: WorkKey = (0, 0, (number, 0), 0, 0, 0, f"a{number:03d}")
    fact: AllocationFact = an_allocation(f"a{number:03d}")
    return (key, fact)


MEMBERS = [_member(number) for number in range(40)]
moves = st.lists(st.integers(0, len(MEMBERS) - 1), max_size=120)


def _played(numbers: list[int]) -> tuple[MemberList, list[Member]]:
    """A roll, and the list that it must equal: each number adds its member, or removes it if it is there."""
    roll, plain = MemberList(BLOCK), list[Member]()
    for number in numbers:
        member = MEMBERS[number]
        if member in plain:
            roll.remove(member[0])
            plain.remove(member)
        else:
            roll.add(member)
            plain.insert(bisect_left(plain, member[0], key=order_of), member)
        if number % 3 == 0:
            roll.freeze()
    return roll, plain


@given(moves, st.integers(0, 45), st.integers(-45, 45), st.integers(-45, 45))
def test_they_are_a_sorted_list(numbers: list[int], start: int, one: int, other: int) -> None:
    """Length, items, slices and indexes equal those of the list, for all members and without the first few."""
    roll, plain = _played(numbers)
    assert bool(roll) == bool(plain)
    members, left = roll.freeze().after(start), plain[start:]
    assert list(members) == left
    assert len(members) == len(left)
    assert [members[at] for at in range(-len(left), len(left))] == left * 2
    assert members[one:other] == tuple(left[one:other])
    assert members[::-1] == tuple(left[::-1])
    for member in MEMBERS:
        assert members.index_of(member[0]) == bisect_left(left, member[0], key=order_of)
        assert bisect_right(members, member[0], key=order_of) == bisect_right(left, member[0], key=order_of)


@given(moves, moves)
def test_what_was_handed_out_never_changes(before: list[int], after: list[int]) -> None:
    """A frozen view does not change when members are added or removed later."""
    roll, plain = _played(before)
    frozen, kept = roll.freeze(), list(plain)
    there = {member[0] for member in plain}
    for number in dict.fromkeys(after):
        key = MEMBERS[number][0]
        (roll.remove(key) if key in there else roll.add(MEMBERS[number]))
    assert list(frozen) == kept


def test_a_change_touches_one_block() -> None:
    """The other blocks are the same objects as before."""
    roll, _ = _played(list(range(12)))
    first = roll.freeze()
    roll.remove(MEMBERS[5][0])
    second = roll.freeze()
    same = [one is other for one, other in zip(first.blocks, second.blocks, strict=True)]
    assert same.count(False) == 1


def test_none_has_no_item() -> None:
    """A view that begins behind the last member has no item either."""
    assert not Members()
    assert list(Members().after(1)) == []
    assert Members()[:1] == ()
    assert Members().index_of(MEMBERS[0][0]) == 0
