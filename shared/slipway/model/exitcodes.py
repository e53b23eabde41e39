"""The end of a program as text: its exit code, the signal behind it, or why it could not be started. Pure.

Source: pkg/kubelet/container (reasons StartError and ContainerCannotRun, v1.36); runc and containerd (the message
`exec: "PROGRAM": WHY`); POSIX shells (an exit code above 128 is a signal).
"""

import re
import signal

START_ERRORS = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a container whose program never began to run."""
_INTERRUPTED = (
    "context canceled",
    "context deadline exceeded",
    "transport is closing",
    "ttrpc: closed",
    "connection refused",
    "connection reset by peer",
    "error reading from server",
    "code = unavailable",
    "is not running",
    "too many open files",
    "no space left on device",
)
"""Parts of messages, in lower case, of a container runtime when the machine interrupted a start. Causes are a kubelet
or runtime that restarted at that moment, a lost sandbox, or no free file handles or disk space. Source: containerd,
internal/cri/server/container_start.go (v2.4): a start is canceled when its client disconnects."""
OUT_OF_MEMORY = "OOMKilled"
_SIGNALLED = 128
_PLAIN = ("", "Error", "Completed")
_EXEC = re.compile(r'exec:? "?([^":]+)"?: (?:stat [^:]+: )?([^:\n]+)')
_CHDIR = re.compile(r'chdir to cwd \("([^"]+)"\)[^:]*: ([^:\n]+)')


def ended_text(code: int, *, said: str = "", message: str = "") -> str:
    """Return `exit code 3`, `exit code 137 (SIGKILL)`, or why the program could not be started.

    `said` is the reason that Kubernetes reports; `message` is the text of Kubernetes or of the program about the end.
    """
    message = message.strip()
    if said in START_ERRORS:
        return not_started_text(message)
    name = signal_name(code)
    if said == OUT_OF_MEMORY:
        marks = f"{OUT_OF_MEMORY}: out of memory"
    elif said not in _PLAIN:
        marks = said
    else:
        marks = name
    text = f"exit code {code}" + (f" ({marks})" if marks else "")
    return f"{text}: {message}" if message else text


def is_start_interrupted(said: str, message: str) -> bool:
    """Whether the machine, not the program, prevented the start of a container; arguments as in `ended_text`."""
    lower = message.lower()
    return said in START_ERRORS and _EXEC.search(message) is None and any(word in lower for word in _INTERRUPTED)


def signal_name(code: int) -> str:
    """Return the signal that shells and container runtimes report as this exit code; empty when it is no signal."""
    if code <= _SIGNALLED:
        return ""
    try:
        return signal.Signals(code - _SIGNALLED).name
    except ValueError:
        return ""


def not_started_text(message: str) -> str:
    """Return why a program could not be started, from the message of a container runtime."""
    folder = _CHDIR.search(message)
    if folder is not None:
        return f"the working directory {folder.group(1)} cannot be entered: {folder.group(2).strip()}"
    found = _EXEC.search(message)
    if found is None:
        return f"the program could not be started: {message}" if message else "the program could not be started"
    program, why = found.group(1), found.group(2).strip()
    if "not found in $PATH" in why:
        why = "no such file in $PATH"
    return f"{program} could not be started: {why}"
