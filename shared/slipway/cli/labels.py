"""What an allocation is called in a line or a cell: its state, its ranks, what is worth noting. Pure.

Reads the JSON of the REST API (`AllocationView`); knows nothing of how it is shown.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

from slipway.cli.columns import one_line
from slipway.model.exitcodes import signal_name
from slipway.model.resources import Resources
from slipway.model.standing import word_for

Json = dict[str, Any]

PENDING, TERMINATED = "Pending", "Terminated"
WAITS = ("Pending", "Assigned")
GPU = "nvidia.com/gpu"
STARTING = ("Assigned", "Pulling", "Starting")


def state_of(view: Json) -> str:
    """The phase, or the result once it has ended; Held; Waiting when it serves and has nothing to show yet."""
    return word_for(
        str(view["phase"]),
        view.get("result"),
        hold=bool(view.get("hold")),
        ready=bool(view.get("ready")),
        waiting=bool(view.get("waiting")),
    )


def has_ended(view: Json) -> bool:
    """Whether nothing can happen to it any more."""
    return view["phase"] == TERMINATED


def has_succeeded(view: Json) -> bool:
    """Whether it ended well."""
    return view.get("result") == "Succeeded"


def rank_count(view: Json) -> int:
    """How many ranks it has."""
    roles = cast("list[Json]", view["spec"].get("ranks") or [])
    return sum(int(role.get("count", 1)) for role in roles) or 1


def ranks_of(view: Json) -> list[Json]:
    """What was observed of each rank."""
    return cast("list[Json]", view["status"].get("ranks") or [])


def running_of(view: Json) -> str:
    """`running/all` while it lives, `all` after that."""
    if has_ended(view):
        return str(rank_count(view))
    running = sum(rank.get("phase") == "Running" for rank in ranks_of(view))
    return f"{running}/{rank_count(view)}"


def node_state(item: Json) -> str:
    """Of a node: whether it works, and whether anything new is placed there."""
    if not item["ready"]:
        return "NotReady"
    wanted = str(item.get("scheduling") or "enabled")
    return "Ready" if wanted == "enabled" else wanted.capitalize()


def gpus_in(amounts: Json) -> str:
    """The GPUs among amounts of resources: `8`; what is a part of one counts as that part, `0.429`."""
    return f"{Resources.parse(amounts).gpu_count():g}"


def gpus_of(view: Json) -> float:
    """The GPUs that all its ranks ask for together; what is a part of one counts as that part."""
    if "gpus" in view:
        return float(view["gpus"])
    # A server of an earlier version does not say: the whole ones can be seen in the roles.
    total = 0
    for role in cast("list[Json]", view["spec"].get("ranks") or []):
        asked = cast("Json", role.get("resources") or {})
        amount = str(cast("Json", asked.get("requests") or asked).get(GPU) or "0")
        total += int(role.get("count", 1)) * (int(amount) if amount.isdigit() else 0)
    return total


def condition_of(view: Json, type_: str) -> Json:
    """A condition of its status; empty when there is none."""
    conditions = cast("list[Json]", view["status"].get("conditions") or [])
    found = [each for each in conditions if each.get("type") == type_]
    return found[0] if found else {}


def waits_for(view: Json) -> str:
    """The gate that keeps it waiting, with the scheduler's words; empty when it does not wait."""
    if view["phase"] != PENDING:
        return ""
    condition = condition_of(view, "Admitted")
    if condition.get("status") != "False":
        return ""
    return f"{condition.get('reason', '')}: {condition.get('message', '')}"


def blocked_by(view: Json) -> str:
    """What keeps it from starting although it has its nodes; empty when nothing does, or that is not known."""
    if view["phase"] not in STARTING:
        return ""
    for type_ in ("StartBlocked", "Stuck"):
        found = condition_of(view, type_)
        is_current = found.get("observedGeneration") == view.get("attempt")
        if is_current and found.get("status") != "False":
            return f"{found.get('reason', '')}: {found.get('message', '')}"
    return ""


_STOPPED = (143, 137)
"""The exit codes of SIGTERM, and of SIGKILL once the grace is over."""
_EXIT_CODE_MAX = 255
"""A process can exit with no higher code."""
SHOWN_MAX = 3
"""Ranks that are named in one line."""


def failures_of(view: Json) -> list[str]:
    """One text per failed rank, with its exit code.

    Ranks with the reason of the allocation are the cause: then those that were stopped for it are only counted. Of what
    was ended by a kill or a limit, a rank that ended by the signal that this sends says nothing of its own.
    """
    is_ended_for_it = view.get("result") not in (None, "", "Failed")
    causes: list[str] = []
    others: list[str] = []
    for number, rank in enumerate(ranks_of(view)):
        code = rank.get("exitCode")
        if rank.get("phase") == "Failed" or code:
            is_cause = bool(rank.get("reason")) and rank.get("reason") == view.get("reason")
            if is_ended_for_it and code in _STOPPED and rank.get("reason") != "OutOfMemory":
                continue
            (causes if is_cause else others).append(f"rank {number} {_how(rank)}")
    causes = _with_words(causes, str(view.get("message") or ""))
    if not causes or not others:
        return causes or others
    stopped = "1 other rank was" if len(others) == 1 else f"{len(others)} other ranks were"
    return [*causes[:SHOWN_MAX], f"{stopped} stopped for it"]


def exit_code_of(view: Json) -> int:
    """What a command that followed it to its end exits with: 0, the exit code of the rank that ended it, or 1.

    1 stands for every end that is not the rank's own: a kill, a limit, a preemption, a lost node, a bad image.
    """
    if has_succeeded(view):
        return 0
    if view.get("result") != "Failed":
        return 1
    ranks = ranks_of(view)
    found = _CAUSE.match(str(view.get("message") or ""))
    first = [int(found.group(1))] if found is not None else []
    causes = [number for number, rank in enumerate(ranks) if rank.get("reason") == view.get("reason")]
    for number in [*first, *causes, *range(len(ranks))]:
        code = ranks[number].get("exitCode") if number < len(ranks) else None
        if code and 0 < int(code) <= _EXIT_CODE_MAX:
            return int(code)
    return 1


def _how(rank: Json) -> str:
    """How a rank ended, in short."""
    code = rank.get("exitCode")
    if code is None:
        return str(rank.get("reason") or "failed")
    name = "out of memory" if rank.get("reason") == "OutOfMemory" else signal_name(int(code))
    return f"exited with {code}" + (f" ({name})" if name else "")


def _with_words(causes: list[str], message: str) -> list[str]:
    """The causes, the rank that failed first in front and in the words that were recorded of it, if they say more."""
    found = _CAUSE.match(message)
    if found is None:
        return causes
    rank, said = f"rank {found.group(1)} ", found.group(3)
    first = [text for text in causes if text.startswith(rank)]
    rest = [text for text in causes if not text.startswith(rank)]
    if first and not _CODE_ALONE.fullmatch(said):
        first = [message]
    return [*first, *rest]


_CAUSE = re.compile(r"rank (\d+)( on [^:]+)?: (.*)", re.DOTALL)
"""The sentence of the watcher about the rank that ended an attempt."""
_CODE_ALONE = re.compile(r"exit code \d+( \([^)]*\))?")


def note_of(view: Json) -> str:
    """What is worth knowing beyond the state: the gate, the failed ranks, the nodes."""
    if view["phase"] == PENDING:
        return waits_for(view) or ("stopping" if view.get("desired") == "Stopped" else "")
    if has_ended(view):
        failed = failures_of(view)
        if failed and not has_succeeded(view):
            return "; ".join(failed[:3])
        return "" if has_succeeded(view) else str(view.get("message") or view.get("reason") or "")
    return blocked_by(view) or str(view["status"].get("nodes") or "")


def summary_of(view: Json) -> str:
    """How it ended, in one line."""
    reason = f" ({view['reason']})" if view.get("reason") and not has_succeeded(view) else ""
    failed = failures_of(view)
    extra = f": {'; '.join(failed[:4])}" if failed else f": {view['message']}" if view.get("message") else ""
    return one_line(f"{view['id']} {view.get('result') or view['phase']}{reason}{extra}")


def none_of(asked: Mapping[str, object]) -> str:
    """That no workload fits what was asked for, such as `no workload of user ada with queue q`; empty for no filter."""
    rest = ", ".join(f"{name} {value}" for name, value in asked.items() if value and name != "user")
    user = f" of user {asked['user']}" if asked.get("user") else ""
    return f"no workload{user}{f' with {rest}' if rest else ''}" if user or rest else ""
