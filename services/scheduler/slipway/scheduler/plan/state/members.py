"""The members of a group in order, stored in blocks: a change costs one block, whatever the size of the group.

Owns the order and the blocks. `MemberList` is changed in place. `Members`, which it returns, never changes, and shares
the unchanged blocks. The members after the first few are a view: nothing is copied for it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import overload

from slipway.model.facts import AllocationFact
from slipway.model.position import WorkKey

BLOCK = 256
"""Members of a block that was filled in order; a block that was filled by inserts has at most twice as many."""

Member = tuple[WorkKey, AllocationFact]


def order_of(member: Member) -> WorkKey:
    """Return the member's key in the order."""
    return member[0]


def _last(block: Sequence[Member]) -> WorkKey:
    return block[-1][0]


class Members(Sequence[Member]):
    """An immutable sequence of members in order. A slice is a new tuple; `after` returns a view."""

    __slots__ = ("_ends", "_start", "blocks")

    def __init__(
        self, blocks: tuple[tuple[Member, ...], ...] = (), *, ends: tuple[int, ...] = (), start: int = 0
    ) -> None:
        self.blocks = blocks
        self._ends = ends or tuple(accumulate(map(len, blocks)))
        """number of members up to and including each block"""
        self._start = start

    def after(self, count: int) -> "Members":
        """Return all members but the first `count`."""
        return self if not count else Members(self.blocks, ends=self._ends, start=self._start + count)

    def index_of(self, key: WorkKey) -> int:
        """Return how many members are before `key`."""
        block = bisect_left(self.blocks, key, key=_last)
        before = self._ends[block - 1] if block else 0
        if block < len(self.blocks):
            before += bisect_left(self.blocks[block], key, key=order_of)
        return max(0, before - self._start)

    def before(self, prefix: tuple[int, int], *, is_behind: bool) -> int:
        """Return how many members have an order that begins below `prefix`; with `is_behind`, at or below `prefix`."""
        if not is_behind:
            return self.index_of((*prefix, (-1, 0), 0, 0, 0, ""))
        return self.index_of((prefix[0], prefix[1] + 1, (-1, 0), 0, 0, 0, ""))

    def __len__(self) -> int:
        return max(0, self._ends[-1] - self._start) if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Member: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Member, ...]: ...
    def __getitem__(self, index: int | slice) -> Member | tuple[Member, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return tuple(islice(self.after(start), max(0, stop - start)))[::step] if step > 0 else tuple(self)[index]
        at = index + (self._start if index >= 0 else self._ends[-1] if self._ends else 0)
        if at < self._start or not self._ends or at >= self._ends[-1]:
            raise IndexError(index)
        block = bisect_left(self._ends, at + 1) if at >= self._ends[0] else 0
        return self.blocks[block][at - (self._ends[block - 1] if block else 0)]

    def __iter__(self) -> Iterator[Member]:
        if not self._start:
            return chain.from_iterable(self.blocks)
        block = bisect_left(self._ends, self._start + 1)
        if block >= len(self.blocks):
            return iter(())
        first = self.blocks[block]
        inside = self._start - (self._ends[block - 1] if block else 0)
        return chain(islice(first, inside, None), chain.from_iterable(islice(self.blocks, block + 1, None)))


class MemberList:
    """The members of one group, which are added and removed."""

    __slots__ = ("_block", "_blocks", "_frozen")

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._blocks: list[list[Member]] = []
        self._frozen: list[tuple[Member, ...] | None] = []
        """each block as `freeze` returned it last; None once it has changed"""

    def add(self, member: Member) -> None:
        """Add a member."""
        blocks, frozen, key = self._blocks, self._frozen, member[0]
        if not blocks or (key > _last(blocks[-1]) and len(blocks[-1]) >= self._block):
            blocks.append([member])
            frozen.append(None)
            return
        at = min(bisect_left(blocks, key, key=_last), len(blocks) - 1)
        block = blocks[at]
        insort(block, member, key=order_of)
        frozen[at] = None
        if len(block) > 2 * self._block:
            blocks[at : at + 1] = [block[: self._block], block[self._block :]]
            frozen.insert(at, None)

    def remove(self, key: WorkKey) -> None:
        """Remove the member with the order `key`."""
        blocks, frozen = self._blocks, self._frozen
        at = bisect_left(blocks, key, key=_last)
        block = blocks[at]
        del block[bisect_left(block, key, key=order_of)]
        frozen[at] = None
        if at and len(block) + len(blocks[at - 1]) <= self._block:
            blocks[at - 1] += block
            frozen[at - 1] = None
            block = []
        if not block:
            del blocks[at], frozen[at]

    def freeze(self) -> Members:
        """Return all members as they are now."""
        frozen = self._frozen
        for at, known in enumerate(frozen):
            if known is None:
                frozen[at] = tuple(self._blocks[at])
        return Members(tuple(block for block in frozen if block is not None))

    def __bool__(self) -> bool:
        return bool(self._blocks)
