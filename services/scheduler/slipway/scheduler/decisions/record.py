"""One recorded tick: the inputs of the planner, and its decisions, in the form in which they are stored. Pure.

A record contains everything except some facts: a base has all facts, every other record has only the facts that have
changed since the previous record of its chain. Fields are only ever added. A record of another format raises
OtherFormatError.
"""

import hashlib
import zlib
from typing import Any

import msgspec

from slipway.errors import InvalidError
from slipway.model.ledger import Ledger
from slipway.scheduler.plan.placement.plan_trace import Scores
from slipway.scheduler.plan.placement.policy import PlacementPolicy
from slipway.scheduler.plan.state.extender_results import ExtenderVerb, Key
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Grow, ReservedPlaces

FORMAT = 1
LEVEL = 1
"""the compression level: facts are similar, and speed matters more than size"""
PACKED_AT_ONCE = 1 << 17
"""the bytes of text that are compressed at a time, while other tasks wait"""
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
    """the first keys of allocations for which places were searched, in that order"""
    scores: dict[str, Scores] = {}
    """{allocation key: best nodes -> plugin -> value} of the first allocations that were searched for"""
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
    """Append a digest: changed bytes are damage, even if they decompress to the same text."""
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
