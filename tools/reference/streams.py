"""The streams reference: every Redis key with its limit and lifetime, and the fields of an event."""

from slipway.crd.meta import ObjectMeta
from slipway.crd.transitions import event_of, requested
from slipway.crd.v1alpha1 import Allocation, AllocationSpec
from slipway.model.events import TYPE_PREFIX
from slipway.model.lifecycle import Event, Kind
from slipway.streams import keys
from slipway.streams.codec import encode_event
from tools.reference.markdown import code, table

TOP = """# Streams

All keys that Slipway writes in Redis. Every key has a limit. [Integrating with the streams](../integrating.md) explains
how to read them.
"""
EVENTS = """## The entry of an event

[CloudEvents 1.0](https://github.com/cloudevents/spec) in binary mode, one stream field per attribute:
"""
_CONTENT = {
    keys.ALLOCATION.prefix: "every transition of one allocation, in order",
    keys.EVENTS.prefix: "the same entries of all allocations, for integrations; at least once",
    keys.WORK.prefix: "work hints: the key of an allocation",
    keys.CLUSTER.prefix: "compact changes of nodes, pods and allocations, for the scheduler",
    keys.SNAPSHOT.prefix: "the state in the cluster feed up to some entry, in pages, for a scheduler that starts",
    keys.BELL.prefix: "a signal after work hints, only on a Redis Cluster",
    keys.WAKE.prefix: "wake-ups for the scheduler",
    keys.HEALTH.prefix: "written to check whether Redis accepts writes",
    keys.LOGS.prefix: "log lines of one allocation, packed: the first and last lines of each rank",
    keys.LOG_STATE.prefix: "up to which line each log of one allocation is stored",
    keys.LOG_PACKS.prefix: "the packs of each log that may be removed, oldest first",
    keys.DEAD.prefix: "dead letters with their cause",
    keys.TRACE.prefix: "spans of one allocation, for the waterfall",
    keys.ACTIVITY.prefix: "the last use of one allocation, for idle timeouts",
    keys.LOGOUTS.prefix: "ended logins of browsers; replicas of the api remember the entries that they have read",
    keys.USED_CODE.prefix: "a one-time code of a browser that was used",
    keys.SIGN_IN.prefix: "the last answer of the issuer about one login of a browser, encrypted by the api",
    keys.GATHER.prefix: "the data that the ranks of an attempt exchange in one all-gather",
    keys.WEBHOOK.prefix: "the events that are still to be sent to one webhook",
    keys.LETTERS.prefix: "the events that one consumer group of an integration could not handle, with the cause",
    keys.DECISIONS.prefix: "input and decisions of one pool's planner, for `slipway replay`; also limited in bytes",
}
_PER_ALLOCATION = (keys.ALLOCATION, keys.LOGS, keys.LOG_STATE, keys.LOG_PACKS, keys.TRACE, keys.ACTIVITY)
_SHARDED = (keys.EVENTS, keys.WORK)


def page() -> str:
    """Return the key table, the event types and one example entry."""
    head = ("key", "type", "content", "at most", "kept", "trimmed by", "group")
    return "\n".join(
        [
            TOP,
            table(head, [_key(family) for family in keys.TABLE]),
            f"The shard of an allocation is `crc32(AllocationID) % {keys.SHARDS}`. A message that was delivered "
            f"{keys.DELIVERIES_MAX} times without an acknowledgement becomes a dead letter.\n",
            EVENTS,
            _example(),
            "## Types\n",
            "\n".join(f"- `{TYPE_PREFIX}{event}`" for event in Event),
        ]
    )


def _key(family: keys.KeyFamily) -> tuple[str, ...]:
    name = family.prefix
    if family in _PER_ALLOCATION:
        name += "{<AllocationID>}"
    elif family is keys.GATHER:
        name += "{<AllocationID>}:<attempt>:<name>"
    elif family is keys.USED_CODE:
        name += "{<code>}"
    elif family is keys.SIGN_IN:
        name += "{<login>}"
    elif family is keys.WEBHOOK:
        name += "{<webhook>}"
    elif family is keys.LETTERS:
        name += "{<group>}"
    elif family is keys.DECISIONS:
        name += "{<pool>}"
    elif family is keys.SNAPSHOT:
        name += f"{{0}}`..`{{{keys.SNAPSHOT_SLOTS - 1}}}"
    elif family in _SHARDED:
        name += f"{{00}}`..`{{{keys.SHARDS - 1}}}"
    return (
        code(name),
        family.type,
        _CONTENT[family.prefix],
        f"{family.length_max:,} entries" if family.length_max else "",
        _kept(family.ttl_s),
        family.trimmed_by if family.type == "stream" else "",
        code(family.group),
    )


def _kept(seconds: int) -> str:
    units = ((keys.DAY_S, "day"), (3_600, "hour"), (60, "minute"))
    count, word = next(((seconds // unit, name) for unit, name in units if seconds >= unit), (0, ""))
    return f"{count} {word}{'s' * (count != 1)}" if count else ""


def _example() -> str:
    allocation = Allocation(
        metadata=ObjectMeta(
            name="run-4f2k9c",
            namespace="default",
            uid="9c1f0f2e-0000-4000-8000-000000000000",
            creation_timestamp="2026-01-02T03:04:05Z",
        ),
        spec=AllocationSpec(kind=Kind.TRAINING),
    )
    event = event_of(allocation, requested(allocation))
    lines = [f"XRANGE slipway:alloc:{{{event.allocation_id}}} - +", f"1) {event.entry_id}"]
    lines += [f"   {name:<16} {value.decode()}" for name, value in encode_event(event).items()]
    return "```text\n" + "\n".join(lines) + "\n```\n"
