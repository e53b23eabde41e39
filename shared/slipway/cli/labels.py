"""The short texts for an allocation in a line or a cell: its state, its ranks, its most important note. Pure.

Reads the JSON of the REST API (`AllocationView`); does not know how the texts are shown.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

from slipway.cli.table import one_line
from slipway.model.exitcodes import signal_name
from slipway.model.resources import Resources
from slipway.model.state_words import word_for

Json = dict[str, Any]

PENDING, TERMINATED = "Pending", "Terminated"
GPU = "nvidia.com/gpu"
STARTING = ("Assigned", "Pulling", "Starting")


def state_of(view: Json) -> str:
    """Return the phase, or the result after the end. Held, Ready and Waiting replace the phase where they apply."""
    return word_for(
        str(view["phase"]),
        view.get("result"),
        hold=bool(view.get("hold")),
        ready=bool(view.get("ready")),
        waiting=bool(view.get("waiting")),
    )


def has_ended(view: Json) -> bool:
    """Whether the allocation has ended, which is final."""
    return view["phase"] == TERMINATED


def has_succeeded(view: Json) -> bool:
    """Whether the allocation ended with success."""
    return view.get("result") == "Succeeded"


def rank_count(view: Json) -> int:
    """Return the number of ranks."""
    roles = cast("list[Json]", view["spec"].get("ranks") or [])
    return sum(int(role.get("count", 1)) for role in roles) or 1


def ranks_of(view: Json) -> list[Json]:
    """Return the observed status of each rank."""
    return cast("list[Json]", view["status"].get("ranks") or [])


def running_of(view: Json) -> str:
    """Return `running/all` until the allocation ends, then `all`."""
    if has_ended(view):
        return str(rank_count(view))
    running = sum(rank.get("phase") == "Running" for rank in ranks_of(view))
    return f"{running}/{rank_count(view)}"


def node_state(item: Json) -> str:
    """Return whether a node is ready, and whether new ranks may be placed there."""
    if not item["ready"]:
        return "NotReady"
    wanted = str(item.get("scheduling") or "enabled")
    return "Ready" if wanted == "enabled" else wanted.capitalize()


def gpus_in(amounts: Json) -> str:
    """Return the GPUs in amounts of resources: `8`; a part of a GPU counts as that part, `0.429`."""
    return f"{Resources.parse(amounts).gpu_count():g}"


def gpus_of(view: Json) -> float:
    """Return the GPUs that all ranks request together; a part of a GPU counts as that part."""
    if "gpus" in view:
        return float(view["gpus"])
    # A server of an earlier version does not send `gpus`. The roles show the whole GPUs.
    total = 0
    for role in cast("list[Json]", view["spec"].get("ranks") or []):
        asked = cast("Json", role.get("resources") or {})
        amount = str(cast("Json", asked.get("requests") or asked).get(GPU) or "0")
        total += int(role.get("count", 1)) * (int(amount) if amount.isdigit() else 0)
    return total


def condition_of(view: Json, type_: str) -> Json:
    """Return a condition of the status; empty when there is none."""
    conditions = cast("list[Json]", view["status"].get("conditions") or [])
    found = [each for each in conditions if each.get("type") == type_]
    return found[0] if found else {}


def waits_for(view: Json) -> str:
    """Return the gate that keeps the allocation waiting, with the scheduler's message; empty when it does not wait."""
    if view["phase"] != PENDING:
        return ""
    condition = condition_of(view, "Admitted")
    if condition.get("status") != "False":
        return ""
    return f"{condition.get('reason', '')}: {condition.get('message', '')}"


def blocked_by(view: Json) -> str:
    """Return what blocks the start after the nodes are assigned; empty when nothing does, or when it is unknown."""
    if view["phase"] not in STARTING:
        return ""
    for type_ in ("StartBlocked", "Stuck"):
        found = condition_of(view, type_)
        is_current = found.get("observedGeneration") == view.get("attempt")
        if is_current and found.get("status") != "False":
            return f"{found.get('reason', '')}: {found.get('message', '')}"
    return ""


_STOPPED = (143, 137)
"""The exit codes of SIGTERM, and of SIGKILL after the grace period."""
_EXIT_CODE_MAX = 255
"""The highest exit code of a process."""
SHOWN_MAX = 3
"""The most ranks that are named in one line."""


def failures_of(view: Json) -> list[str]:
    """Return one text per failed rank, with its exit code.

    Ranks with the same reason as the allocation are the cause. When there is a cause, the other ranks are only counted:
    a rank that ended with the signal of a stop was stopped because of the cause, any other rank failed as well. After a
    kill or a limit, ranks that ended with the signal of the stop are left out.
    """
    is_ended_for_it = view.get("result") not in (None, "", "Failed")
    causes: list[str] = []
    others: list[str] = []
    stopped = 0
    for number, rank in enumerate(ranks_of(view)):
        code = rank.get("exitCode")
        if rank.get("phase") == "Failed" or code:
            is_cause = bool(rank.get("reason")) and rank.get("reason") == view.get("reason")
            is_stopped = code in _STOPPED and rank.get("reason") != "OutOfMemory"
            if is_ended_for_it and is_stopped:
                continue
            stopped += is_stopped and not is_cause
            (causes if is_cause else others).append(f"rank {number} {_how(rank)}")
    causes = _with_words(causes, str(view.get("message") or ""))
    if not causes or not others:
        return causes or others
    rest: list[str] = []
    if failed := len(others) - stopped:
        rest.append("1 other rank failed as well" if failed == 1 else f"{failed} other ranks failed as well")
    if stopped:
        rest.append(f"{'1 other rank was' if stopped == 1 else f'{stopped} other ranks were'} stopped because of it")
    return [*causes[:SHOWN_MAX], *rest]


def exit_code_of(view: Json) -> int:
    """Return the exit code of a command that followed the allocation to its end.

    It is 0, the exit code of the rank that ended the allocation, or 1.

    1 stands for every end that a rank did not cause: a kill, a limit, a preemption, a lost node, a bad image.
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
    """Return how a rank ended, in short."""
    code = rank.get("exitCode")
    if code is None:
        return str(rank.get("reason") or "failed")
    name = "out of memory" if rank.get("reason") == "OutOfMemory" else signal_name(int(code))
    return f"exited with {code}" + (f" ({name})" if name else "")


def _with_words(causes: list[str], message: str) -> list[str]:
    """Return the causes with the first failed rank first. Its recorded message replaces its text when it says more."""
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
"""Matches the watcher's sentence about the rank that ended an attempt."""
_CODE_ALONE = re.compile(r"exit code \d+( \([^)]*\))?")


def note_of(view: Json) -> str:
    """Return the most important fact beyond the state: the gate, the failed ranks, or the nodes."""
    if view["phase"] == PENDING:
        return waits_for(view) or ("stopping" if view.get("desired") == "Stopped" else "")
    if has_ended(view):
        failed = failures_of(view)
        if failed and not has_succeeded(view):
            return "; ".join(failed[:3])
        return "" if has_succeeded(view) else str(view.get("message") or view.get("reason") or "")
    return blocked_by(view) or str(view["status"].get("nodes") or "")


def summary_of(view: Json) -> str:
    """Return how the allocation ended, in one line."""
    reason = f" ({view['reason']})" if view.get("reason") and not has_succeeded(view) else ""
    failed = failures_of(view)
    extra = f": {'; '.join(failed[:4])}" if failed else f": {view['message']}" if view.get("message") else ""
    return one_line(f"{view['id']} {view.get('result') or view['phase']}{reason}{extra}")


def none_of(asked: Mapping[str, object]) -> str:
    """Return a text such as `no workload of user ada with queue q`; empty without filters."""
    rest = ", ".join(f"{name} {value}" for name, value in asked.items() if value and name != "user")
    user = f" of user {asked['user']}" if asked.get("user") else ""
    return f"no workload{user}{f' with {rest}' if rest else ''}" if user or rest else ""
