"""The sentences: why something waits, in words that a researcher understands, with numbers.

Owns the wording of the gates from quota on. Messages hold nothing that changes by itself (no clock, no position),
so that an unchanged situation gives an unchanged text.
"""

import msgspec

from slipway.model.facts import AllocationFact, JobFact, RoleFact
from slipway.model.reasons import Gate
from slipway.model.resources import CPU, MEMORY, PODS
from slipway.scheduler.plan.ask import Ask
from slipway.scheduler.plan.change import PLACE, in_words
from slipway.scheduler.plan.filters.node_resources_fit import spell
from slipway.scheduler.plan.gang import Blocked, smallest_demand
from slipway.scheduler.plan.outcome import Change, Explanation
from slipway.scheduler.plan.quota import ROOT, Shortfall
from slipway.scheduler.plan.rows import empty_room
from slipway.scheduler.plan.topology import REQUIRED, largest_domain
from slipway.scheduler.plan.whatif import WhatIf


def quota_gate(short: Shortfall, *, is_never: bool) -> Explanation:
    """WaitingForQuota, or ExceedsMaxQuota when no end of other work would help."""
    where = "the pool" if short.queue == ROOT else f"queue {short.queue}"
    bound = spell(short.resource, short.bound)
    used = spell(short.resource, short.used)
    needs = spell(short.resource, short.short)
    match short.kind:
        case "limit":
            text = f"the limit of {where} is {bound} and {used} is in use"
        case "nominal":
            text = f"work that can not be preempted stays within the nominal {bound} of {where}; {used} is in use"
        case _:
            text = f"{where} may use up to {bound}, its own and borrowed, and {used} is in use or lent"
    if is_never:
        return Explanation(
            gate=Gate.EXCEEDS_MAX_QUOTA,
            message=f"asks for {needs} more than it can ever get: {text}",
            is_never=True,
        )
    return Explanation(gate=Gate.WAITING_FOR_QUOTA, message=f"needs {needs} more quota: {text}")


def slots_gate(job: JobFact, used: int, asked: int) -> Explanation:
    """JobMaxSlots; ExceedsMaxQuota when the job's cap is below what one start needs."""
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


def fit_gate(whatif: WhatIf, allocation: AllocationFact, blocked: Blocked) -> Explanation:
    """NoFit or TopologyTooSmall, with every node counted once."""
    verdict = blocked.verdict
    ask = whatif.row(blocked.role).ask
    never = _never(whatif, allocation, blocked, ask)
    reasons = verdict.reasons()
    if blocked.is_topology:
        text = _topology_text(blocked, ask)
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
        gate=Gate.TOPOLOGY_TOO_SMALL if blocked.is_topology else Gate.NO_FIT,
        message=f"{never}; {text}" if never else text,
        reasons=reasons,
        is_never=bool(never),
    )


def _topology_text(blocked: Blocked, ask: Ask) -> str:
    key = ask.topology.key if ask.topology else ""
    return f"no one {key} has room for {blocked.needed} ranks of role {blocked.role.name}, though the pool has in all"


def _of_role(allocation: AllocationFact, blocked: Blocked) -> str:
    return f" of role {blocked.role.name}" if len(allocation.roles) > 1 else ""


def _never(whatif: WhatIf, allocation: AllocationFact, blocked: Blocked, ask: Ask) -> str:
    """Why it can not start even on an empty pool; "" when it could."""
    demand = smallest_demand(allocation)
    whole = whatif.table.total
    for name in sorted(demand.amounts, key=lambda item: (item in (CPU, MEMORY), item)):
        if name != PODS and demand.get(name) > whole.get(name):
            return (
                f"can never start as the pool stands: it asks for {spell(name, demand.get(name))} "
                f"and the whole pool has {spell(name, whole.get(name)).split(' ', 1)[0]}"
            )
    if blocked.least == 0:
        whole_room = sum(min(role.count, _most(whatif, role)) for role in allocation.roles)
        is_hopeless, needed = whole_room < blocked.needed, blocked.needed
    else:
        is_hopeless, needed = _most(whatif, blocked.role) < blocked.least, blocked.least
    if is_hopeless:
        ranks = "a rank like this" if needed == 1 else f"{needed} ranks like these"
        where = f" within one {ask.topology.key}" if blocked.is_topology and ask.topology else ""
        return f"can never start as the pool stands: even empty it has no place for {ranks}{where}"
    return ""


def _most(whatif: WhatIf, role: RoleFact) -> int:
    """The most ranks of `role` that an empty and healthy pool would hold (in one domain, where that is required)."""
    ask = whatif.row(role).ask
    room = empty_room(ask, whatif.table, max(role.count, 1))
    if ask.topology is not None and ask.topology.mode == REQUIRED:
        return largest_domain(room, whatif.table.label(ask.topology.key))
    return int(room.sum())


NOT_YET = Explanation(
    gate=Gate.NOT_YET_CONSIDERED, message="not looked at yet: this tick has made all the decisions that it may"
)


def behind_head(queue: str, head: AllocationFact) -> Explanation:
    """BehindQueueHead: queue keeps strict order."""
    return Explanation(
        gate=Gate.BEHIND_QUEUE_HEAD, message=f"queue {queue} keeps strict order and {head.key} is before it and waits"
    )


def with_change(why: Explanation, change: tuple[Change, ...] | None) -> Explanation:
    """`why` with what would help; said in words too where room has to be made on nodes."""
    words = in_words(change) if change and why.gate in PLACE else ""
    message = f"{why.message}; {words}" if words else why.message
    return msgspec.structs.replace(why, message=message, change=change)


def at_position(why: Explanation, ahead: int) -> Explanation:
    """`why` with its place in the queue."""
    return msgspec.structs.replace(why, position=ahead + 1, ahead=ahead)
