"""Conversion of values to stream fields and back, and the rule for the next entry of an allocation's stream.

Only this module knows the fields of an entry. It owns the wire format: CloudEvents 1.0 in binary mode for events, small
versioned field maps for the rest. It must not know Redis or IO. Decoded data may be hostile: each function returns a
value or raises `InvalidError`, and nothing else. An event of an unknown type raises `UnknownTypeError`: consumers write
it to the dead letters, readers skip it.

Invariant: encoding is a pure, deterministic function of the value, so that republishing gives the same bytes.

The rule keeps a stream ordered and contiguous. `lua/append.lua` is its atomic twin on the server; a test runs random
operations on both.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway.errors import InvalidError
from slipway.model.events import TYPE_PREFIX, AllocationEvent
from slipway.model.ids import AllocationId, split_allocation_id
from slipway.model.lifecycle import Event, Phase
from slipway.model.numbers import plain
from slipway.streams import keys
from slipway.streams.decisions import DecisionEntry, DecisionLogLimits
from slipway.streams.macs import ForgedError, Macs
from slipway.streams.ports import (
    Claimed,
    DeadLetter,
    EntryOutcome,
    FeedEntry,
    FeedOp,
    SpanRecord,
    StreamEntry,
    WorkHint,
)
from slipway.streams.webhooks import Delivery

Fields = Mapping[str, bytes]

SOURCE_PREFIX: Final = "/slipway/"
FIELD_BYTES_MAX: Final = 65_536
_CURSOR = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_TRUNCATED = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,17})")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_WEBHOOK_FIELD = "webhook"
_RESERVED = frozenset({"seq", "attempt", "phase", "reason", "uid", "createdMs", "truncated"})

_json = msgspec.json.Encoder(order="deterministic")
_object = msgspec.json.Decoder(dict[str, Any])
_spans = msgspec.json.Decoder(list[SpanRecord])
_texts = msgspec.json.Decoder(dict[str, str])
_packed = msgspec.msgpack.Encoder()
_FEED_KEY: Final = keys.CLUSTER.prefix.encode()
_feed = msgspec.msgpack.Decoder(list[tuple[str, FeedOp, str, str, bytes]])


class UnknownTypeError(InvalidError):
    """A well-formed event of a type that this version does not know."""


def cursor_parts(cursor: str) -> tuple[int, int]:
    """Return the two numbers of a cursor. Raises `InvalidError` when it is not a cursor."""
    if _CURSOR.fullmatch(cursor) is None:
        raise InvalidError(f"not a cursor: {cursor[:64]!r}")
    major, minor = cursor.split("-")
    parts = int(major), int(minor)
    if max(parts) >= 2**63:
        raise InvalidError(f"not a cursor: {cursor[:64]!r}")
    return parts


def truncated_range(mark: str) -> tuple[int, int]:
    """Return (from, to) of a truncation mark. Raises `InvalidError` when it is not one."""
    match = _TRUNCATED.fullmatch(mark)
    if match is None or int(match[1]) > int(match[2]):
        raise InvalidError(f"not a range of seq: {mark[:64]!r}")
    return int(match[1]), int(match[2])


def encode_event(event: AllocationEvent) -> dict[str, bytes]:
    """Return the fields of an event's entry. Keys of `event.data` that are the event's own names are dropped.

    The bytes depend only on the values, not on their spelling or order in a store. So an entry that is built again is
    equal to the first one, except for `traceparent`.
    """
    data: dict[str, Any] = {key: plain(value) for key, value in event.data.items() if key not in _RESERVED}
    data |= {
        "seq": event.seq,
        "attempt": event.attempt,
        "phase": event.phase.value,
        "reason": event.reason,
        "uid": event.uid,
        "createdMs": event.created_ms,
    }
    fields = {
        "specversion": b"1.0",
        "id": event.event_id.encode(),
        "source": f"{SOURCE_PREFIX}{event.namespace}/{event.name}".encode(),
        "type": f"{TYPE_PREFIX}{event.type.value}".encode(),
        "subject": event.allocation_id.encode(),
        "time": event.time.encode(),
        "datacontenttype": b"application/json",
    }
    if event.truncated is not None:
        truncated_range(event.truncated)
        data["truncated"] = event.truncated
        fields["truncated"] = event.truncated.encode()
    fields["data"] = _json.encode(data)
    if event.traceparent:
        fields["traceparent"] = event.traceparent.encode()
    return fields


def decode_event(fields: Fields) -> AllocationEvent:
    """Return the event of an entry. Raises `InvalidError` (`UnknownTypeError` for a type of another version)."""
    if _text(fields, "specversion") != "1.0":
        raise InvalidError("specversion is not 1.0")
    subject = _text(fields, "subject")
    data = _json_object(fields, "data")
    seq, attempt, created_ms = (_natural(data, name) for name in ("seq", "attempt", "createdMs"))
    namespace, name = _source(_text(fields, "source"))
    uid, reason = _string(data, "uid"), _string(data, "reason")
    if subject != f"{name}-{uid[:8]}" or split_allocation_id(subject) is None:
        raise InvalidError("subject is not the AllocationID of source and uid")
    if _text(fields, "id") != f"{subject}/{seq}":
        raise InvalidError("id is not <subject>/<seq>")
    time = _text(fields, "time")
    if _TIME.fullmatch(time) is None:
        raise InvalidError("time is not RFC 3339")
    truncated = _text(fields, "truncated") if "truncated" in fields else None
    if truncated is not None:
        truncated_range(truncated)
    return AllocationEvent(
        allocation_id=AllocationId(subject),
        namespace=namespace,
        name=name,
        uid=uid,
        created_ms=created_ms,
        seq=seq,
        attempt=attempt,
        type=_event_type(_text(fields, "type")),
        phase=_phase(_string(data, "phase")),
        reason=reason,
        time=time,
        data={key: value for key, value in data.items() if key not in _RESERVED},
        truncated=truncated,
        traceparent=_traceparent(fields),
    )


def encode_hint(hint: WorkHint) -> dict[str, bytes]:
    """Return the fields of a work hint."""
    fields = {"v": b"1", "key": f"{hint.namespace}/{hint.allocation}".encode()}
    if hint.traceparent:
        fields["traceparent"] = hint.traceparent.encode()
    return fields


def decode_hint(fields: Fields) -> WorkHint:
    """Return the work hint of an entry. Raises `InvalidError` (`UnknownTypeError` for another version)."""
    if _text(fields, "v") != "1":
        raise UnknownTypeError("unknown version of a work hint")
    namespace, _, allocation = _text(fields, "key").partition("/")
    if _NAMESPACE.fullmatch(namespace) is None or split_allocation_id(allocation) is None:
        raise InvalidError("key is not <namespace>/<AllocationID>")
    return WorkHint(namespace=namespace, allocation=AllocationId(allocation), traceparent=_traceparent(fields))


def decode_claim(shard: int, entry_id: str, deliveries: int, fields: Fields) -> Claimed:
    """Return a delivered hint, whether it can be decoded or not."""
    try:
        hint, problem = decode_hint(fields), ""
    except InvalidError as exc:
        hint, problem = None, str(exc)
    return Claimed(shard=shard, entry_id=entry_id, deliveries=deliveries, hint=hint, problem=problem)


def encode_feed(entries: Sequence[FeedEntry], macs: Macs | None = None) -> dict[str, bytes]:
    """Return the fields of consecutive entries: epoch, first number, data of each entry, and the code of all these.

    Without keys there is no code. Raises `UnavailableError` when a key is missing.
    """
    fields = {
        "e": b"%d" % entries[0].epoch,
        "n": b"%d" % entries[0].number,
        "d": _packed.encode([(each.kind, each.op, each.key, each.rv, each.data) for each in entries]),
    }
    if macs is not None:
        fields["m"] = macs.sign(_feed_place(fields["e"], fields["n"]), fields["d"])
    return fields


def decode_feed(fields: Fields, macs: Macs | None = None) -> list[FeedEntry]:
    """Return the feed entries of a stream entry; at least one. With keys, raises `ForgedError` when the code is not
    ours.
    """
    if macs is not None:
        macs.check(fields.get("m"), _feed_place(fields.get("e", b""), fields.get("n", b"")), fields.get("d", b""))
    epoch, first = (_number(_text(fields, name), name) for name in ("e", "n"))
    try:
        said = _feed.decode(fields.get("d", b""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidError("not entries of the feed") from exc
    if not said:
        raise InvalidError("a feed entry is empty")
    return [
        FeedEntry(epoch=epoch, number=first + place, kind=kind, op=op, key=key, rv=rv, data=data)
        for place, (kind, op, key, rv, data) in enumerate(said)
    ]


def _feed_place(epoch: bytes, number: bytes) -> bytes:
    """Return the place that the code of a feed entry binds it to. So a code is invalid in another stream, in another
    epoch and at another number.
    """
    return b"%b %b %b" % (_FEED_KEY, epoch, number)


def feed_end(fields: Fields, macs: Macs | None = None) -> tuple[int, int]:
    """Return (epoch, number) at the end of an entry of the feed.

    An entry of another version, as an upgrade leaves it, returns at least its epoch, so that the next epoch can begin.
    With keys, an entry without a valid code returns (0, 0). Otherwise an attacker who once controlled Redis could end
    the feed for ever.
    """
    try:
        last = decode_feed(fields, macs)[-1]
        return last.epoch, last.number
    except ForgedError:
        return 0, 0
    except InvalidError:
        try:
            return _number(_text(fields, "e"), "e"), 0
        except InvalidError:
            return 0, 0


def is_forged(newest: Sequence[tuple[tuple[int, int], Fields]], end: bytes, macs: Macs) -> bool:
    """Whether the newest entry of the feed has the id `end` and was not written with our keys."""
    if not newest or b"%d-%d" % newest[0][0] != end:
        return False
    try:
        decode_feed(newest[0][1], macs)
    except ForgedError:
        return True
    except InvalidError:
        return False
    return False


def encode_beat(versions: Mapping[str, str]) -> bytes:
    """Return the data of a heartbeat."""
    return _json.encode(dict(versions))


def decode_beat(data: bytes) -> dict[str, str]:
    """Return {kind: resourceVersion published so far} from a heartbeat's data."""
    try:
        return _texts.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidError("the heartbeat is not a JSON object of strings") from exc


def encode_decision(entry: DecisionEntry) -> dict[str, bytes]:
    """Return the fields of a recorded tick."""
    return {"c": entry.chain.encode(), "n": b"%d" % entry.number, "t": b"%d" % entry.tick, "d": entry.data}


def decode_decision(fields: Fields) -> DecisionEntry:
    """Return the recorded tick of an entry, with its data unchanged. Raises `InvalidError`."""
    number, tick = (_number(_text(fields, name), name) for name in "nt")
    return DecisionEntry(chain=_text(fields, "c"), number=number, tick=tick, data=fields.get("d", b""))


def check_decision(entry: DecisionEntry, caps: DecisionLogLimits) -> None:
    """Raises `InvalidError` for an entry whose data uses more than half of its log's limit."""
    if len(entry.data) * 2 > caps.size:
        raise InvalidError(f"{len(entry.data)} bytes are too many for a decision log of {caps.size}")


def encode_spans(spans: Sequence[SpanRecord]) -> dict[str, bytes]:
    """Return the fields of spans that were written together."""
    return {"v": b"2", "spans": _json.encode(spans)}


def decode_spans(fields: Fields) -> list[SpanRecord]:
    """Return the spans of an entry."""
    try:
        return _spans.decode(_bytes(fields, "spans"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidError("not spans") from exc


def encode_dead(source: str, entry_id: str, deliveries: int, cause: str, fields: Fields) -> dict[str, bytes]:
    """Return the fields of a dead letter: its source, its cause, and the original's fields with the prefix `f:`."""
    letter = {
        "source": source.encode(),
        "entry": entry_id.encode(),
        "deliveries": b"%d" % deliveries,
        "cause": cause.encode("utf-8", "replace")[:1_024],
    }
    return letter | {f"f:{name}": value for name, value in fields.items()}


def encode_dead_delivery(delivery: Delivery, tries: int, cause: str) -> dict[str, bytes]:
    """Return the fields of a dead letter for a webhook's delivery. The webhook's name is stored among the event's
    fields.
    """
    fields = {_WEBHOOK_FIELD: delivery.webhook.encode(), **delivery.fields}
    return encode_dead(keys.DEAD_DELIVERY, delivery.entry_id, tries, cause, fields)


def replay_of(letter: DeadLetter, fields: Fields) -> tuple[str, dict[str, bytes]]:
    """Return (key of the stream, fields of the entry) to send a letter again. Raises `InvalidError` when that is
    impossible.
    """
    original = dead_fields(fields)
    if letter.source in keys.WORK_KEYS:
        return letter.source, original
    webhook = original.pop(_WEBHOOK_FIELD, b"").decode("utf-8", "replace")
    if letter.source == keys.DEAD_DELIVERY and webhook:
        return keys.webhook(webhook), original
    raise InvalidError(f"a dead letter of {letter.source[:64]!r} cannot be sent again")


def decode_dead(letter_id: str, fields: Fields) -> DeadLetter:
    """Return the dead letter of an entry. Never raises, so that any letter can be shown."""
    shown = {name: value.decode("utf-8", "replace") for name, value in fields.items()}
    deliveries = shown.get("deliveries", "")
    return DeadLetter(
        id=letter_id,
        source=shown.get("source", ""),
        entry_id=shown.get("entry", ""),
        cause=shown.get("cause", ""),
        deliveries=int(deliveries) if deliveries.isascii() and deliveries.isdigit() and len(deliveries) < 10 else 0,
        fields={name[2:]: value for name, value in shown.items() if name.startswith("f:")},
    )


def dead_fields(fields: Fields) -> dict[str, bytes]:
    """Return the original's fields inside a dead letter, unchanged."""
    return {name[2:]: value for name, value in fields.items() if name.startswith("f:")}


def encode_logout(login: str, ends_at: float) -> dict[str, bytes]:
    """Return the fields of an ended login: its id, and when it would have expired."""
    return {"login": login.encode(), "ends": encode_time(ends_at)}


def decode_logout(fields: Fields) -> tuple[str, float]:
    """Return (login, its expiry). Raises `InvalidError` when the fields are not these."""
    login, ends = _bytes(fields, "login"), _bytes(fields, "ends")
    if not ends.isdigit() or len(ends) > 15 or not login.isalnum() or len(login) > 64:
        raise InvalidError("not an ended login")
    return login.decode(), int(ends) / 1_000


def encode_time(at_s: float) -> bytes:
    """Return seconds since the epoch as whole milliseconds."""
    return b"%d" % int(at_s * 1_000)


def decode_times(fields: Fields) -> dict[str, float]:
    """Return {source: seconds since the epoch} of an activity hash. A value that is not a time is skipped."""
    return {name: int(value) / 1_000 for name, value in fields.items() if value.isdigit() and len(value) <= 15}


def _bytes(fields: Fields, name: str) -> bytes:
    value = fields.get(name)
    if value is None:
        raise InvalidError(f"field {name} is missing")
    if len(value) > FIELD_BYTES_MAX:
        raise InvalidError(f"field {name} is longer than {FIELD_BYTES_MAX} bytes")
    return value


def _text(fields: Fields, name: str) -> str:
    try:
        return _bytes(fields, name).decode()
    except UnicodeDecodeError as exc:
        raise InvalidError(f"field {name} is not UTF-8") from exc


def _number(value: str, name: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise InvalidError(f"field {name} is not a number")
    return int(value)


def _json_object(fields: Fields, name: str) -> dict[str, Any]:
    try:
        return _object.decode(_bytes(fields, name))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidError(f"field {name} is not a JSON object") from exc


def _string(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise InvalidError(f"data.{name} is not a string")
    return value


def _natural(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise InvalidError(f"data.{name} is not a natural number")
    return value


def _source(source: str) -> tuple[str, str]:
    namespace, _, name = source.removeprefix(SOURCE_PREFIX).partition("/")
    if not source.startswith(SOURCE_PREFIX) or _NAMESPACE.fullmatch(namespace) is None:
        raise InvalidError("source is not /slipway/<namespace>/<name>")
    return namespace, name


def _event_type(value: str) -> Event:
    try:
        return Event(value.removeprefix(TYPE_PREFIX)) if value.startswith(TYPE_PREFIX) else Event("")
    except ValueError as exc:
        raise UnknownTypeError(f"unknown event type {value[:64]!r}") from exc


def _phase(value: str) -> Phase:
    try:
        return Phase(value)
    except ValueError as exc:
        raise InvalidError("data.phase is not a phase") from exc


def _traceparent(fields: Fields) -> str:
    """Return the traceparent; empty when it is absent or malformed, because it must never cause the loss of a
    message.
    """
    value = fields.get("traceparent", b"")[:64].decode("ascii", "replace")
    return value if _TRACEPARENT.fullmatch(value) else ""


def judge_order(entry: StreamEntry, last_seq: int | None) -> EntryOutcome:
    """Return whether the entry may follow a stream that ends with `last_seq` (None: it is empty)."""
    seq = entry.event.seq
    if last_seq is None:
        return EntryOutcome.APPENDED if entry.oldest_seq in (None, seq) else EntryOutcome.GAP
    if seq <= last_seq:
        return EntryOutcome.DUPLICATE
    if entry.event.truncated is not None:
        bridges = truncated_range(entry.event.truncated) == (last_seq + 1, seq - 1)
        return EntryOutcome.APPENDED if bridges else EntryOutcome.GAP
    return EntryOutcome.APPENDED if seq == last_seq + 1 else EntryOutcome.GAP
