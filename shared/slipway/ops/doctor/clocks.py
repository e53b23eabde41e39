"""The limits on the difference between two clocks. Pure.

Leases and fences compare no wall clocks, so a wrong clock breaks no promise. But time limits end early or late, tokens
are valid for too long or not at all, and times in streams are in the wrong order.
"""

from slipway.ops.doctor.finding import Finding, failed, ok, warning

NOTICE_S = 2.0
BAD_S = 10.0


def judge_skew(check: str, ahead_s: float, whose: str, *, margin_s: float) -> Finding:
    """Judge a clock that is `ahead_s` seconds ahead of this machine, known to within `margin_s`."""
    off = max(0.0, abs(ahead_s) - margin_s)
    said = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine"
    mend = f"on {whose} and on this machine: timedatectl set-ntp true; chronyc tracking"
    if off > BAD_S:
        return failed(check, said, mend)
    if off > NOTICE_S:
        return warning(check, said, mend)
    return ok(check, f"within {max(margin_s, abs(ahead_s)):.1f} s of this machine")
