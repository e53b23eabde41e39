"""Pages of facts: they are decoded to the same facts, and equal roles are one object."""

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.facts.pages import BYTES_MAX, PageReader, encode_page
from slipway.model.facts import AllocationFact, PodFact
from tests.support.planner import a_role, an_allocation

NAMES = st.text("abc-é", min_size=1, max_size=8)


@given(st.lists(st.tuples(NAMES, st.integers(0, 2**53), st.integers(0, 3), st.booleans()), max_size=20))
def test_allocations_come_back(each: list[tuple[str, int, int, bool]]) -> None:
    """Allocations are decoded with their roles, also without any, in order and with their versions."""
    told = [
        (f"ns/{name}", version, an_allocation(name, *(a_role(count) for count in range(1, roles + 1)), hold=held))
        for name, version, roles, held in each
    ]
    assert PageReader().read(encode_page("allocations", told)) == ("allocations", told)


def test_what_has_no_roles_comes_back() -> None:
    """A page of a kind without roles is decoded; a page has one kind."""
    pod = PodFact(namespace="ns", name="p", uid="u", node="n", labels={"a": "é"})
    assert PageReader().read(encode_page("pods", [("ns/p", 7, pod)])) == ("pods", [("ns/p", 7, pod)])


def test_roles_that_are_alike_are_the_same() -> None:
    """Equal roles become the same object, within a page and over pages, whether or not they were one object when they
    were encoded."""
    reader = PageReader()
    pages = [
        encode_page("allocations", [(f"ns/{name}", 1, an_allocation(name, a_role(2))) for name in names])
        for names in ("ab", "cd")
    ]
    facts = [fact for page in pages for _, _, fact in reader.read(page)[1]]
    assert len({id(fact.roles) for fact in facts if isinstance(fact, AllocationFact)}) == 1


GOOD = encode_page("allocations", [("ns/a", 1, an_allocation("a", a_role(2)))])
_PLAIN = msgspec.msgpack.decode(zlib.decompress(GOOD))


def _page(**changed: object) -> bytes:
    kind, roles, told = _PLAIN
    given = {"kind": kind, "roles": roles, "told": told} | changed
    return zlib.compress(msgspec.msgpack.encode([given["kind"], given["roles"], given["told"]]))


BAD = {
    "nothing": b"",
    "not packed": b"abc",
    "cut off": GOOD[:-5],
    "other": zlib.compress(b"\xc1"),
    "a kind that nobody knows": _page(kind="secrets"),
    "no such roles": _page(roles=[]),
    "not roles": _page(roles=[b"{"]),
    "roles of a pod": _page(kind="pods"),
    "not a fact": _page(told=[["ns/a", 1, -1, b"[]"]]),
    "too large": zlib.compress(b"\0" * (BYTES_MAX + 1)),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_is_no_page_is_refused(data: bytes) -> None:
    """An invalid page raises the error after which a reader LISTs."""
    with pytest.raises(msgspec.ValidationError):
        PageReader().read(data)
