"""The state of each node and of each pod on it, and the rules for what pods do: the data of the pod manager.

Owns no behaviour.
"""

import asyncio
from dataclasses import dataclass, field

from tests.conformance.kubelets.admission import NodeResources
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.objects import Pod, Taint
from tests.conformance.kubelets.script import Play, Script
from tests.conformance.kubelets.status import Rejection, Since


@dataclass(slots=True, kw_only=True)
class NodeState:
    """One node, as its pods see it."""

    name: str
    index: int
    room: NodeResources
    labels: dict[str, str]
    taints: tuple[Taint, ...] = ()
    is_away: bool = False
    """whether it neither reads nor writes"""
    is_dead: bool = False
    """whether nothing runs on it"""
    is_closing: bool = False
    """whether it shuts down and admits no pod"""


@dataclass(slots=True, kw_only=True)
class PodState:
    """One pod and the state that its node has of it."""

    pod: Pod
    node_state: NodeState
    since: Since
    ip: str
    life: Life | None = None
    rejection: Rejection | None = None
    is_settled: bool = False
    """whether it had ended before it was first seen, so that only its deletion is left to confirm"""
    is_confirmed: bool = False
    is_gone: bool = False
    written: bytes = b""
    """the last patch of its status"""
    version: int = 0
    """the resource version of the object after that patch"""
    is_ready_said: bool = False
    timer: asyncio.TimerHandle | None = None
    is_queued: bool = False
    is_busy: bool = False
    is_again: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing of the pod runs or ever will."""
        return self.is_settled or self.rejection is not None or (self.life is not None and self.life.is_ended)


@dataclass(kw_only=True)
class Rules:
    """The scripts of pods, and whether status is written; may be changed at any time."""

    default: Script = field(default_factory=Script)
    play: Play | None = None
    is_reporting: bool = True
    """False: status is never written, for measuring everything else"""
