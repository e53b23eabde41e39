"""The register of invariants: one name for each check, run in one order over the same evidence.

Used by the simulation after every run; a live audit runs the same program read-only. Pure.
"""

from collections.abc import Callable, Iterator, Mapping

from slipway.audit import flows, gangs, ledgers, lives, rest, usage
from slipway.audit.evidence import Evidence, Violation

Check = Callable[[Evidence], Iterator[Violation]]

CHECKS: Mapping[str, Check] = {
    "I1 launches last": lives.acknowledged_launches_last,
    "I3 one live pod per rank": gangs.one_live_pod_per_rank,
    "I4 one start per attempt": gangs.one_start_per_attempt,
    "I5 release before bind": gangs.release_before_bind,
    "I6 gangs are whole": rest.gangs_are_whole,
    "I7 terminal is absorbing": lives.terminal_is_absorbing,
    "I8 transitions are legal": lives.transitions_are_legal,
    "I9 epochs rise": ledgers.epochs_rise,
    "I9 admissions come from decisions": ledgers.admissions_come_from_decisions,
    "I9 decisions are finished": ledgers.decisions_are_finished,
    "I10 nothing is given twice": ledgers.nothing_is_given_twice,
    "I11 nothing leaks": rest.nothing_leaks,
    "I12 nothing outlives its end": gangs.nothing_outlives_its_end,
    "I13 cancels win": lives.cancels_win,
    "I14 streams are ordered": flows.streams_are_ordered,
    "I15 streams are complete": flows.streams_are_complete,
    "I16 nothing stays pending": flows.nothing_stays_pending,
    "I20 exits are true": lives.exits_are_true,
    "I26 usage is exact": usage.usage_is_exact,
    "ACK after the effect": flows.hints_are_acked_after_their_effect,
    "FENCE on every write": flows.writes_carry_fences,
}


def audit(evidence: Evidence) -> list[Violation]:
    """Every violation that the checks find."""
    return [violation for check in CHECKS.values() for violation in check(evidence)]
