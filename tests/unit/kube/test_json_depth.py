"""An object that is nested too deeply is cut, and does not block the reading of others."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.kube.resources import ALLOCATIONS
from slipway.kube.wire import LEVELS_MAX, codec_of, cut_deep_json

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=20,
)


def deep(levels: int) -> str:
    return '{"a":[' * (levels // 2) + '"\\"}]"' + "]}" * (levels // 2)


def levels_of(value: Any) -> int:
    """Return the depth of the value; without recursion."""
    found = 0
    left: list[tuple[Any, int]] = [(value, 0)]
    while left:
        item, level = left.pop()
        found = max(found, level)
        match item:
            case dict():
                left += [(each, level + 1) for each in cast("dict[str, Any]", item).values()]
            case list():
                left += [(each, level + 1) for each in cast("list[Any]", item)]
            case _:
                pass
    return found - 1


def an_allocation(template: str) -> bytes:
    spec = '{"kind":"command","template":' + template + "}"
    return ('{"metadata":{"name":"x","uid":"u","resourceVersion":"7"},"spec":' + spec + "}").encode()


@given(PLAIN)
def test_what_is_shallow_stays_as_it_is(value: Any) -> None:
    """A value within the limit stays the same to the byte."""
    body = json.dumps(value).encode()
    assert cut_deep_json(body) == body


@given(PLAIN, st.integers(LEVELS_MAX, 2000))
def test_what_is_cut_is_json_and_keeps_what_stands_beside(value: Any, levels: int) -> None:
    """The result of a cut is JSON, and keeps everything before and after the deep part."""
    body = f'{{"before": {json.dumps(value)}, "deep": {deep(levels)}, "after": {json.dumps(value)}}}'
    found = json.loads(cut_deep_json(body.encode()))
    assert (found["before"], found["after"]) == (value, value)
    assert levels_of(found) <= LEVELS_MAX


@pytest.mark.parametrize("levels", [900, 1100, 9000, 100_000])
def test_a_deep_template_keeps_nobody_from_the_other_objects(levels: int) -> None:
    """An object with a too deep template is read and cut, alone, in a list and in a watch, and the other objects are
    complete."""
    codec = codec_of(ALLOCATIONS)
    poison, other = an_allocation(deep(levels)), an_allocation('{"spec":{}}')
    assert codec.decode(poison).metadata.version == 7
    page = codec.decode_list(b'{"metadata":{"resourceVersion":"9"},"items":[' + poison + b"," + other + b"]}")
    assert [item.spec.template == {"spec": {}} for item in page.items] == [False, True]
    event = codec.decode_event(b'{"type":"ADDED","object":' + poison + b"}")
    assert (event.type.value, event.resource_version) == ("ADDED", "7")
