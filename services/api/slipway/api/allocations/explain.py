"""Explains the state of an allocation in one answer: why it waits or does not start, and when it ends by itself. Pure.

The reason for waiting is the scheduler's own, read from the object. The position in the queue is computed from the
allocations that wait now. `change` is what a person could do about it.

Why an admitted allocation does not start is read from the conditions that the pod worker (Stuck) and the watcher
(StartBlocked) write to the object.

The times at which it is ended automatically are the deadlines that the scheduler uses: they are stored in the object,
or computed from it. Use postpones the idle deadline, and only Redis has the record of use.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from slipway.api.allocations.view import shown
from slipway.api.queues.queue_view import NONE_FIRST, Jobs, Precedence, gate_of, in_order, is_waiting
from slipway.api.schemas import Change, Deadline, ExplainView
from slipway.api.tasks.preemption_notice import asked_of
from slipway.crd.members import below_count, unreleased
from slipway.crd.meta import Condition, condition_of
from slipway.crd.podtemplate import GRACE_DEFAULT_S
from slipway.crd.roleresources import object_of
from slipway.crd.transitions import CONDITION_BLOCKED, CONDITION_STUCK, id_of, leaving_ranks, ring_of, stop_reason
from slipway.crd.v1alpha1 import Allocation
from slipway.facts.custom_resources import deadlines_of, run_limit
from slipway.model.ids import VALUES_PREFIX
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import Gate, waiting_never_helps
from slipway.model.times import format_at_most, format_time, parse_time, stored_duration
from slipway.model.windows import latest_end
from slipway.pods.rendezvous import gpus_of
from slipway.streams.keys import ACTIVITY_SINCE

_STARTING = (Phase.ASSIGNED, Phase.PULLING, Phase.STARTING)
_IMAGE = (
    "image",
    "correct the image's name, or the pull secret that the registry asks for, and launch again; an image that is "
    "not in the registry yet is pulled as soon as it is",
)
_CONFIG = (
    "create",
    "create the Secret, ConfigMap or key that the message names in the workspace, and it starts automatically; or "
    "correct its name and launch again",
)
_VALUES = (
    "launch",
    "launch again with its secret values: those of this launch are no longer stored, or were never stored",
)
_MOUNT = (
    "volume",
    "create what the message names in the workspace, or have the volume repaired, and it starts automatically; or "
    "correct its name and launch again",
)
_FAILURE_HELP: dict[str, tuple[str, str]] = {
    "QuotaExceeded": (
        "quota",
        (
            "have the ResourceQuota that the message names raised, or end other allocations there; it continues "
            "automatically"
        ),
    ),
    "ClaimPending": ("volume", "create the volume claim that the message names, or have it bound"),
    "Denied": ("permission", "have the permission that the message names given to Slipway's account"),
    "BindRefused": ("wait", "wait: it is started again, on other nodes if necessary"),
    "PoolChanged": ("wait", "wait: it is placed again, in the changed pool"),
    "CreateContainerConfigError": _CONFIG,
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "ErrImageNeverPull": _IMAGE,
    "InvalidImageName": _IMAGE,
    "FailedMount": _MOUNT,
    "FailedAttachVolume": _MOUNT,
}
_WAIT = ("wait", "wait: Slipway tries again automatically")
_REPLAY = "; once the cause is repaired, slipway dead replay starts the retry at once"


def blocking_condition(allocation: Allocation) -> Condition | None:
    """Return the condition that blocks the launch of this attempt; None when there is none."""
    status = allocation.status
    if status.phase not in _STARTING:
        return None
    for type_ in (CONDITION_BLOCKED, CONDITION_STUCK):
        found = condition_of(status.conditions, type_)
        is_current = found is not None and found.observed_generation == status.attempt
        if found is None or not is_current or found.status == "False":
            continue
        if type_ == CONDITION_BLOCKED or status.phase is Phase.ASSIGNED:
            return found
    return None


def failure_sentence(stuck: Condition) -> str:
    """Return a sentence with the state of the launch and the server's own words."""
    if stuck.type == CONDITION_BLOCKED:
        return f"the start is blocked: {stuck.message}"
    begun = "the launch is stuck" if stuck.status == "True" else "the launch fails and is retried"
    return f"{begun}: {stuck.message}"


def change_for(stuck: Condition) -> Change:
    """Return what a person could do about it."""
    kind, detail = _FAILURE_HELP.get(stuck.reason, _WAIT)
    if VALUES_PREFIX in stuck.message:
        kind, detail = _VALUES
    has_letter = (
        stuck.type == CONDITION_STUCK
        and stuck.status == "True"
        and stuck.reason not in ("BindRefused", "PoolChanged", "Denied")
    )
    return Change(kind=kind, detail=detail + (_REPLAY if has_letter else ""), until="")


IDLE, PREEMPTION, START = "idle", "preemption", "start"
_WORDS = {
    "pending": "its pendingTimeout of {limit} is over then",
    START: "if it cannot start until then, it ends",
    "maxRuntime": "its maxRuntime of {limit} is over then",
    PREEMPTION: "its ranks were asked to save their work; ranks that still run are killed then",
}

Seen = Mapping[str, float]
"""{source: when it was last in use}"""


def is_watched(allocation: Allocation) -> bool:
    """Whether the allocation has an idle deadline, so that its last use matters."""
    return IDLE in allocation.status.deadlines and _is_open(allocation)


def limits(allocation: Allocation, seen: Seen | None, now: float) -> list[Deadline]:
    """Return the deadlines, the next one first; `seen` is None while Redis is unavailable."""
    if not _is_open(allocation):
        return []
    known = deadlines_of(allocation)
    if stop_reason(allocation) is not None:
        # The allocation is already being stopped, so only its grace period is left.
        known = {name: at for name, at in known.items() if name == PREEMPTION}
    if known.get(START, 0.0) > known.get("pending", float("inf")):
        known.pop(START)
    found = [
        _idle(allocation, at, seen, now) if name == IDLE else _plain(allocation, name, at)
        for name, at in known.items()
        if name == IDLE or name in _WORDS
    ]
    return sorted(found, key=lambda item: (not item.at, item.at))


def _is_open(allocation: Allocation) -> bool:
    return allocation.status.phase not in (Phase.TERMINATING, Phase.TERMINATED)


def _plain(allocation: Allocation, name: str, at: float) -> Deadline:
    limit = {"pending": allocation.spec.pending_timeout, "maxRuntime": run_limit(allocation)}.get(name)
    return Deadline(name=name, at=format_time(at), detail=_WORDS[name].format(limit=limit or ""))


def _idle(allocation: Allocation, at: float, seen: Seen | None, now: float) -> Deadline:
    limit = allocation.spec.idle_timeout or "0s"
    if seen is None:
        detail = (
            "its last use is unknown while Redis is unavailable, and its idleTimeout does not end it until Redis "
            "is back"
        )
        return Deadline(name=IDLE, detail=detail)
    if ACTIVITY_SINCE not in seen:
        last, said = now, "its last use is not recorded, so it is treated as in use now"
    else:
        last = min(max(seen.values()), now)
        used = max((when for source, when in seen.items() if source != ACTIVITY_SINCE), default=None)
        said = f"last used {format_time(min(used, now))}" if used is not None else "not used since it began to run"
    until = max(at, last + stored_duration(limit))
    return Deadline(
        name=IDLE, at=format_time(until), detail=f"unless it is used before that: idleTimeout {limit}, {said}"
    )


JOBS_SHOWN_MAX = 10

_HELP: dict[str, tuple[str, str]] = {
    Gate.INVALID: ("fix", "correct the field that the message names and launch again: a spec cannot be changed"),
    Gate.NOT_A_WORKSPACE: ("label", "label the namespace slipway.dev/workspace=true"),
    Gate.POOL_NOT_FOR_WORKSPACE: ("move", "launch into a pool that the workspace may use: slipway pool lists them"),
    Gate.HELD: ("release", "release it: POST resume, or slipway resume"),
    Gate.WAITING_FOR_DEPENDENCY: (
        "wait",
        "wait for the allocations that the message names to end, or kill it and launch it again without after",
    ),
    Gate.BACKOFF: ("wait", "wait: Slipway tries again automatically"),
    Gate.UNKNOWN_POOL: ("create", "create that ResourcePool, or launch into one that exists"),
    Gate.UNKNOWN_QUEUE: (
        "create",
        (
            "create that Queue or correct it as the message says, or move the allocation to a queue that accepts "
            "allocations"
        ),
    ),
    Gate.UNKNOWN_FLAVOR: (
        "create",
        "add that flavor to the ResourcePool, or kill the allocation and launch it with one that the pool has",
    ),
    Gate.UNKNOWN_JOB: (
        "create",
        "create that job: slipway job create, or kill the allocation and launch it into a job that exists",
    ),
    Gate.NOT_ENOUGH_PODS: ("lower", "lower minAvailable or raise the counts of the roles, and launch again"),
    Gate.LIMIT_RANGE: (
        "fix",
        (
            "launch again with resources that the LimitRange permits, or have the LimitRange changed: waiting does "
            "not help"
        ),
    ),
    Gate.WAITING_FOR_VOLUME: (
        "volume",
        "create the volume claim that the message names or have it bound, or launch again with another claim",
    ),
    Gate.EXCEEDS_MAX_QUOTA: ("quota", "ask for less, or have the quota raised: waiting does not help"),
    Gate.WAITING_FOR_QUOTA: (
        "wait",
        "wait for allocations of the queue to end, have its quota raised, or use another queue",
    ),
    Gate.JOB_MAX_SLOTS: ("wait", "wait for allocations of the job to end, or raise the job's maxSlots"),
    Gate.RESOURCE_QUOTA: (
        "wait",
        (
            "wait for allocations of the workspace to end, ask for less, or have the ResourceQuota that the "
            "message names raised"
        ),
    ),
    Gate.WAITING_FOR_EXTENDER: ("wait", "wait, or have the extender that the message names repaired or made ignorable"),
    Gate.TOPOLOGY_TOO_SMALL: ("relax", "set topology mode to preferred, or ask for fewer ranks"),
    Gate.NO_FIT: ("fit", "wait for other allocations to end, ask for less, or add nodes"),
    Gate.MAKING_ROOM: ("wait", "wait: other allocations are being preempted for it"),
    Gate.BEHIND_RESERVATION: ("wait", "wait: nodes are reserved for an allocation that is ahead of it"),
    Gate.BEHIND_QUEUE_HEAD: ("wait", "wait, or raise its priority: the queue keeps strict order"),
}

_FITS_NEVER = ("fit", "ask for less, or add nodes: waiting does not help")
_NEVER_HELP: dict[str, tuple[str, str]] = {
    Gate.RESOURCE_QUOTA: (
        "quota",
        "ask for less, or have the ResourceQuota that the message names raised: waiting does not help",
    ),
    Gate.WAITING_FOR_EXTENDER: _FITS_NEVER,
    Gate.NO_FIT: _FITS_NEVER,
}
"""The help when the scheduler reports that the allocation can never start; other gates have the same help for both."""

_SILENCE_HELP = (
    "wait until the node answers again; or, once that machine is off, have an admin run slipway forget, taint the node "
    "node.kubernetes.io/out-of-service, or delete it: the ranks then start elsewhere"
)
NODES_SHOWN_MAX = 4


def explain(
    allocation: Allocation,
    pending: Iterable[Allocation],
    jobs: Jobs,
    *,
    first: Precedence = NONE_FIRST,
    seen: Seen | None = None,
    silent_nodes: Collection[str] = (),
    now: float = 0.0,
    missing_pool: str = "",
) -> ExplainView:
    """Return the explanation; `pending` are the pending allocations of its pool, with or without itself.

    `seen` is when the allocation was last in use; None while that is unknown. `silent_nodes` are the nodes of its live
    ranks that do not answer. `missing_pool` is the error that its pool does not exist: then no scheduler looks at the
    allocation.
    """
    spec, status = allocation.spec, allocation.status
    code, message = gate_of(allocation) if is_waiting(allocation) else ("", "")
    if missing_pool and is_waiting(allocation):
        code, message = Gate.UNKNOWN_POOL.value, missing_pool
    held_up = blocking_condition(allocation)
    if held_up is not None:
        code, message = held_up.reason, failure_sentence(held_up)
    change = _change(allocation, code, message, now) if held_up is None else [change_for(held_up)]
    if silent_nodes:
        message = f"{message or state_sentence(allocation)}; {_silence(silent_nodes)}"
        change = [*change, Change(kind="forget", detail=_SILENCE_HELP)]
    before = _before(allocation, pending, jobs, first) if is_waiting(allocation) else []
    return ExplainView(
        id=id_of(allocation),
        phase=status.phase,
        code=code,
        message=message or state_sentence(allocation),
        position=len(before) + 1 if is_waiting(allocation) else 0,
        ahead=len(before),
        change=change,
        jobs_ahead=[id_of(each) for each in before[:JOBS_SHOWN_MAX]],
        queue=spec.queue,
        pool=spec.pool,
        since=ring_of(allocation)[-1].time,
        attempt=status.attempt,
        result=status.result,
        reason=status.reason,
        ranks=[{"rank": rank, **shown(each)} for rank, each in enumerate(status.ranks or ())],
        conditions=[shown(condition) for condition in status.conditions],
        deadlines=limits(allocation, seen, now),
    )


def _before(allocation: Allocation, pending: Iterable[Allocation], jobs: Jobs, first: Precedence) -> list[Allocation]:
    """Return the allocations of its queue that go before it."""
    queue = (allocation.spec.pool, allocation.spec.queue)
    same = [each for each in pending if (each.spec.pool, each.spec.queue) == queue]
    ordered = in_order(same, jobs, first)
    uids = [each.metadata.uid for each in ordered]
    uid = allocation.metadata.uid
    return ordered[: uids.index(uid)] if uid in uids else []


def _change(allocation: Allocation, code: str, message: str, now: float) -> list[Change]:
    if code not in _HELP:
        return []
    latest = latest_end(message) if code in (Gate.NO_FIT, Gate.TOPOLOGY_TOO_SMALL) else None
    if latest is not None and latest > now:
        span, id_ = format_at_most(latest - now), id_of(allocation)
        detail = f"set its maxRuntime to at most {span} to start now: slipway limit {id_} --max-runtime {span}"
        return [Change(kind="maxRuntime", detail=detail)]
    kind, detail = _NEVER_HELP.get(code, _HELP[code]) if waiting_never_helps(message) else _HELP[code]
    until = allocation.status.not_before if code == Gate.BACKOFF else ""
    return [Change(kind=kind, detail=detail, until=until)]


def state_sentence(allocation: Allocation) -> str:
    """Return one sentence about the state of an allocation that does not wait."""
    status = allocation.status
    match status.phase:
        case Phase.TERMINATED:
            why = f" ({status.reason})" if status.reason else ""
            text = f"ended: {status.result or 'unknown'}{why}"
            return f"{text}: {status.message}" if status.message else text
        case Phase.RUNNING if (asked := asked_of(allocation)) is not None and asked.deadline:
            then = "comes back as the next attempt" if asked.requeue else "ends for good"
            return f"running, and asked to save its work by {asked.deadline} ({asked.why}); then it {then}"
        case Phase.RUNNING if (asked := asked_of(allocation)) is None or not asked.by:
            return ("running, and ready" if status.ready else "running") + _shrinking(allocation) + _growing(allocation)
        case _ if (reason := stop_reason(allocation)) is not None:
            asked = asked_of(allocation)
            why = asked.why if asked is not None and asked.by else reason.value
            return f"stopping ({why}): waiting for its pods to be gone{_until(allocation)}"
        case _:
            ranks = status.ranks or []
            running = sum(rank.phase is RankState.RUNNING for rank in ranks)
            text = f"{status.phase.value.lower()}: {running} of {_count(allocation)} ranks running"
            return text + _start_order(allocation)


def _start_order(allocation: Allocation) -> str:
    """Return which roles wait for which other roles, while some of their ranks have not started."""
    ranks = dict(enumerate(allocation.status.ranks or ()))
    first, text = 0, ""
    for role in allocation.spec.ranks:
        own = [ranks.get(rank) for rank in range(first, first + role.count)]
        first += role.count
        if role.depends_on and any(each is not None and each.phase is RankState.BOUND for each in own):
            others = ", ".join(f"{each.role} ({each.until})" for each in role.depends_on)
            text += f"; role {role.name} waits for {others}"
    return text


def _silence(nodes: Collection[str]) -> str:
    """Return the sentence about ranks whose nodes do not answer."""
    shown, more = sorted(nodes)[:NODES_SHOWN_MAX], len(nodes) - NODES_SHOWN_MAX
    names = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    answer, its = ("node {} does not answer", "its") if len(nodes) == 1 else ("nodes {} do not answer", "their")
    return f"{answer.format(names)}, so it is unknown whether {its} ranks still run"


def _until(allocation: Allocation) -> str:
    """Return when the grace period of the pods ends; empty unless the allocation is being ended."""
    status, signals = allocation.status, allocation.spec.signals
    if status.phase is not Phase.TERMINATING:
        return ""
    graces = [_grace_s(role.template or allocation.spec.template) for role in allocation.spec.ranks]
    grace_s = max(graces, default=GRACE_DEFAULT_S)
    began = next((each.time for each in reversed(ring_of(allocation)) if each.type is Event.TERMINATING), "")
    until = format_time(parse_time(began) + grace_s, "seconds") if began else ""
    if signals is not None and signals.attempt == status.attempt and signals.grace_s is not None:
        latest = f", until {until} at the latest" if until else ""
        return f"; they have at most {signals.grace_s} s from the last kill{latest}"
    return f"; they have until {until} to end ({grace_s} s), and slipway kill --force ends that" if until else ""


def _grace_s(template: Mapping[str, Any]) -> int:
    given = object_of(template.get("spec")).get("terminationGracePeriodSeconds")
    return given if isinstance(given, int) else GRACE_DEFAULT_S


def _shrinking(allocation: Allocation) -> str:
    """Return the words about surplus ranks that are being evicted; empty when there are none."""
    shrink, told = allocation.status.shrink, leaving_ranks(allocation)
    count = len(told) - shrink.told if shrink is not None else 0
    if shrink is None or not told or count <= 0:
        return ""
    ranks = "one of its ranks makes" if count == 1 else f"{count} of its ranks make"
    return f"; {ranks} room for {shrink.by}" if shrink.by else f"; {ranks} room again: it could not start"


def _growing(allocation: Allocation) -> str:
    """Return the words about an elastic gang that runs with fewer ranks than it requests; empty otherwise."""
    coming = len(unreleased(allocation))
    if coming:
        return f"; {coming} {'rank is' if coming == 1 else 'ranks are'} being added"
    gpus = [gpus_of(role.resources) for role in allocation.spec.ranks for _ in range(role.count)]
    lacks = below_count(allocation, gpus)
    return f"; {lacks}" if lacks else ""


def _count(allocation: Allocation) -> int:
    return sum(role.count for role in allocation.spec.ranks) or 1
