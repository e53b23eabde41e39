"""Every decoder of foreign bytes or text: each either returns a value or raises a documented error.

Owns the list. A `Decoder` is called with any bytes; `refusals` are the errors that its docstring promises. Any other
error is a finding, as are a wrong round trip and a call that takes seconds. `seeds` show a fuzzer valid input.
"""

import contextlib
import gzip
import io
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from slipway import yaml_reader
from slipway.accounting import daily_totals
from slipway.api.allocations.change_schemas import ChangeBody
from slipway.api.allocations.sorted_listing import Sorting
from slipway.api.auth import issuer
from slipway.api.auth.bearer import claims_of
from slipway.api.cluster.simulate_routes import SimulateBody
from slipway.api.http.decoding import checked, object_of
from slipway.api.http.errors import MalformedError
from slipway.api.http.networks import parse_networks
from slipway.api.proxy import headers
from slipway.api.queues.job_schemas import BatchBody, JobBody
from slipway.api.schemas import GatherBody, LaunchBody
from slipway.api.usage.prometheus import PrometheusError, samples_of
from slipway.api.webhooks.addresses import parse_target
from slipway.api.webhooks.hook import parse_key
from slipway.crd.policies import code_range
from slipway.crd.resolve import resolve
from slipway.crd.v1alpha1 import ResourcePool
from slipway.errors import ControlPlaneError, InvalidError
from slipway.facts.core_objects import FEED_KINDS, decode_fact, encode_fact
from slipway.inside import fetch
from slipway.kube import errors, extender_wire
from slipway.kube.client import server_facts
from slipway.kube.extender_wire import ExtenderFault
from slipway.kube.resources import ALLOCATIONS, NODES, PODS
from slipway.kube.wire import codec_of, cut_deep_json
from slipway.local.apiserver import registry, selectors
from slipway.local.apiserver import wire as envelope
from slipway.local.apiserver.status import StatusError
from slipway.logarchive import pieces
from slipway.model.ids import AllocationId
from slipway.model.resources import parse_quantity
from slipway.model.times import parse_duration, parse_time
from slipway.runtime.listen import parse_listen
from slipway.runtime.traceparent import parse_traceparent
from slipway.runtime.web_guard import is_foreign
from slipway.scheduler.decisions import record
from slipway.scheduler.decisions.record import entries_of, line_of
from slipway.scheduler.simulate import changes, scenario
from slipway.sdk import credentials
from slipway.streams import allgather, codec, logpacks, pages, routes
from slipway.streams.decisions import DecisionEntry
from slipway.streams.logpacks import LogLine
from slipway.streams.ports import FeedEntry, FeedOp, SpanRecord, WorkHint
from tests.support.logs import a_pack
from tests.support.redis import an_event
from tests.support.tokens import jwt_of

Json = dict[str, Any]
FIELD, VALUE = b"\x1e", b"\x1f"
"""The separators of fields, and of a field and its value: no text of ours contains them."""


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder. `call` accepts any input."""

    name: str
    call: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = (InvalidError,)
    seeds: tuple[bytes, ...] = ()

    def __call__(self, data: bytes) -> None:
        """Call it; raises what is a finding."""
        with contextlib.suppress(*self.refusals):
            self.call(data)


def entry_of(data: bytes) -> dict[str, bytes]:
    """A stream entry: fields and values as in Redis."""
    pairs = [part.partition(VALUE) for part in data.split(FIELD)]
    return {name.decode("utf-8", "replace"): value for name, _, value in pairs}


def bytes_of(entry: Mapping[str, bytes]) -> bytes:
    """The bytes of this entry."""
    return FIELD.join(name.encode() + VALUE + value for name, value in entry.items())


def _text(call: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: call(data.decode("utf-8", "surrogateescape"))


def _entry(call: Callable[[dict[str, bytes]], object]) -> Callable[[bytes], object]:
    return lambda data: call(entry_of(data))


def _event(data: bytes) -> None:
    event = codec.decode_event(entry_of(data))
    assert codec.decode_event(codec.encode_event(event)) == event


_FACT = b'{"name":"n","namespace":"m","uid":"u","version":1'
_FACTS = tuple(_FACT + b" " * pad + b"}" for pad in range(len(FEED_KINDS)))
"""One fact of each kind, selected by the length of the input."""


def _fact(data: bytes) -> None:
    kind = sorted(FEED_KINDS)[len(data) % len(FEED_KINDS)]
    fact = decode_fact(kind, data)
    assert decode_fact(kind, encode_fact(fact)) == fact


def _cut(data: bytes) -> None:
    try:
        before = json.loads(data)
    except (ValueError, RecursionError):
        cut_deep_json(data)
    else:
        assert data.count(b"{") + data.count(b"[") > 100 or json.loads(cut_deep_json(data)) == before


def _body(kind: type[Any]) -> Callable[[bytes], object]:
    return lambda data: checked(object_of(data), kind)


def _resolved(data: bytes) -> None:
    """An applied object, as far as the schema of the API server would accept it."""
    allocation = codec_of(ALLOCATIONS).decode(data)
    first = resolve(allocation, _POOL)
    if not first.errors:
        again = resolve(msgspec.structs.replace(allocation, spec=first.spec), _POOL)
        assert again.spec_hash == first.spec_hash, "resolving twice changes the hash"


def _fields(data: bytes) -> list[tuple[str, str]]:
    lines = data.decode("latin-1").split("\n")
    return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]


def _proxied(data: bytes) -> None:
    """Pass a client's request and a workload's answer: never with our credentials, never with a cookie outside its
    place."""
    sent = headers.request_fields(_fields(data), client="192.0.2.1", scheme="https", prefix="/proxy/a/8080")
    assert not any(name.lower() in ("authorization", "connection", "upgrade") for name, _ in sent)
    got = headers.response_fields(_fields(data), own=("10.0.0.1:80",), prefix="/proxy/a/8080")
    for name, value in got:
        if name.lower() == "set-cookie":
            assert "Path=/proxy/a/8080/" in value


async def _nobody(_address: object, _words: tuple[str, ...]) -> Any:
    raise AssertionError


_POOL = msgspec.convert({"metadata": {"name": "default"}, "spec": {}}, ResourcePool)
_MAIN = {"name": "main", "image": "i", "command": ["true"]}
_ALLOCATION: Json = {
    "apiVersion": "slipway.dev/v1alpha1",
    "kind": "Allocation",
    "metadata": {"name": "job", "namespace": "default", "uid": "0123456789abcdef", "resourceVersion": "7"},
    "spec": {
        "kind": "command",
        "ranks": [{"count": 2, "resources": {"cpu": "1"}}],
        "template": {"spec": {"containers": [_MAIN]}},
    },
}
_ONE = json.dumps(_ALLOCATION).encode()
_TRAINING = AllocationId("train-01234567")
_TICK = DecisionEntry(chain="c", number=1, tick=1, data=record.sealed(zlib.compress(b'{"format":1}')))
_SOUND = {
    "stream event": codec.encode_event(an_event()),
    "work hint": codec.encode_hint(WorkHint(namespace="default", allocation=_TRAINING)),
    "feed entry": codec.encode_feed(
        [FeedEntry(epoch=1, number=2, kind="nodes", op=FeedOp.PUT, key="n", rv="7", data=b'{"name":"n"}')]
    ),
    "seats of a gathering": {"n": b"2", "w:a": b"p t 0", "d:a": b"1", "w:b": b"p t -1", "d:b": b"null"},
    "recorded tick": codec.encode_decision(_TICK),
    "log lines": logpacks.encode_pack(
        a_pack(_TRAINING, [LogLine(attempt=1, rank=0, time="2026-01-02T03:04:05Z", text="hello")])
    ),
    "spans": codec.encode_spans(
        [SpanRecord(trace_id="a" * 32, span_id="b" * 16, name="bind", service="podworker", start_ns=1, end_ns=2)]
    ),
    "dead letter": codec.encode_dead("work:3", "1-1", 5, "no such thing", {"key": b"default/x"}),
}
_SEEDS = {name: (bytes_of(entry),) for name, entry in _SOUND.items()}

DECODERS: tuple[Decoder, ...] = (
    Decoder(name="stream event", call=_event, seeds=_SEEDS["stream event"]),
    Decoder(name="work hint", call=_entry(codec.decode_hint), seeds=_SEEDS["work hint"]),
    Decoder(
        name="claimed hint",
        call=lambda data: codec.decode_claim(0, "1-1", 1, entry_of(data)),
        seeds=_SEEDS["work hint"],
    ),
    Decoder(name="feed entry", call=_entry(codec.decode_feed), seeds=_SEEDS["feed entry"]),
    Decoder(name="seats of a gathering", call=_entry(allgather.seats_of), seeds=_SEEDS["seats of a gathering"]),
    Decoder(name="feed heartbeat", call=codec.decode_beat, seeds=(b'{"nodes":"12"}',)),
    Decoder(name="feed fact", call=_fact, refusals=(msgspec.ValidationError,), seeds=_FACTS),
    Decoder(name="recorded tick", call=_entry(codec.decode_decision), seeds=_SEEDS["recorded tick"]),
    Decoder(name="decision record", call=record.unpack, seeds=(_TICK.data,)),
    Decoder(
        name="decision log file",
        call=lambda data: list(entries_of(data.split(b"\n"))),
        seeds=(line_of("default", _TICK),),
    ),
    Decoder(name="log lines", call=_entry(logpacks.decode_pack), seeds=_SEEDS["log lines"]),
    Decoder(name="record of an archived log", call=pieces.decode_record),
    Decoder(
        name="piece of an archived log",
        call=lambda data: pieces.decode_piece(gzip.compress(data)),
        seeds=(b"1-1 1 1/0/stdout/ 2026-01-02T03:04:05Z text\n",),
    ),
    Decoder(name="spans", call=_entry(codec.decode_spans), seeds=_SEEDS["spans"]),
    Decoder(
        name="dead letter", call=lambda data: codec.decode_dead("1-1", entry_of(data)), seeds=_SEEDS["dead letter"]
    ),
    Decoder(name="activity", call=_entry(codec.decode_times)),
    Decoder(name="cursor", call=_text(codec.cursor_parts), seeds=(b"1000-3",)),
    Decoder(name="cursor of the firehose", call=_text(pages.firehose_positions), seeds=(b",".join([b"1-1"] * 16),)),
    Decoder(
        name="address of Redis",
        call=_text(lambda text: routes.parse(text, ask=_nobody)),
        seeds=(b"redis://u:p@h:6379/0", b"redis+sentinel://h:1,i:2/name", b"rediss+cluster://[::1]:7000"),
    ),
    Decoder(name="allocation", call=codec_of(ALLOCATIONS).decode, seeds=(_ONE,)),
    Decoder(name="resolved allocation", call=_resolved, seeds=(_ONE,)),
    Decoder(name="list of nodes", call=codec_of(NODES).decode_list, seeds=(b'{"metadata":{},"items":[]}',)),
    Decoder(
        name="watch of pods",
        call=codec_of(PODS).decode_event,
        refusals=(ControlPlaneError,),
        seeds=(
            b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}',
            b'{"type":"ERROR","object":{"code":410}}',
        ),
    ),
    Decoder(name="cut", call=_cut, refusals=(), seeds=(b'{"a":[1,{"b":"\\""}]}',)),
    Decoder(
        name="status of the API server",
        call=lambda data: errors.explain(errors.Verb.GET, 503, errors.read_status(data)),
        refusals=(),
        seeds=(b'{"code":409}', b'{"code":503,"details":{"retryAfterSeconds":%s}}' % (b"9" * 400)),
    ),
    Decoder(
        name="answer of an issuer",
        call=lambda data: issuer.tokens_of(data, "https://issuer.test").lifetime_s,
        refusals=(ControlPlaneError,),
        seeds=(b'{"id_token":"a.b.c","expires_in":"3600"}', b'{"expires_in":%s}' % (b"9" * 400)),
    ),
    Decoder(
        name="refusal of an issuer",
        call=issuer.refusal_of,
        refusals=(),
        seeds=(b'{"error":"invalid_grant","error_description":"no"}', b'{"error":%s}' % (b"9" * 400)),
    ),
    Decoder(
        name="version of the API server",
        call=lambda data: server_facts(data, "Sun, 06 Nov 1994 08:49:37 GMT"),
        seeds=(b'{"gitVersion":"v1.34.0"}',),
    ),
    Decoder(
        name="date of a server",
        call=lambda data: server_facts(b"{}", data.decode("latin-1")),
        seeds=(
            b"Sun, 06 Nov 1994 08:49:37 GMT",
            b"Sat, 01 Jan 0001 00:00:00 +2359",
            b"Fri, 31 Dec 9999 23:59:59 -2359",
        ),
    ),
    Decoder(
        name="answer of Prometheus",
        call=lambda data: samples_of(200, data),
        refusals=(PrometheusError,),
        seeds=(
            b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"NaN"]}]}}',
            b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"7"]}]}}',
        ),
    ),
    Decoder(name="Retry-After", call=_text(errors.read_retry_after), refusals=(), seeds=(b"3",)),
    Decoder(
        name="extender: filter",
        refusals=(ExtenderFault,),
        seeds=(b'{"NodeNames":["n"]}',),
        call=lambda data: extender_wire.read_filter(data, ["n", "m"], names_only=len(data) % 2 == 0),
    ),
    Decoder(
        name="extender: prioritize",
        refusals=(ExtenderFault,),
        seeds=(b'[{"Host":"n","Score":3}]',),
        call=lambda data: extender_wire.read_scores(data, ["n", "m"]),
    ),
    Decoder(
        name="extender: preempt",
        refusals=(ExtenderFault,),
        call=lambda data: extender_wire.read_preempt(data, {"n": ["u"]}),
    ),
    Decoder(name="extender: bind", call=extender_wire.read_bound, refusals=(ExtenderFault,)),
    Decoder(
        name="body: launch",
        call=_body(LaunchBody),
        refusals=(InvalidError, MalformedError),
        seeds=(b'{"kind":"command","image":"i","command":["true"]}',),
    ),
    Decoder(
        name="body: change", call=_body(ChangeBody), refusals=(InvalidError, MalformedError), seeds=(b'{"hold":true}',)
    ),
    Decoder(name="body: all-gather", call=_body(GatherBody), refusals=(InvalidError, MalformedError)),
    Decoder(name="body: job", call=_body(JobBody), refusals=(InvalidError, MalformedError), seeds=(b'{"name":"j"}',)),
    Decoder(name="body: batch", call=_body(BatchBody), refusals=(InvalidError, MalformedError)),
    Decoder(name="body: simulate", call=_body(SimulateBody), refusals=(InvalidError, MalformedError)),
    Decoder(
        name="sorting", call=_text(Sorting.parse), refusals=(MalformedError, InvalidError), seeds=(b"-endedAt,name",)
    ),
    Decoder(
        name="proxied header",
        call=_proxied,
        refusals=(),
        seeds=(
            b"Host: a\nCookie: a=b; slipway_x=y\nConnection: close, X-A\nSet-Cookie: a=b; Path=/\nLocation: http://10.0.0.1:80/x",
        ),
    ),
    Decoder(
        name="origin",
        call=_text(lambda text: is_foreign(text, "localhost:8080")),
        refusals=(),
        seeds=(b"http://a",),
    ),
    Decoder(name="webhook: key", call=_text(parse_key), seeds=(b"whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=",)),
    Decoder(name="webhook: target", call=_text(parse_target), seeds=(b"https://example.org:8443/a?b=c",)),
    Decoder(
        name="webhook: networks",
        call=_text(lambda text: parse_networks(text.split(","))),
        refusals=(ValueError,),
        seeds=(b"10.0.0.0/8,::1/128",),
    ),
    Decoder(name="quantity", call=_text(parse_quantity), refusals=(ValueError,), seeds=(b"1.5Gi", b"500m", b"1e3")),
    Decoder(name="duration", call=_text(parse_duration), refusals=(ValueError,), seeds=(b"2h45m", b"90s")),
    Decoder(
        name="time", call=_text(parse_time), refusals=(ValueError,), seeds=(b"2026-01-02T03:04:05.123456789+02:00",)
    ),
    Decoder(name="exit codes", call=_text(code_range), refusals=(ValueError,), seeds=(b"42", b"64-78")),
    Decoder(name="name of a log", call=_text(logpacks.source_of), refusals=(), seeds=(b"1/0/stdout/",)),
    Decoder(name="listen address", call=_text(parse_listen), refusals=(ValueError,), seeds=(b"[::1]:8080", b":80")),
    Decoder(
        name="traceparent",
        call=_text(parse_traceparent),
        refusals=(),
        seeds=(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",),
    ),
    Decoder(name="scenario", call=_text(scenario.decode), seeds=(b"nodes: [{name: n, cpu: 4}]\nallocations: []\n",)),
    Decoder(
        name="scenario text",
        call=_text(lambda text: yaml_reader.parse(text, yaml_reader.SCENARIO)),
        seeds=(b"a: &x [1, 2]\nb: *x\nc: !!str 1\n", b'{"a": "\\ud83d\\ude00"}'),
    ),
    Decoder(name="changes", call=lambda data: changes.decode(object_of(data)), refusals=(InvalidError, MalformedError)),
    Decoder(
        name="usage totals",
        call=lambda data: daily_totals.decode({"rows": data.decode("latin-1")}),
        refusals=(msgspec.DecodeError,),
    ),
    Decoder(
        name="claims of a token",
        call=lambda data: claims_of(jwt_of(data)),
        refusals=(),
        seeds=(
            b'{"iss":"i","aud":["a"],"exp":1e999}',
            b'{"exp":%s}' % (b"9" * 400),
            b'{"exp":true}',
            b'{"exp":-1e300}',
        ),
    ),
    Decoder(name="end of a token", call=lambda data: credentials.ends_at(jwt_of(data)), refusals=()),
    Decoder(name="archive", call=lambda data: fetch.check(io.BytesIO(data)), refusals=(fetch.ArchiveError,)),
    Decoder(
        name="label selector", call=_text(selectors.parse_labels), refusals=(StatusError,), seeds=(b"a in (b,c),!d",)
    ),
    Decoder(
        name="field selector", call=_text(selectors.parse_fields), refusals=(StatusError,), seeds=(b"status.phase!=X",)
    ),
    Decoder(name="JSONPath", call=_text(registry.parse_path), refusals=(ValueError,), seeds=(b".spec.a[*].b",)),
    Decoder(
        name="protobuf envelope",
        call=envelope.decode,
        refusals=(StatusError,),
        seeds=(envelope.MAGIC, envelope.MAGIC + b"\x08\x01"),
    ),
)
BY_NAME = {each.name: each for each in DECODERS}
