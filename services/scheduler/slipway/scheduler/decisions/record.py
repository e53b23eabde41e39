"""One recorded tick: the inputs of the planner, and its decisions, in the form in which they are stored. Pure.

The first record of a chain, its base, contains all facts. Every other record contains only the facts that have changed
since the previous record of its chain. A new version only adds fields. A record of another format raises
OtherFormatError.

Facts are stored encoded, by the kinds of the cluster feed and the additional kinds below. The digest is a sum over the
facts, so its update costs only the changed facts. Equal facts have equal digests, whichever process gathered them and
in whatever order.

A decision log in a file has one line per recorded tick, a JSON object. `slipway replay --save` writes the same lines
from a live log, so a replay needs neither the cluster nor the version that wrote the log.
"""

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from slipway.errors import InvalidError
from slipway.model.ledger import Ledger
from slipway.scheduler.plan.explanation.explanations import Explanations, WaitingGroup
from slipway.scheduler.plan.placement.policy import PlacementPolicy
from slipway.scheduler.plan.placement.tick_state import PlanTrace, Scores
from slipway.scheduler.plan.state.extender_results import ExtenderVerb, Key
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Grow, Plan, ReservedPlaces, as_data
from slipway.streams.decisions import DecisionEntry

FORMAT = 1
LEVEL = 1
"""the compression level: facts are similar, and speed matters more than size"""
PACKED_AT_ONCE = 1 << 17
"""the bytes of text that are compressed in one step; other tasks run between the steps"""
SEAL_BYTES = 8
UNPACKED_MAX = 1 << 29
"""in bytes; a larger text cannot be a record of ours"""

ANSWERS = "answers"
"""The kind of the facts about extender answers, in addition to the kinds of the cluster feed."""
ACCOUNTS = "accounts"
"""The kind of the usage of queues, for their budgets; it is one fact, without a name."""
PAST = "past"
"""The kind of the past usage of queues and users, for fair shares; it is one fact, without a name."""

GONE = msgspec.Raw(b"null")
Facts = dict[str, dict[str, msgspec.Raw]]
"""{kind: {key: the fact as JSON; null when it was removed}}"""


class OtherFormatError(InvalidError):
    """Another version has written the record."""


class RecordedDecisions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The decisions of the planner. A replay reproduces all of them bit for bit."""

    admits: tuple[Admit, ...] = ()
    evictions: tuple[Evict, ...] = ()
    grows: tuple[Grow, ...] = ()
    deferred: tuple[str, ...] = ()
    """uids of `admits` that start only when the places of their victims are free"""
    dropped: tuple[str, ...] = ()
    """ids of open decisions that reserve no places any more"""
    kept: tuple[ReservedPlaces, ...] = ()
    """places that are reserved for blocked queue heads, and from when"""
    looked: tuple[str, ...] = ()
    """keys of the first allocations for which places were searched, in the order of the search"""
    scores: dict[str, Scores] = {}
    """{allocation key: best nodes -> plugin -> value} of those first allocations that are admitted"""
    waiting: dict[str, int] = {}
    """{code of the first blocking gate: number of allocations}"""
    reasons: dict[str, dict[str, Any]] = {}
    """{allocation key: its explanation} of one allocation of each waiting group"""


class Divergence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One decision that differs between two plans on the same inputs; the side of a plan without it is empty."""

    allocation: str
    kind: str
    """admit, evict or grow"""
    live: dict[str, Any] = {}
    other: dict[str, Any] = {}


class ShadowComparison(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The comparison with the plan of the shadow policy."""

    policy_hash: str
    same: int = 0
    different: int = 0
    divergences: tuple[Divergence, ...] = ()
    """the first differences"""


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One tick. `seed` and `at` are the planner's arguments; `ledger` has the decisions that were open then."""

    format: int
    pool: str
    epoch: int
    tick: int
    chain: str
    number: int
    """0 for the base of its chain"""
    at: float
    seed: int
    facts: Facts
    ledger: Ledger
    input_hash: str
    policy_hash: str
    decided: RecordedDecisions
    planner: str = ""
    """the version of Slipway that planned"""
    consulted: bool = False
    """extenders were consulted; their answers are among the facts"""
    shadow: ShadowComparison | None = None
    grows: bool = False
    """the plan could add ranks to running gangs"""


class _Head(msgspec.Struct, frozen=True):
    format: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(DecisionRecord)
_head = msgspec.json.Decoder(_Head)


def text_of(record: DecisionRecord) -> bytes:
    """Return the record as JSON."""
    return _encoder.encode(record)


def pack(record: DecisionRecord) -> bytes:
    """Return the record in its stored form."""
    return sealed(zlib.compress(text_of(record), LEVEL))


def sealed(packed: bytes) -> bytes:
    """Return `packed` with its digest, so that changed bytes are found even if they decompress to the same text."""
    return packed + hashlib.blake2b(packed, digest_size=SEAL_BYTES).digest()


def packing() -> "zlib._Compress":  # pyright: ignore[reportPrivateUsage] - the only name that the type has
    """Return a compressor for a record's text in pieces."""
    return zlib.compressobj(LEVEL)


def unpack(data: bytes) -> DecisionRecord:
    """Return the record of stored data.

    Raises:
        OtherFormatError: another version has written it.
        InvalidError: it is damaged.
    """
    unzip = zlib.decompressobj()
    packed = data[:-SEAL_BYTES]
    if sealed(packed) != data:
        raise InvalidError("a record is damaged: its digest differs")
    try:
        text = unzip.decompress(packed, UNPACKED_MAX)
        if not unzip.eof or unzip.unused_data:
            raise InvalidError("a record is damaged: it is cut off, or too long")
        head = _head.decode(text)
        if head.format != FORMAT:
            raise OtherFormatError(f"a record is of format {head.format}, and this version reads {FORMAT}")
        return _decoder.decode(text)
    except zlib.error as exc:
        raise InvalidError("a record is damaged: it cannot be unpacked") from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidError(f"a record is damaged: {exc}") from exc


def answer_name(key: Key) -> str:
    """Return the fact key of an extender answer."""
    url, verb, ask = key
    return f"{verb} {ask.hex()} {url}"


def answer_key(name: str) -> Key:
    """Return the extender key of such a fact key. Raises `ValueError` when it is invalid."""
    verb, ask, url = name.split(" ", 2)
    return url, ExtenderVerb(verb), bytes.fromhex(ask)


def policy_hash(policy: PlacementPolicy) -> str:
    """Return a hash of a policy, which is equal for equal policies."""
    return _short_hash(msgspec.json.encode(policy, order="sorted"))


def input_hash(digest: str, ledger: Ledger, at: float, seed: int) -> str:
    """Return a hash of all inputs of a plan except the policy: facts (their digest), ledger, time, seed."""
    said = msgspec.to_builtins(ledger)
    if not ledger.evicted:
        # A record of an older version, without eviction limits, must keep its hash.
        del said["evicted"]
    return _short_hash(msgspec.json.encode((digest, said, at, seed), order="sorted"))


def canonical(value: Any) -> bytes:
    """Return equal bytes for equal values."""
    return msgspec.json.encode(msgspec.to_builtins(value, str_keys=True), order="sorted")


def _short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


_MODULUS = 1 << 128

Kinds = dict[str, dict[str, bytes]]


class EncodedFacts:
    """{kind: {key: the fact as JSON}}, and its digest."""

    def __init__(self) -> None:
        self.kinds: Kinds = {}
        self.size = 0
        """the bytes of all facts"""
        self._sum = 0

    @property
    def digest(self) -> str:
        """The digest, which is equal for equal facts."""
        return f"{self._sum:032x}"

    def put(self, kind: str, key: str, data: bytes | None) -> bool:
        """Store one fact, or remove it (None); return whether that changed anything."""
        known = self.kinds.setdefault(kind, {})
        before = known.get(key)
        if before == data:
            return False
        if before is not None:
            self._sum -= _weight(kind, key, before)
            self.size -= len(before)
        if data is None:
            del known[key]
        else:
            known[key] = data
            self._sum += _weight(kind, key, data)
            self.size += len(data)
        self._sum %= _MODULUS
        return True

    def __iter__(self) -> Iterator[tuple[str, str, bytes]]:
        return ((kind, key, data) for kind, facts in self.kinds.items() for key, data in facts.items())


def _weight(kind: str, key: str, data: bytes) -> int:
    head = f"{kind}\0{key}\0".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(head + data, digest_size=16).digest(), "big")


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a log file: an entry, with `data` as base64. Unknown fields of other versions are ignored."""

    pool: str
    chain: str
    number: int
    tick: int
    data: str


_lines = msgspec.json.Decoder(DecisionLine)


def line_of(pool: str, entry: DecisionEntry) -> bytes:
    """Return the line of an entry."""
    data = base64.b64encode(entry.data).decode()
    line = DecisionLine(pool=pool, chain=entry.chain, number=entry.number, tick=entry.tick, data=data)
    return msgspec.json.encode(line) + b"\n"


def entries_of(lines: Iterable[bytes], pool: str = "") -> Iterator[tuple[str, DecisionEntry]]:
    """Return (pool, entry) of each line, in order; with `pool`, only its entries.

    Raises:
        InvalidError: a line is damaged; the message has its number.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = _lines.decode(text)
            data = base64.b64decode(line.data, validate=True)
        except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError) as exc:
            raise InvalidError(f"line {number} is not an entry of a decision log: {exc}") from exc
        if pool in ("", line.pool):
            yield line.pool, DecisionEntry(chain=line.chain, number=line.number, tick=line.tick, data=data)


REASONS_MAX = 32
"""The most groups of waiting allocations whose reason is recorded for one tick."""


def decisions_of(plan: Plan, trace: PlanTrace) -> RecordedDecisions:
    """Return the recorded part of `plan` and its trace; of the waiting allocations, one of each group."""
    waiting: dict[str, int] = {}
    reasons: dict[str, dict[str, Any]] = {}
    for waiting_group in _groups(plan):
        gate = waiting_group.why.gate.value
        waiting[gate] = waiting.get(gate, 0) + len(waiting_group.members)
        if len(reasons) < REASONS_MAX and waiting_group.members:
            reasons[waiting_group.members[0][1].key] = _explanation_data(as_data(waiting_group.why))
    admitted = {admit.allocation for admit in plan.admits}
    return RecordedDecisions(
        admits=plan.admits,
        evictions=plan.evictions,
        grows=plan.grows,
        deferred=tuple(sorted(plan.deferred)),
        dropped=plan.dropped,
        kept=plan.kept,
        looked=tuple(trace.looked),
        scores={key: scores for key, scores in trace.scores.items() if key in admitted},
        waiting=dict(sorted(waiting.items())),
        reasons=reasons,
    )


def divergences(live: RecordedDecisions | Plan, other: RecordedDecisions | Plan) -> tuple[int, list[Divergence]]:
    """Return (number of decisions that both plans made, the other decisions of either plan), by allocation."""
    of_live, of_other = _decisions(live), _decisions(other)
    same, found = 0, list[Divergence]()
    for kind, allocation in sorted(of_live.keys() | of_other.keys()):
        one, two = of_live.get((kind, allocation), {}), of_other.get((kind, allocation), {})
        if canonical(one) == canonical(two):
            same += 1
        else:
            found.append(Divergence(allocation=allocation, kind=kind, live=one, other=two))
    return same, sorted(found, key=lambda each: (each.allocation, each.kind))


def _decisions(plan: RecordedDecisions | Plan) -> dict[tuple[str, str], dict[str, Any]]:
    """Return {(kind, allocation): the decision as plain data}."""
    found = {("admit", admit.allocation): _data(admit) for admit in plan.admits}
    for evict in plan.evictions:
        found["evict", evict.allocation] = _data(evict)
    for grow in plan.grows:
        found["grow", grow.allocation] = _data(grow)
    return found


def _data(decision: Admit | Evict | Grow) -> dict[str, Any]:
    return msgspec.to_builtins(decision, str_keys=True)


def _groups(plan: Plan) -> Iterable[WaitingGroup]:
    """Return the groups of waiting allocations, without a loop over all of them."""
    if isinstance(plan.explanations, Explanations):
        return plan.explanations.groups()
    return ()


def _explanation_data(data: dict[str, Any]) -> dict[str, Any]:
    """Return the explanation without the position in the queue, which differs within the group."""
    return {key: value for key, value in data.items() if key not in ("position", "ahead", "aheadSlots")}
