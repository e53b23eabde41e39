"""The command reference: the verbs, in the groups of `slipway --help`, and the exit codes."""

from slipway.cli import main
from tools.reference.markdown import code, table

TOP = """# The `slipway` command

`slipway VERB --help` describes a verb in detail.
"""


def page() -> str:
    """Return one table per group, and the exit codes."""
    parts = [TOP]
    for group, verbs in main.GROUPS.items():
        rows = [(code(f"slipway {name}"), entry.summary) for name, entry in verbs.items()]
        parts += [f"## {group}\n", table(("verb", "what"), rows)]
    names = {name: meant for name, meant in main.ALIASES.items() if name != meant}
    parts.append("Other names: " + ", ".join(f"`{name}` is `{meant}`" for name, meant in names.items()) + ".\n")
    codes = {
        main.OK: "done",
        main.FAILED: "the run failed",
        main.USAGE: "usage error",
        main.NOT_FOUND: "not found",
        main.NOT_ALLOWED: "not allowed",
        main.TIMED_OUT: "timed out",
        main.DETACHED: "detached with Ctrl-C; the run continues",
    }
    rows = [(str(number), meaning) for number, meaning in codes.items()]
    return "\n".join([*parts, "## Exit codes\n", table(("code", "meaning"), rows)])
