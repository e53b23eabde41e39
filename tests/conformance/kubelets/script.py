"""What a pod does: how long it takes to start, how long it runs, how it ends and how it takes SIGTERM.

Owns the words of a script and where they come from: the pod's annotation, else the callback, else the default. Pure.
Times are seconds. The annotation is a note of the user's, as every pool allows them.
"""

from collections.abc import Callable, Mapping

import msgspec

from tests.conformance.kubelets.objects import Pod

PLAY = "kubelets-play"
"""Annotation of a pod: a script in JSON, such as {"runsS": 2, "exit": 3}."""
FOREVER = -1


class BadScriptError(ValueError):
    """The annotation of a pod is no script."""


class Burst(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Lines that the main container prints at once, so long after its start; negative: when it ends."""

    after_s: float
    lines: int
    width: int = 32
    """how long each is"""


class Script(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One pod's part. `containers` overrides fields for single containers, by name."""

    starts_s: float = 0.05
    """from admission to the first container: volumes, sandbox, image; 0 reports ContainerCreating only if it must"""
    runs_s: float | None = None
    """how long the main containers run; None: until somebody ends them"""
    exit: int = 0
    exits: tuple[int, ...] = ()
    """exit codes of one start after the other, the last one for all that follow; instead of `exit`"""
    reason: str = ""
    """of a termination, instead of Completed and Error: OOMKilled"""
    message: str = ""
    """what the container wrote as its termination message"""
    not_ready_s: float = 0.0
    """how long after its start a container is not ready yet; negative: it never is"""
    term_s: float = 0.05
    """how long a container needs to obey SIGTERM"""
    term_exit: int = 143
    ignores_term: bool = False
    """it is killed when the grace is over, 137"""
    init_runs_s: float = 0.0
    init_exit: int = 0
    pull_fails: int = 0
    """how many pulls of the image fail before one works; -1: all"""
    mount_fails: int = 0
    """the same for volumes: the pod stays ContainerCreating"""
    backoff_s: float = 10.0
    """the first wait after a failed pull or a crash; doubles each time, up to five minutes"""
    reject: str = ""
    """refused with UnexpectedAdmissionError and these words"""
    evicts_s: float | None = None
    """evicted by its own kubelet so long after it started, as under memory pressure"""
    logs: tuple[str, ...] = ()
    """lines that the main container writes when it starts"""
    log_every_s: float = 0.0
    """and then one more line each so many seconds"""
    bursts: tuple[Burst, ...] = ()
    """and numbered lines, `line 1 ...`, in this order"""
    containers: Mapping[str, "Script"] = {}

    def exit_of(self, restarts: int) -> int:
        """The exit code of the start of that number, counted from 0."""
        return self.exits[min(restarts, len(self.exits) - 1)] if self.exits else self.exit

    def of(self, container: str) -> "Script":
        """What one container does."""
        return self.containers.get(container, self) if self.containers else self


Play = Callable[[Pod], Script | None]
"""Asked once for each pod; None means the default."""


def script_of(pod: Pod, play: Play | None, default: Script) -> Script:
    """The pod's script.

    Raises:
        BadScriptError: its annotation cannot be read.
    """
    text = pod.metadata.annotations.get(PLAY)
    if text is not None:
        try:
            return msgspec.json.decode(text, type=Script)
        except msgspec.DecodeError as error:
            raise BadScriptError(f"annotation {PLAY} of pod {pod.key}: {error}") from error
    return (play(pod) if play is not None else None) or default
