"""What a pod does: how long it takes to start, how long it runs, how it ends and how it reacts to SIGTERM.

Owns the fields of a script and its source: the pod's annotation, else the callback, else the default. Pure.
Times are seconds. The annotation is the user's own, which every pool allows.
"""

from collections.abc import Callable, Mapping

import msgspec

from tests.conformance.kubelets.objects import Pod

PLAY = "kubelets-play"
"""Annotation of a pod: a script in JSON, such as {"runsS": 2, "exit": 3}."""
FOREVER = -1


class BadScriptError(ValueError):
    """The annotation of a pod is not a valid script."""


class Burst(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Lines that the main container prints at once, this many seconds after its start; negative: when it ends."""

    after_s: float
    lines: int
    width: int = 32
    """characters of each line"""


class Script(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What one pod does. `containers` overrides fields for single containers, by name."""

    starts_s: float = 0.05
    """seconds from admission to the first container: volumes, sandbox, image; 0 reports ContainerCreating only if it
    must"""
    runs_s: float | None = None
    """seconds that the main containers run; None: until they are ended from outside"""
    exit: int = 0
    exits: tuple[int, ...] = ()
    """exit codes of successive starts, the last one for all later starts; instead of `exit`"""
    reason: str = ""
    """reason of a termination, instead of Completed and Error: OOMKilled"""
    message: str = ""
    """what the container wrote as its termination message"""
    not_ready_s: float = 0.0
    """seconds after its start until a container is ready; negative: never"""
    term_s: float = 0.05
    """seconds that a container needs to obey SIGTERM"""
    term_exit: int = 143
    ignores_term: bool = False
    """whether it is killed when the grace is over, with code 137"""
    init_runs_s: float = 0.0
    init_exit: int = 0
    pull_fails: int = 0
    """how many pulls of the image fail before one works; -1: all"""
    mount_fails: int = 0
    """how many mounts of a volume fail before one works; -1: all; the pod stays ContainerCreating"""
    backoff_s: float = 10.0
    """the first wait after a failed pull or a crash; doubles each time, up to five minutes"""
    reject: str = ""
    """the message with which the node refuses the pod, as UnexpectedAdmissionError"""
    evicts_s: float | None = None
    """seconds after its start at which its own kubelet evicts it, as under memory pressure"""
    logs: tuple[str, ...] = ()
    """lines that the main container writes when it starts"""
    log_every_s: float = 0.0
    """seconds between further lines, one line each time"""
    bursts: tuple[Burst, ...] = ()
    """further numbered lines, `line 1 ...`, in this order"""
    containers: Mapping[str, "Script"] = {}

    def exit_of(self, restarts: int) -> int:
        """The exit code of the start of that number, counted from 0."""
        return self.exits[min(restarts, len(self.exits) - 1)] if self.exits else self.exit

    def of(self, container: str) -> "Script":
        """The script of one container."""
        return self.containers.get(container, self) if self.containers else self


Play = Callable[[Pod], Script | None]
"""Called once for each pod; None means the default."""


def script_of(pod: Pod, play: Play | None, default: Script) -> Script:
    """Return the pod's script.

    Raises:
        BadScriptError: its annotation is not a valid script.
    """
    text = pod.metadata.annotations.get(PLAY)
    if text is not None:
        try:
            return msgspec.json.decode(text, type=Script)
        except msgspec.DecodeError as error:
            raise BadScriptError(f"annotation {PLAY} of pod {pod.key}: {error}") from error
    return (play(pod) if play is not None else None) or default
