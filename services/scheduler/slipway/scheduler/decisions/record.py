"""One recorded tick: what the planner saw, and what it said. The form in which it is kept. Pure.

A record is self-sufficient but for its facts: those of a base are all there are, those of any other record are what has
changed since the record before it in its chain. Field names only get added; a record of another format is none of ours,
and said to be so.
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
"""of the compression: facts are much alike, and time matters more"""
PACKED_AT_ONCE = 1 << 17
"""bytes of text that are packed in one go, where others wait"""
SEAL_BYTES = 8
UNPACKED_MAX = 1 << 29
"""bytes; more is no record of ours"""

ANSWERS = "answers"
"""The kind of what extenders have said, beside the kinds of the cluster feed."""
ACCOUNTS = "accounts"
"""The kind of what queues have used, for their budgets; it is one fact, without a name."""
PAST = "past"
"""The kind of what queues and users have used before, for fair shares; it is one fact, without a name."""

GONE = msgspec.Raw(b"null")
Facts = dict[str, dict[str, msgspec.Raw]]
"""{kind: {key: the fact as JSON; null when it is gone}}"""


class OtherFormatError(InvalidError):
    """Another version wrote it."""


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the planner said. Everything of it is reproduced bit for bit by a replay."""

    admits: tuple[Admit, ...] = ()
    evictions: tuple[Evict, ...] = ()
    grows: tuple[Grow, ...] = ()
    deferred: tuple[str, ...] = ()
    """uids of `admits` that start once the places of their victims are really free"""
    dropped: tuple[str, ...] = ()
    """ids of open decisions that hold no places any more"""
    kept: tuple[ReservedPlaces, ...] = ()
    """places that are kept for blocked heads, and from when"""
    looked: tuple[str, ...] = ()
    """keys of the allocations that a place was sought for, in that order; the first ones"""
    scores: dict[str, Scores] = {}
    """{allocation key: best nodes -> plugin -> value} of the first ones that were looked at"""
    waiting: dict[str, int] = {}
    """{code of the first blocking gate: allocations}"""
    reasons: dict[str, dict[str, Any]] = {}
    """{allocation key: its explanation} of one of each sort that waits"""


class Divergence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One decision that two plans on the same inputs do not share; a side that did not decide is empty."""

    allocation: str
    kind: str
    """admit or evict"""
    live: dict[str, Any] = {}
    other: dict[str, Any] = {}


class Shadowed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the shadow policy would have done."""

    policy_hash: str
    same: int = 0
    different: int = 0
    divergences: tuple[Divergence, ...] = ()
    """the first of them"""


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One tick. `seed` and `at` are the planner's arguments, `ledger` what was open when it looked."""

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
    decided: Decided
    planner: str = ""
    """the version of Slipway that planned"""
    consulted: bool = False
    """extenders had a say; what they have said is among the facts"""
    shadow: Shadowed | None = None
    grows: bool = False
    """the plan could add ranks to running gangs"""


class _Head(msgspec.Struct, frozen=True):
    format: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(DecisionRecord)
_head = msgspec.json.Decoder(_Head)


def text_of(record: DecisionRecord) -> bytes:
    """The record as JSON."""
    return _encoder.encode(record)


def pack(record: DecisionRecord) -> bytes:
    """The record as it is kept."""
    return sealed(zlib.compress(text_of(record), LEVEL))


def sealed(packed: bytes) -> bytes:
    """With a digest behind it: a change may leave what is unpacked the same, and is damage nevertheless."""
    return packed + hashlib.blake2b(packed, digest_size=SEAL_BYTES).digest()


def packing() -> "zlib._Compress":  # pyright: ignore[reportPrivateUsage] - the only name that the type has
    """What packs a record's text piece by piece."""
    return zlib.compressobj(LEVEL)


def unpack(data: bytes) -> DecisionRecord:
    """The record that was kept.

    Raises:
        OtherFormatError: another version wrote it.
        InvalidError: it is damaged.
    """
    unzip = zlib.decompressobj()
    packed = data[:-SEAL_BYTES]
    if sealed(packed) != data:
        raise InvalidError("a record is damaged: its digest is another")
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
    """What an answer is kept under."""
    url, verb, ask = key
    return f"{verb} {ask.hex()} {url}"


def answer_key(name: str) -> Key:
    """The key of a name. Raises `ValueError` when it is none."""
    verb, ask, url = name.split(" ", 2)
    return url, ExtenderVerb(verb), bytes.fromhex(ask)


def policy_hash(policy: PlacementPolicy) -> str:
    """The version of a policy: equal for policies that say the same."""
    return _short_hash(msgspec.json.encode(policy, order="sorted"))


def input_hash(digest: str, ledger: Ledger, at: float, seed: int) -> str:
    """Of everything that a plan is a function of, but for the policy: facts (their digest), ledger, time, seed."""
    said = msgspec.to_builtins(ledger)
    if not ledger.evicted:
        # A record of a version without eviction limits has the hash that it had then.
        del said["evicted"]
    return _short_hash(msgspec.json.encode((digest, said, at, seed), order="sorted"))


def canonical(value: Any) -> bytes:
    """Equal bytes for equal values."""
    return msgspec.json.encode(msgspec.to_builtins(value, str_keys=True), order="sorted")


def _short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
