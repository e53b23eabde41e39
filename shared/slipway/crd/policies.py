"""Failure and success policies: what the end of a rank means for its allocation.

Owns the two policies as fields of an allocation, which rule decides on a failure, and when a success policy is met.
Pure. Knows no pods and no attempts: `watcher/gang.py` decides how a rank ended, `watcher/ends.py` what follows.

Invariants: the first rule that matches decides. Without a policy this module changes nothing. Ranks that end later
never turn "met" into "not met".

Sources: Kubernetes' Job (`podFailurePolicy`, `successPolicy`), JobSet (`failurePolicy`, `successPolicy`), Volcano's Job
(`minSuccess`, `policies`). Their `Ignore` restarts a failed pod: here that action is `notCounted`.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from slipway.crd.meta import RANKS_MAX, Name, Wire
from slipway.model.numbers import number_in

RULES_MAX = 20
CODES_MAX = 64
"""Maximum entries of one rule; each is a code or a range."""
TARGETS_MAX = 16
EXIT_CODE_MAX = 255
UNCOUNTED_MAX = 10
"""Maximum restarts by `notCounted` rules when the launch sets no limit."""
EXIT_CODES_PATTERN = r"^[0-9]{1,3}(-[0-9]{1,3})?$"
"""The pattern in the schema. A launch gets an error message with the reason instead."""

ExitCodes = int | Annotated[str, Meta(max_length=16)]


class RestartUnit(StrEnum):
    """The unit that restarts after the failure of a rank."""

    GANG = "gang"
    RANK = "rank"


class FailureAction(StrEnum):
    """The effect of the failure of a rank."""

    FAIL = "fail"
    RETRY = "retry"
    IGNORE = "ignore"
    NOT_COUNTED = "notCounted"


class FailureRule(Wire, kw_only=True, frozen=True):
    """The failures of ranks to which it applies, and their effect."""

    action: FailureAction
    """fail: the allocation fails, without another attempt; retry: another attempt, within maxRestarts; ignore: as if
    the rank had ended with 0; notCounted: another attempt, within maxUncountedRestarts. With `restart: rank` only the
    rank restarts where another attempt would follow"""
    roles: Annotated[list[Name], Meta(max_length=16)] = []
    """the roles to which it applies; all of them when empty"""
    exit_codes: Annotated[list[ExitCodes], Meta(max_length=CODES_MAX)] = []
    """exit codes of the main container, 1 to 255: numbers, or ranges such as 64-78; every failure of the program when
    empty"""
    disruption: bool = False
    """it applies to ranks that were lost with their node, evicted, or deleted, and not to exit codes"""


class FailurePolicy(Wire, kw_only=True, frozen=True):
    """The effect of failures of ranks. A failure that no rule matches is treated as without a policy."""

    rules: Annotated[list[FailureRule], Meta(max_length=RULES_MAX)] = []
    """checked in order; the first rule that matches decides"""
    max_uncounted_restarts: Annotated[int, Meta(ge=0, le=1000)] = UNCOUNTED_MAX
    """number of attempts that may end by a rule with notCounted; further ones are included in maxRestarts"""


class SuccessTarget(Wire, kw_only=True, frozen=True):
    """Ranks that must have ended with 0."""

    role: Name | None = None
    """the role; when absent the ranks of all roles that are no daemons"""
    count: Annotated[int, Meta(ge=1, le=RANKS_MAX)] | None = None
    """required number of these ranks; all of them when absent"""
    indexes: Annotated[list[Annotated[int, Meta(ge=0, lt=RANKS_MAX)]], Meta(max_length=256)] = []
    """only these ranks of the role, counted from 0 within it; all ranks of the role when empty"""


class SuccessPolicy(Wire, kw_only=True, frozen=True):
    """When the allocation has succeeded although other ranks still run; those are then ended."""

    operator: Annotated[str, Meta(pattern="^(All|Any)$")] = "All"
    """whether all targets must be met, or one of them"""
    targets: Annotated[list[SuccessTarget], Meta(max_length=TARGETS_MAX)] = []
    """which ranks must have ended with 0"""


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a rank of a running gang that a success policy needs. `has_succeeded` is None while it runs."""

    role: str
    index: int
    """counted from 0 within its role"""
    has_succeeded: bool | None = None
    daemon: bool = False


class SuccessState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a success policy. `target` is the position of the target that decides, if exactly one does."""

    has_ranks: bool = False
    """it applies to at least one placed rank; else it decides nothing"""
    is_met: bool = False
    is_out_of_reach: bool = False
    """too many ranks have failed: it can never be met"""
    target: int | None = None
    text: str = ""
    """description of what is met, for people"""


@lru_cache(maxsize=1024)
def code_range(entry: int | str) -> range:
    """Return the exit codes of one entry of a rule.

    Raises:
        ValueError: the entry is neither a number from 1 to 255 nor a range of them; the message states what to write.
    """
    first, is_range, last = str(entry).partition("-")
    low = number_in(first)
    high = number_in(last) if is_range else low
    if low is None or high is None:
        raise ValueError(f"{repr(entry)[:66]} is not an exit code; write a number such as 42, or a range such as 64-78")
    if low == 0:
        raise ValueError("0 is no failure; write exit codes from 1 to 255")
    if high > EXIT_CODE_MAX:
        raise ValueError(f"{high} is no exit code; write 1 to {EXIT_CODE_MAX}")
    if low > high:
        raise ValueError(f"{entry} is empty; write {high}-{low}")
    return range(low, high + 1)


def deciding_rule(
    policy: FailurePolicy | None, *, role: str, code: int | None, is_disruption: bool = False
) -> int | None:
    """Return the position of the first rule that matches a failure, or None. `code` is None when there is no exit
    code."""
    for position, rule in enumerate(policy.rules if policy is not None else ()):
        if rule.roles and role not in rule.roles:
            continue
        if rule.disruption or is_disruption:
            if rule.disruption and is_disruption:
                return position
            continue
        if not rule.exit_codes or (code is not None and any(code in _range_of(each) for each in rule.exit_codes)):
            return position
    return None


def said_by(policy: FailurePolicy | None, position: int | None) -> str:
    """Return text such as `failurePolicy.rules[0] says fail`; empty without a rule."""
    action = action_of(policy, position)
    return f"failurePolicy.rules[{position}] says {action.value}" if action is not None else ""


def action_of(policy: FailurePolicy | None, position: int | None) -> FailureAction | None:
    """Return the action of the rule at `position`; None when there is no such rule."""
    if policy is None or position is None or not 0 <= position < len(policy.rules):
        return None
    return policy.rules[position].action


def success_state(policy: SuccessPolicy, ranks: Iterable[RankEnd]) -> SuccessState:
    """Return whether the existing ranks meet `policy`.

    A target that requires more ranks than are placed is met when all placed ones have succeeded. A target without a
    placed rank is ignored.
    """
    placed = tuple(ranks)
    found = [
        (position, _target_state(target, members))
        for position, target in enumerate(policy.targets)
        if (members := [rank for rank in placed if _is_meant(target, rank)])
    ]
    if not found:
        return SuccessState()
    met = [(position, state) for position, state in found if state.is_met]
    lost = [(position, state) for position, state in found if state.is_out_of_reach]
    if policy.operator == "Any":
        if not met:
            return SuccessState(has_ranks=True, is_out_of_reach=len(lost) == len(found))
        return _met(met[:1])
    if len(met) < len(found):
        return SuccessState(has_ranks=True, is_out_of_reach=bool(lost))
    return _met(met)


def covered(rule: FailureRule, roles: Collection[str]) -> frozenset[tuple[str, int]]:
    """Return every failure that `rule` matches, as (role, exit code).

    The code is 0 for a failure without an exit code, and -1 for a disruption.

    Raises:
        ValueError: an entry is not a valid exit code.
    """
    if rule.disruption:
        codes: Iterable[int] = (-1,)
    elif rule.exit_codes:
        codes = {code for each in rule.exit_codes for code in code_range(each)}
    else:
        codes = range(EXIT_CODE_MAX + 1)
    named = [role for role in roles if not rule.roles or role in rule.roles]
    return frozenset((role, code) for role in named for code in codes)


def _range_of(entry: int | str) -> range:
    """Return the codes of an entry. An invalid entry matches nothing: an object with one is refused before it
    starts."""
    try:
        return code_range(entry)
    except ValueError:
        return range(0)


def _is_meant(target: SuccessTarget, rank: RankEnd) -> bool:
    if target.role is None:
        return not rank.daemon and (not target.indexes or rank.index in target.indexes)
    return rank.role == target.role and (not target.indexes or rank.index in target.indexes)


def _target_state(target: SuccessTarget, members: Sequence[RankEnd]) -> SuccessState:
    needed = len(members) if target.count is None else min(target.count, len(members))
    well = sum(rank.has_succeeded is True for rank in members)
    failed = sum(rank.has_succeeded is False for rank in members)
    of = f" of {target.role}" if target.role is not None else ""
    return SuccessState(
        is_met=well >= needed,
        is_out_of_reach=len(members) - failed < needed,
        text=f"{well} of {len(members)} {'rank' if len(members) == 1 else 'ranks'}{of} ended well",
    )


def _met(targets: Sequence[tuple[int, SuccessState]]) -> SuccessState:
    names = ", ".join(f"targets[{position}]" for position, _ in targets)
    texts = ", ".join(state.text for _, state in targets)
    only = targets[0][0] if len(targets) == 1 else None
    return SuccessState(has_ranks=True, is_met=True, target=only, text=f"successPolicy.{names}: {texts}")
