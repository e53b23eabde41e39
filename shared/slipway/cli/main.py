"""The `slipway` command: finds the verb, imports only its module, and converts the result to an exit code.

Owns the list of verbs, the help page and the exit codes. Knows no details of a verb.

Invariant: importing this module and printing the help page import only a small part of the standard library, so that
`slipway --help` answers at once.
"""

import importlib
import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from slipway.cli.verb import CliVerb

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
NOT_ALLOWED = 4
TIMED_OUT = 124
DETACHED = 130
BROKEN_PIPE = 141


class VerbEntry(NamedTuple):
    """One line of the help page."""

    module: str
    summary: str


GROUPS: dict[str, dict[str, VerbEntry]] = {
    "This machine": {
        "up": VerbEntry("local", "start Slipway here: a cluster, a Valkey and the four services"),
        "down": VerbEntry("local", "stop what `up` started"),
        "demo": VerbEntry("local", "start Slipway, run the demo workloads, and stop it"),
        "doctor": VerbEntry("doctor", "diagnose the installation and suggest fixes"),
    },
    "Who and where": {
        "login": VerbEntry("login", "log in at a server: single sign-on, token or Kubernetes"),
        "logout": VerbEntry("login", "remove a login, and end its sign-on at the issuer"),
        "whoami": VerbEntry("login", "show your user, your roles and the end of your login"),
        "context": VerbEntry("login", "manage your logins at servers: ls, use, rm"),
        "config": VerbEntry("config", "show and set the server, the user and the workspace in effect"),
        "token": VerbEntry("tokens", "manage tokens of the API: create, ls, revoke"),
    },
    "Launch": {
        "run": VerbEntry("run", "run a command on ranks: slipway run --ranks 4 -- python train.py"),
        "notebook": VerbEntry("kinds", "start, open, list and stop notebooks"),
        "shell": VerbEntry("kinds", "start, open, list and stop shells"),
        "command": VerbEntry("kinds", "start, open, list and stop commands"),
        "tensorboard": VerbEntry("kinds", "start, open, list and stop TensorBoards"),
        "rerun": VerbEntry("rerun", "launch an allocation again, with changed options"),
        "apply": VerbEntry("apply", "launch from a YAML or JSON file"),
        "import": VerbEntry("import_files", "convert files of other systems into launches, with a report"),
        "render": VerbEntry("render", "show the pods of a launch, without launching it"),
    },
    "Look": {
        "ps": VerbEntry("listing", "list what waits and what runs"),
        "top": VerbEntry("top", "watch nodes, queues and your work on one screen; --once"),
        "get": VerbEntry("show", "show one allocation as the API returns it"),
        "describe": VerbEntry("show", "show one allocation in readable form"),
        "explain": VerbEntry("show", "explain its state, and what would let it start"),
        "timeline": VerbEntry("show", "show how long it spent in each phase"),
        "trace": VerbEntry("show", "show its trace as a waterfall, from request to first output"),
        "events": VerbEntry("streams", "list its transitions; -f follows"),
        "follow": VerbEntry("run", "follow it as `run` does (also `attach`): output, end, exit code"),
        "logs": VerbEntry("streams", "print the output of its ranks; -f follows"),
        "open": VerbEntry("open_wait", "open its page, or that of the API, in a browser"),
        "exec": VerbEntry("rank_exec", "run a command in a rank, or a shell: exec ID -- nvidia-smi"),
        "cp": VerbEntry("rank_copy", "copy files from a rank, or to it: cp ID:/data/model.pt ."),
        "ssh": VerbEntry("rank_ssh", "open an SSH session in a rank; the image needs sshd"),
        "ssh-config": VerbEntry("rank_ssh", "print its ~/.ssh/config entry: VS Code Remote, rsync, scp"),
        "ssh-proxy": VerbEntry("rank_ssh", "connect ssh to a rank: the ProxyCommand of `ssh-config`"),
        "port-forward": VerbEntry("open_wait", "forward a port of this machine to a port of a workload"),
        "wait": VerbEntry("open_wait", "wait until it runs, is ready, or has ended"),
        "queue": VerbEntry("listing", "list queues and what waits in them"),
        "pool": VerbEntry("listing", "list and show pools"),
        "nodes": VerbEntry("listing", "list nodes and what is free on them"),
        "job": VerbEntry("jobs", "manage jobs: groups with limits, priority, places in the queue"),
        "history": VerbEntry("history", "list what has ended; --at TIME: what waited and ran then"),
        "workspace": VerbEntry("workspaces", "manage workspaces: defaults, pools, quotas"),
        "usage": VerbEntry("usage", "report usage by user, queue, day...; --csv"),
    },
    "Change": {
        "kill": VerbEntry("change", "end it; -l LABELS or --all: many at once"),
        "rm": VerbEntry("change", "delete what has ended; -l LABELS or --all: many at once"),
        "terminate": VerbEntry("change", "end it; if it can save its work, it does so first"),
        "preempt": VerbEntry("change", "ask its ranks to save their work and end"),
        "pause": VerbEntry("change", "let it save its work, then stop it until `resume`"),
        "hold": VerbEntry("change", "keep it from starting; -l, --all: many at once"),
        "resume": VerbEntry("change", "let it start (again); -l, --all: many at once"),
        "move": VerbEntry("jobs", "move it ahead of or behind another; -l, --all: many at once"),
        "forget": VerbEntry("change", "give up its ranks on machines that are off"),
        "priority": VerbEntry("change", "set its priority; -l, --all: many at once"),
        "limit": VerbEntry("change", "change its time limits, also while it runs"),
        "update": VerbEntry("change", "change image, command, variables or resources while it is held"),
        "node": VerbEntry("nodes", "enable, drain or disable nodes"),
        "template": VerbEntry("catalog", "manage templates of launches: list, show, set, remove"),
    },
    "More": {
        "simulate": VerbEntry("simulate", "run the scheduler's planner over a scenario, in virtual time"),
        "replay": VerbEntry("replay", "plan recorded ticks again, with the same or another policy"),
        "backup": VerbEntry("backup", "write all objects that Slipway stores into a file"),
        "restore": VerbEntry("backup", "restore a backup into a cluster; existing objects stay"),
        "audit": VerbEntry("audit", "check the invariants; reads everything, writes nothing"),
        "webhook": VerbEntry("webhooks", "manage webhooks: list, create, show, set, test, rm"),
        "dead": VerbEntry("dead", "manage dead-letter messages: list, show, replay, drop"),
        "completion": VerbEntry("completion", "print the completion script for bash, zsh or fish"),
        "version": VerbEntry("version", "print the versions of this command and of the server"),
    },
}

VERBS = {name: entry for group in GROUPS.values() for name, entry in group.items()}
ALIASES = {
    "notebooks": "notebook",
    "jobs": "job",
    "templates": "template",
    "workspaces": "workspace",
    "webhooks": "webhook",
    "attach": "follow",
    "stop": "kill",
    "log": "logs",
    "event": "events",
    "queues": "queue",
    "pools": "pool",
    "shells": "shell",
    "commands": "command",
    "tensorboards": "tensorboard",
    "contexts": "context",
    "tokens": "token",
}
ELSEWHERE = {
    "list": "ps",
    "ls": "ps",
    "status": "ps",
    "squeue": "ps",
    "sinfo": "nodes",
    "show": "describe",
    "inspect": "describe",
    "why": "explain",
    "launch": "run",
    "submit": "run",
    "create": "run",
    "start": "run",
    "sbatch": "run",
    "srun": "run",
    "salloc": "shell start",
    "cancel": "kill",
    "delete": "kill",
    "scancel": "kill",
    "tail": "logs -f",
    "sacct": "history",
    "retry": "rerun",
    "restart": "rerun",
    "suspend": "pause",
    "continue": "resume",
    "unhold": "resume",
    "release": "resume",
    "cordon": "node disable",
    "uncordon": "node enable",
    "drain": "node drain",
    "scp": "cp",
    "rsync": "cp",
}
"""{verb of another tool: our verb}. Our verb is only suggested, because the other tool's verb works differently."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal of another encoding shows `\\u2588` for a character that it lacks; the text is not lost.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _main(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed the pipe: no message is needed, and nothing may be flushed to the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    front: list[str] = []
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option in ("-h", "--help"):
            print(help_page())
            return OK
        if option in ("-V", "--version"):
            arguments = ["version", "--client"]
            break
        front.append(option)
        if option in ("--server", "--user") and arguments:
            front.append(arguments.pop(0))
    if not arguments or arguments[0] == "help":
        if len(arguments) > 1:
            return _run(arguments[1], ["--help"])
        print(help_page())
        return OK if arguments or not front else USAGE
    return _run(arguments[0], [*front, *arguments[1:]])


def help_page() -> str:
    """Return the text of `slipway --help`."""
    lines = ["usage: slipway VERB [arguments]      (slipway VERB --help shows its options)", ""]
    for group, verbs in GROUPS.items():
        lines.append(group)
        lines += [f"  {name:<12} {entry.summary}" for name, entry in verbs.items()]
        lines.append("")
    lines += [
        "The server: --server URL, else $SLIPWAY_SERVER, else where you are logged in,",
        "else the stack that runs here, else http://127.0.0.1:8080.",
        "An ID may be shortened as long as it matches only one allocation.",
        "Exit codes: 0 ok, 1 the run failed, 2 usage, 3 not found, 4 not allowed,",
        "124 timeout, 130 detached with Ctrl-C.",
    ]
    return "\n".join(lines)


def load(name: str) -> "CliVerb":
    """Return the verb with that name; its module is imported."""
    module = importlib.import_module(f"slipway.cli.verbs.{VERBS[name].module}")
    verb: CliVerb = module.VERBS[name]
    return verb


def _run(name: str, arguments: list[str]) -> int:
    name = ALIASES.get(name, name)
    if name not in VERBS:
        meant = f"; did you mean {ELSEWHERE[name]}?" if name in ELSEWHERE else close_to(name, [*VERBS, *ALIASES])
        sys.stderr.write(f"slipway: there is no verb {name!r}{meant}; `slipway --help` lists them\n")
        return USAGE
    from slipway.cli.verb import execute

    try:
        return execute(name, load(name), arguments)
    except ModuleNotFoundError as error:
        from slipway.installed import missing_extra

        extra = missing_extra(error, "local" if VERBS[name].module == "local" else "server")
        if extra is None:
            raise
        sys.stderr.write(f"error: slipway {name}: {extra}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return DETACHED


def close_to(name: str, names: Iterable[str]) -> str:
    """Return the hint that follows an unknown name, if one of the names is close to it."""
    import difflib

    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


if __name__ == "__main__":
    sys.exit(main())
