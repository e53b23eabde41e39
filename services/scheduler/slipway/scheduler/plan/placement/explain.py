"""The sentences that explain why an allocation waits, in words that a researcher understands, with numbers.

Owns the wording of the gates from quota on. Messages contain nothing that changes by itself (no clock, no position), so
an unchanged situation gives an unchanged text.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from slipway.model.facts import FLAVOR_LABEL, AllocationFact, JobFact, QuotaFact, RoleFact
from slipway.model.mig import GPU_UNITS, spell_units
from slipway.model.reasons import NEVER, Gate
from slipway.model.resources import (
    CPU,
    GPU,
    GPU_MILLI,
    GPU_SHARES,
    MEMORY,
    MILLI,
    PODS,
    flavor_in,
    format_quantity,
    scale_of,
    total,
)
from slipway.model.times import format_at_most, format_time
from slipway.model.windows import ENDS_BY
from slipway.scheduler.plan.placement.extenders import WAITING
from slipway.scheduler.plan.placement.feasibility import admitting, empty_room
from slipway.scheduler.plan.placement.filters.node_affinity import REQUIRED as REQUIRED_AFFINITY
from slipway.scheduler.plan.placement.filters.node_affinity import node_affinity
from slipway.scheduler.plan.placement.filters.node_resources_fit import spell
from slipway.scheduler.plan.placement.gang import PlacementFailure
from slipway.scheduler.plan.placement.topology import (
    REQUIRED,
    common_key,
    domain_room,
    largest_domain,
    most_together,
)
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.queueing.queue_tree import ROOT, Shortfall
from slipway.scheduler.plan.state.affinity_terms import mapping_of, mappings_of, strings_of
from slipway.scheduler.plan.state.plan_types import Explanation, Remedy
from slipway.scheduler.plan.state.rank_request import RankRequest, requests_of, smallest_demand, targets

PLACE = frozenset({Gate.NO_FIT, Gate.TOPOLOGY_TOO_SMALL})
"""The gates of work that finds no room on the nodes."""
SHOWN_MAX = 3
"""The largest number of nodes or queues that a sentence names."""


def quota_gate(short: Shortfall, *, is_never: bool) -> Explanation:
    """Return WaitingForQuota, or ExceedsMaxQuota when the end of other work cannot help."""
    where = "the pool" if short.queue == ROOT else f"queue {short.queue}"
    bound = _quota(short.resource, short.bound)
    used = _quota(short.resource, short.used)
    needs = _quota(short.resource, short.short)
    match short.kind:
        case "limit":
            text = f"the limit of {where} is {bound} and {used} is in use"
        case "nominal" if short.queue == ROOT:
            text = (
                f"an allocation that cannot be preempted does not borrow; {bound} of the pool is not in any queue's "
                f"nominal quota, and {used} is in use"
            )
        case "nominal":
            text = (
                f"an allocation that cannot be preempted may use only the nominal {bound} of {where}; {used} is in use"
            )
        case _ if short.queue == ROOT:
            text = f"{bound} of the pool is not reserved by other queues; {used} is in use"
        case _:
            text = f"{where} may use up to {bound}, borrowed quota included; {used} is in use or lent"
    if is_never:
        return Explanation(
            gate=Gate.EXCEEDS_MAX_QUOTA,
            message=f"asks for {needs} more than it can ever get: {text}",
            is_never=True,
        )
    return Explanation(gate=Gate.WAITING_FOR_QUOTA, message=f"needs {needs} more quota: {text}")


def _quota(name: str, amount: int) -> str:
    """Return an amount in words, as quota counts it: GPUs in `GPU_UNITS`."""
    return f"{spell_units(amount)} {name}" if name == GPU else spell(name, amount)


def slots_gate(job: JobFact, used: int, asked: int) -> Explanation:
    """Return JobMaxSlots; ExceedsMaxQuota when the job's cap is below the slots of one start."""
    most = job.max_slots or 0
    if asked > most:
        return Explanation(
            gate=Gate.EXCEEDS_MAX_QUOTA,
            message=f"asks for {asked} slots; job {job.name} may use at most {most}",
            is_never=True,
        )
    return Explanation(
        gate=Gate.JOB_MAX_SLOTS,
        message=f"job {job.name} may use {most} slots and {used} are in use; this needs {asked}",
    )


def space_gate(quota: QuotaFact, name: str, asked: int, used: int) -> Explanation:
    """Return ExceedsResourceQuota; it is final when the pods ask for more than the quota's hard limit."""
    hard = quota.hard[name]
    where = f"ResourceQuota {quota.name} of namespace {quota.namespace}"
    asks, most = _of_quota(name, asked), _of_quota(name, hard)
    if asked > hard:
        return Explanation(
            gate=Gate.RESOURCE_QUOTA,
            message=f"{NEVER}: its pods ask for {asks} of {name}, and {where} has a hard limit of {most}",
            is_never=True,
        )
    return Explanation(
        gate=Gate.RESOURCE_QUOTA,
        message=f"its pods ask for {asks} of {name}; {where} has a hard limit of {most} "
        f"and {_of_quota(name, used)} is used",
    )


def of_this_mix(why: Explanation) -> Explanation:
    """Return `why` as a reason to wait, for the mix of roles that has room now.

    Another mix of roles may be within the quota, so the allocation is not hopeless.
    """
    if not why.is_never:
        return why
    gate = Gate.WAITING_FOR_QUOTA if why.gate is Gate.EXCEEDS_MAX_QUOTA else why.gate
    message = f"the mix of roles that has room now cannot start: {why.message.removeprefix(f'{NEVER}: ')}"
    return Explanation(gate=gate, message=message)


def _of_quota(name: str, thousandths: int) -> str:
    """Return an amount in words: bytes with their unit, cpu with its fraction."""
    plain = name.removeprefix("requests.").removeprefix("limits.")
    if scale_of(plain) == MILLI:
        return format_quantity(thousandths, scale=MILLI)
    return format_quantity(thousandths // MILLI, scale=1)


def fit_gate(whatif: WhatIf, allocation: AllocationFact, blocked: PlacementFailure) -> Explanation:
    """Return NoFit, TopologyTooSmall or WaitingForExtender, with every node counted once."""
    verdict = blocked.verdict
    request = whatif.row(blocked.role).request
    never = _never(whatif, allocation, blocked, request)
    reasons = verdict.reasons()
    if blocked.is_topology:
        key = blocked.common or (request.topology.key if request.topology else "")
        text = _topology_text(blocked, request)
        if not (whatif.table.label(key).codes >= 0).any():
            never, text = (
                f"{NEVER} with the pool's current nodes: no node has the label {key}, which its topology names",
                "",
            )
        reasons[Gate.TOPOLOGY_TOO_SMALL.value] = verdict.fitting
    else:
        text = f"{verdict.fitting} of {verdict.nodes} nodes fit" if verdict.nodes else "the pool has no nodes"
        text += f": {verdict.phrases()}" if verdict.refused else ""
        if blocked.needed > 1:
            next_rank = "for the next, " if blocked.found else ""
            text = (
                f"room for {blocked.found} of {blocked.needed} ranks{_of_role(allocation, blocked)}; {next_rank}{text}"
            )
    return Explanation(
        gate=_fit_gate(blocked, reasons),
        message="; ".join(part for part in (never, text) if part),
        reasons=reasons,
        is_never=bool(never),
    )


def _fit_gate(blocked: PlacementFailure, reasons: dict[str, int]) -> Gate:
    if not WAITING.isdisjoint(reasons):
        return Gate.WAITING_FOR_EXTENDER
    return Gate.TOPOLOGY_TOO_SMALL if blocked.is_topology else Gate.NO_FIT


def _topology_text(blocked: PlacementFailure, request: RankRequest) -> str:
    if blocked.common and blocked.largest >= blocked.needed:
        return f"no {blocked.common} has room for all roles together, although the whole pool has enough room"
    if blocked.common:
        ranks = f"{blocked.largest} of the {blocked.needed} ranks of all roles together"
        return f"the largest {blocked.common} has room for {ranks}, although the whole pool has enough room"
    key = request.topology.key if request.topology else ""
    ranks = f"{blocked.largest} of {blocked.needed} ranks of role {blocked.role.name}"
    return f"the largest {key} has room for {ranks}, although the whole pool has enough room"


def _of_role(allocation: AllocationFact, blocked: PlacementFailure) -> str:
    return f" of role {blocked.role.name}" if len(allocation.roles) > 1 else ""


KNOWN_MAX = 4096
"""The number of shapes for which a table caches how many ranks fit when it is empty."""

_NOT_OF_NODES = (PODS, GPU_MILLI, GPU_SHARES)
"""Resources that nodes do not state as their own amounts."""


def _never(whatif: WhatIf, allocation: AllocationFact, blocked: PlacementFailure, request: RankRequest) -> str:
    """Return why it cannot start even on an empty pool, and what would fit there; "" when it could start."""
    demand = smallest_demand(allocation)
    if len(allocation.roles) > 1:
        # Beyond their minima, roles may replace one another, so only each role's minimum is certain.
        demand = total(requests_of(role) * role.minimum for role in allocation.roles)
    if blocked.least == 0:
        room, needed = sum(min(role.count, _most(whatif, role)) for role in allocation.roles), blocked.needed
    else:
        room, needed = _most(whatif, blocked.role), blocked.least
    whole = whatif.table.total
    common = _most_together(whatif, allocation) if room >= needed else None
    ranks = f"{needed} ranks{_of_role(allocation, blocked) if blocked.least else ''}"
    for name in sorted(demand.amounts, key=lambda item: (item in (CPU, MEMORY), item)):
        if name not in _NOT_OF_NODES and not flavor_in(name) and demand.get(name) > whole.get(name):
            text = (
                f"{NEVER} with the pool's current nodes: it asks for {spell(name, demand.get(name))} "
                f"and the whole pool has {spell(name, whole.get(name)).split(' ', 1)[0]}"
            )
            if room == 0:
                return text + _largest(whatif, request)
            return f"{text}; when empty, the pool has room for {room} of {ranks}" if room < needed else text
    if common is not None:
        key, room, needed = common
        text = f"no {key} has room for more than {room} of the {needed} ranks of all roles together"
        return f"{NEVER} with the pool's current nodes: even when the pool is empty, {text}"
    if room >= needed:
        return ""
    where = f" within one {request.topology.key}" if blocked.is_topology and request.topology else ""
    if room:
        return f"{NEVER} with the pool's current nodes: even when empty, the pool has room for {room} of {ranks}{where}"
    text = f"even when empty, the pool has no place for a rank like this{_largest(whatif, request)}"
    return f"{NEVER} with the pool's current nodes: {text}"


def _largest(whatif: WhatIf, request: RankRequest) -> str:
    """Return the largest amounts that one node has of the resources that a rank asks too much of.

    The text is about the closest node: of those with enough of the other resources, the node with the most of the
    rarest. It is "" when the amounts are not the problem.
    """
    nodes = admitting(request, whatif.table)
    if not nodes.any():
        return ""
    rows = sorted(request.steps, key=lambda step: (whatif.table.resources[step[0]] in (CPU, MEMORY), step[0]))
    amounts = whatif.table.allocatable
    short = [(row, asked) for row, asked in rows if int(amounts[row, nodes].max()) < asked]
    for row, asked in rows:
        if (row, asked) not in short:
            nodes = nodes & (amounts[row] >= asked)
    most: dict[str, int] = {}
    for row, _ in short:
        if not nodes.any():
            return ""
        name = whatif.table.resources[row]
        if name not in _NOT_OF_NODES:
            most[name] = int(amounts[row, nodes].max())
            nodes = nodes & (amounts[row] == most[name])
    missing = [name for name in request.missing if name not in _NOT_OF_NODES]
    if missing or not all(most.values()):
        lacking = [*missing, *(name for name, amount in most.items() if not amount)]
        return f"; no node that it may use has {' or '.join(lacking)}"
    if not most:
        return ""
    given = " and ".join(spell(name, amount) for name, amount in most.items())
    return f"; the largest node that it may use has {given}: ask for at most that per rank"


def _most_together(whatif: WhatIf, allocation: AllocationFact) -> tuple[str, int, int] | None:
    """Return (label, ranks that fit, ranks needed) when even the empty pool has no domain for all roles together.

    None when the roles need not be in one domain, or when an empty domain would fit them.
    """
    key, table, wanted = common_key(allocation), whatif.table, targets(allocation)
    if not key:
        return None
    column = table.label(key)
    rooms = [empty_room(whatif.row(role).request, table, max(role.count, 1)) for role in allocation.roles]
    is_enough = np.ones(len(column.values), dtype=np.bool_)
    for role, room in zip(allocation.roles, rooms, strict=True):
        is_enough &= domain_room(column, room) >= role.minimum
    most = most_together(column, [(room, role.count) for role, room in zip(allocation.roles, rooms, strict=True)])
    if bool((is_enough & (most >= sum(wanted))).any()):
        return None
    held = most_together(column, list(zip(rooms, wanted, strict=True)))
    return key, int(held.max(initial=0)), sum(wanted)


def _most(whatif: WhatIf, role: RoleFact) -> int:
    """Return how many ranks of `role` an empty and healthy pool has room for, in one domain when that is required."""
    request, table = whatif.row(role).request, whatif.table
    key = (request.key, request.tolerations, max(role.count, 1))
    known = table.most.get(key)
    if known is not None:
        return known
    room = empty_room(request, table, key[2])
    if request.topology is not None and request.topology.mode == REQUIRED:
        most = largest_domain(room, table.label(request.topology.key))
    else:
        most = int(room.sum())
    if len(table.most) >= KNOWN_MAX:
        table.most.clear()
    table.most[key] = most
    return most


def behind_reservation(head: AllocationFact, start: float | None, now: float) -> Explanation:
    """Return BehindReservation: the room is reserved for the blocked head of a queue."""
    if start is None:
        text = f"room is reserved for {head.key}, which has waited long and starts as soon as that room is free"
        return Explanation(gate=Gate.BEHIND_RESERVATION, message=text)
    if start <= now:  # Running work is about to leave that room, or is overdue.
        text = f"room is reserved for {head.key}, which starts as soon as that room is free"
        return Explanation(gate=Gate.BEHIND_RESERVATION, message=text)
    until = format_time(start, "seconds")
    text = (
        f"room is reserved for {head.key}, which starts at {until} at the latest; "
        "allocations that end by then may start before it"
    )
    change = (Remedy(kind="maxRuntime", seconds=start - now),)
    return Explanation(gate=Gate.BEHIND_RESERVATION, message=text, change=change)


def with_change(why: Explanation, change: tuple[Remedy, ...] | None, domain: str = "") -> Explanation:
    """Return `why` with the remedies; the message names them when nodes need room, all of them in `domain`."""
    words = in_words(change, domain) if change and why.gate in PLACE else ""
    message = f"{why.message}; {words}" if words else why.message
    return msgspec.structs.replace(why, message=message, change=change)


def with_note(why: Explanation, note: str) -> Explanation:
    """Return `why` with an additional clause."""
    return msgspec.structs.replace(why, message=f"{why.message}; {note}")


def held_text(role: RoleFact, resource: str, total: int, used: int, holders: list[tuple[str, int, int]]) -> str:
    """Return how much of the nodes that `role` is confined to is used.

    `holders` are (queue, what it uses there, its share); amounts are as quota counts them.
    """
    what, scale = ("GPUs", GPU_UNITS) if resource == GPU else (resource, scale_of(resource))
    of = "all " if used >= total else f"{_plain(used, scale)} of "
    text = f"{of}{_plain(total, scale)} {what} on {_where(role)} are in use"
    if not holders:
        return f"{text}; no queue uses more than its share of them"
    shown = [
        f"{queue} uses {_plain(much, scale)} of them, its share is {_plain(due, scale)}" for queue, much, due in holders
    ]
    more = f", and {len(shown) - SHOWN_MAX} more queues use more than their share" if len(shown) > SHOWN_MAX else ""
    return f"{text}; {', '.join(shown[:SHOWN_MAX])}{more}"


def _plain(amount: int, scale: int) -> str:
    """Return an amount of GPUs or cores with at most two decimals."""
    return f"{amount / scale:.2f}".rstrip("0").rstrip(".")


def _where(role: RoleFact) -> str:
    """Return in words the nodes to which a role is confined."""
    named = [f"{key}={value}" for key, value in sorted(role.node_selector.items()) if key != FLAVOR_LABEL]
    kind = f"nodes of {_flavor(role.flavor)}" if role.flavor is not None else "nodes"
    if named or role.flavor is not None:
        return f"{kind} with {' and '.join(named)}" if named else kind
    required = mapping_of(node_affinity(role.affinity).get(REQUIRED_AFFINITY))
    terms = mappings_of(required.get("nodeSelectorTerms"))
    expressions = [each for term in terms for each in mappings_of(term.get("matchExpressions"))]
    if len(expressions) == 1 and expressions[0].get("operator") == "In":
        key, values = expressions[0].get("key"), strings_of(expressions[0].get("values"))
        return f"nodes with {' or '.join(f'{key}={value}' for value in values)}"
    return "the nodes that it may use"


def _flavor(name: str) -> str:
    return f"flavor {name}" if name else "no flavor"


def in_flavors(parts: Sequence[tuple[str, Explanation]], explained: int) -> Explanation:
    """Return why it starts in none of the tried flavors.

    The explanation is that of flavor number `explained`, with the messages of all flavors.
    """
    words = [f"{_flavor(flavor)}: {why.message.removeprefix(f'{NEVER}: ')}" for flavor, why in parts]
    is_never = all(why.is_never for _, why in parts)
    return msgspec.structs.replace(parts[explained][1], message="; ".join(words), is_never=is_never)


def waiting_for_veto(why: Explanation, what: str) -> Explanation:
    """Return WaitingForExtender: other work might be evicted, but an extender must be asked about it first."""
    message = f"{why.message}; before it evicts other allocations, it waits {what}"
    return msgspec.structs.replace(why, gate=Gate.WAITING_FOR_EXTENDER, message=message)


def at_position(why: Explanation, ahead: int, ahead_slots: int) -> Explanation:
    """Return `why` with the allocation's position in its queue."""
    return msgspec.structs.replace(why, position=ahead + 1, ahead=ahead, ahead_slots=ahead_slots)


def instruction_of(change: Remedy) -> str:
    """Return one part of a change as an instruction."""
    more = " and ".join(
        spell(name, amount).replace(" ", " more ", 1) for name, amount in sorted(change.amounts.items())
    )
    match change.kind:
        case "free":
            return f"{more} free on node {change.node}"
        case "limit" | "nominal":
            return f"{more} in the {change.kind} of queue {change.name}"
        case "borrowing":
            return f"{more} in the borrowing limit of queue {change.name}"
        case "maxSlots":
            return f"{change.slots} more slots for job {change.name}"
        case "release":
            return "release it"
        case "wait":
            return f"wait until {format_time(change.until, 'seconds')}"
        case "maxRuntime":
            return f"a maxRuntime of at most {format_at_most(change.seconds)}"
        case "uncordon":
            return f"uncordon node {change.node}"
        case "tolerate":
            return f"tolerate the taint {change.name}"
        case _:
            return change.kind


def in_words(changes: tuple[Remedy, ...], domain: str = "") -> str:
    """Return `needs 2 more nvidia.com/gpu on one node` or `uncordoning n3 would help`; "" when no node must change.

    `domain` contains all the nodes, for a gang that needs one domain.
    """
    cordoned = [change.node for change in changes if change.kind == "uncordon"]
    if cordoned:
        more = f" and {len(cordoned) - SHOWN_MAX} more" if len(cordoned) > SHOWN_MAX else ""
        return f"uncordoning {', '.join(cordoned[:SHOWN_MAX])}{more} would help"
    for change in changes:
        if change.kind == "tolerate":
            return f"tolerating the taint {change.name} would help"
        if change.kind == "maxRuntime" and change.until:
            return f"{ENDS_BY}{format_time(change.until, 'seconds')} would let it start now"
    sums: dict[str, int] = {}
    freed = [change for change in changes if change.kind == "free"]
    for change in freed:
        for name, amount in change.amounts.items():
            sums[name] = sums.get(name, 0) + amount
    if not sums:
        return ""
    what = " and ".join(spell(name, amount).replace(" ", " more ", 1) for name, amount in sorted(sums.items()))
    where = f"in {domain}" if domain else f"on {'one node' if len(freed) == 1 else f'{len(freed)} nodes'}"
    return f"needs {what} {where}"
