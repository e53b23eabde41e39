"""Encoding is exact and deterministic; decoding hostile fields returns a value or raises `InvalidError`, nothing
else."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.errors import InvalidError
from slipway.model.lifecycle import Event, Phase
from slipway.streams import codec, logpacks
from slipway.streams.ports import FeedEntry, FeedOp, SpanRecord, WorkHint
from tests.support.redis import an_event, an_id

texts = st.text(st.characters(codec="utf-8"), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
events = st.builds(
    an_event,
    st.integers(1, 10**9),
    name=st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True),
    type=st.sampled_from(Event),
    phase=st.sampled_from(Phase),
    reason=texts,
    attempt=st.integers(1, 1_000),
    data=st.dictionaries(texts.filter(lambda key: key not in RESERVED), json_values, max_size=4),
    truncated=st.none() | st.just("3-7"),
)
RESERVED = {"seq", "attempt", "phase", "reason", "uid", "createdMs", "truncated"}


def test_an_entry_that_is_built_again_is_the_same_bytes() -> None:
    """An entry that is encoded again has the same bytes, although the API server returns 5.0 as 5, and keys in another
    order."""
    first = an_event(data={"seconds": {"Running": 5.0, "Pending": 0.25}, "each": [1.0, {"a": 2e3}], "big": 1e21})
    again = an_event(data={"big": 10**21, "each": [1, {"a": 2000}], "seconds": {"Pending": 0.25, "Running": 5}})
    assert codec.encode_event(first) == codec.encode_event(again)
    assert b'"Running":5}' in codec.encode_event(first)["data"]


@given(events)
def test_an_event_survives_its_fields(event: Any) -> None:
    """Decoding what was encoded gives the same event."""
    assert codec.decode_event(codec.encode_event(event)) == event


def test_encoding_does_not_depend_on_the_order_of_data() -> None:
    """Two relays publish the same bytes."""
    one, other = an_event(data={"a": 1, "b": 2}), an_event(data={"b": 2, "a": 1})
    assert codec.encode_event(one) == codec.encode_event(other)


def test_data_can_not_forge_the_events_own_facts() -> None:
    """A key of the free data that is one of the event's names is dropped."""
    fields = codec.encode_event(an_event(3, data={"seq": 99, "uid": "x", "ok": 1}))
    event = codec.decode_event(fields)
    assert (event.seq, event.data) == (3, {"ok": 1})


def changed(**changes: bytes | None) -> dict[str, bytes]:
    fields = codec.encode_event(an_event(3)) | {name: value for name, value in changes.items() if value is not None}
    return {name: value for name, value in fields.items() if changes.get(name, b"") is not None}


def changed_data(**changes: Any) -> dict[str, bytes]:
    fields = codec.encode_event(an_event(3))
    fields["data"] = msgspec.json.encode(msgspec.json.decode(fields["data"]) | changes)
    return fields


@pytest.mark.parametrize(
    "fields",
    [
        {},
        changed(specversion=b"0.3"),
        changed(specversion=None),
        changed(id=b"train-0123abcd/4"),
        changed(source=b"/other/default/train"),
        changed(source=b"/slipway/default/other"),
        changed(source=b"/slipway/../train"),
        changed(subject=b"train-ffffffff"),
        changed(time=b"yesterday"),
        changed(time=b"\xff\xfe"),
        changed(data=b"[]"),
        changed(data=b"{" * 100_000),
        changed(data=b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
        changed(data=b"null"),
        changed(truncated=b"7-3"),
        changed(truncated=b"all"),
        changed_data(seq="3"),
        changed_data(seq=-1),
        changed_data(seq=True),
        changed_data(seq=2**60),
        changed_data(phase="Sleeping"),
        changed_data(uid=None),
    ],
)
def test_a_broken_event_is_refused(fields: dict[str, bytes]) -> None:
    """An event with a broken field that readers rely on is refused."""
    with pytest.raises(InvalidError):
        codec.decode_event(fields)


def test_an_unknown_type_is_told_apart() -> None:
    """An event type of a newer version raises another error than garbage."""
    for name in (b"dev.slipway.allocation.teleported", b"org.example.thing"):
        with pytest.raises(codec.UnknownTypeError):
            codec.decode_event(changed(type=name))


def test_a_broken_traceparent_costs_no_message() -> None:
    """A broken traceparent is dropped, and the message is kept."""
    assert codec.decode_event(changed(traceparent=b"\xff\x00garbage")).traceparent == ""


@given(st.dictionaries(texts, st.binary(max_size=60), max_size=12))
def test_garbage_never_raises_anything_else(garbage: dict[str, bytes]) -> None:
    """Garbage never raises another error, because decoders may read anything in Redis."""
    known = codec.encode_event(an_event(3))
    for fields in (garbage, known | garbage, {**known, **dict.fromkeys(known, b"\xf0\x9f")}):
        for decode in (
            codec.decode_event,
            codec.decode_hint,
            codec.decode_feed,
            logpacks.decode_pack,
            codec.decode_spans,
        ):
            try:
                decode(fields)
            except InvalidError:
                continue
    codec.decode_dead("1-1", garbage)
    codec.decode_times(garbage)


@given(st.sampled_from(sorted(codec.encode_event(an_event(3)))), st.binary(max_size=80))
def test_one_hostile_field_never_raises_anything_else(name: str, value: bytes) -> None:
    """One hostile field among correct ones raises only `InvalidError`."""
    try:
        codec.decode_event(codec.encode_event(an_event(3)) | {name: value})
    except InvalidError:
        return


@pytest.mark.parametrize(
    "key", [b"", b"/", b"default", b"default/", b"/x-0123abcd", b"a/b/c-0123abcd", b"A/x-0123abcd"]
)
def test_a_hint_names_an_allocation(key: bytes) -> None:
    """A hint is <namespace>/<AllocationID>; anything else is refused."""
    with pytest.raises(InvalidError):
        codec.decode_hint({"v": b"1", "key": key})


def test_the_small_ones_survive_their_fields() -> None:
    """Hints, feed entries, lines and spans are equal after encoding and decoding."""
    hint = WorkHint(namespace="team-a", allocation=an_id(), traceparent=f"00-{'0' * 31}1-{'b' * 16}-01")
    assert codec.decode_hint(codec.encode_hint(hint)) == hint
    entry = FeedEntry(epoch=3, number=9, kind="pods", op=FeedOp.DELETE, key="a/b", rv="12", data=b"\x00\xff")
    assert codec.decode_feed(codec.encode_feed([entry])) == [entry]
    assert set(codec.encode_feed([entry])) == {"e", "n", "d"}  # without keys there is no other field
    span = SpanRecord(trace_id="a", span_id="b", name="n", service="s", start_ns=1, end_ns=2, attributes={"k": "v"})
    assert codec.decode_spans(codec.encode_spans([span])) == [span]
    assert codec.decode_beat(codec.encode_beat({"pods": "7"})) == {"pods": "7"}


def test_a_dead_letter_keeps_the_original_exactly() -> None:
    """A dead letter keeps the exact original: bytes that are no text survive storing and replay."""
    original = {"v": b"1", "key": b"\xff\x00"}
    fields = codec.encode_dead("slipway:work:{03}", "1-1", 6, "boom", original)
    assert codec.dead_fields(fields) == original
    letter = codec.decode_dead("2-0", fields)
    assert (letter.source, letter.entry_id, letter.deliveries, letter.cause) == ("slipway:work:{03}", "1-1", 6, "boom")
