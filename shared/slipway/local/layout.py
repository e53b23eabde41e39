"""Where a local stack keeps its things, and what it says of itself to other processes.

Owns the folder and the state file `stack.json`. Knows nothing of how anything is started.
"""

import os
from pathlib import Path

import msgspec


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the stack; `started` is its start time in clock ticks, so that a reused pid is not it."""

    name: str
    pid: int
    started: int = 0
    url: str = ""
    log: str = ""


class StackState(msgspec.Struct, frozen=True, kw_only=True):
    """What `stack.json` holds."""

    api: str
    kubeconfig: str
    redis_url: str
    kubernetes: str
    supervisor: int
    members: list[Member] = []


class Layout:
    """The files of one stack below its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "stack.json"
        self.kubeconfig = folder / "kubeconfig"
        self.logs = folder / "logs"
        self.cluster = folder / "cluster"
        self.redis = folder / "redis"
        self.nodes = folder / "nodes"

    def make(self) -> None:
        """Create the folders, readable by their owner only."""
        for folder in (self.folder, self.logs, self.redis, self.nodes):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def read_state(self) -> StackState | None:
        """What the stack in this folder says of itself; None when there is none."""
        try:
            return msgspec.json.decode(self.state.read_bytes(), type=StackState)
        except (OSError, msgspec.DecodeError):
            return None

    def write_state(self, state: StackState) -> None:
        """Replace the state file at once (a reader sees the old or the new one)."""
        fresh = self.state.with_suffix(".new")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
        fresh.replace(self.state)

    def write_kubeconfig(self, server: str) -> None:
        """A kubeconfig that kubectl and our own services read.

        Without credentials: over plain HTTP kubectl sends none, and the server listens on loopback only.
        """
        text = f"""apiVersion: v1
kind: Config
current-context: slipway
clusters:
- name: slipway
  cluster:
    server: {server}
contexts:
- name: slipway
  context:
    cluster: slipway
    user: slipway
    namespace: default
users:
- name: slipway
  user: {{}}
"""
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(text, encoding="utf-8")


def default_folder() -> Path:
    """`$XDG_STATE_HOME/slipway`, else `~/.local/state/slipway`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "slipway"


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot (Linux); 0 when that can not be told or it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def is_alive(member: Member) -> bool:
    """Whether this very process still runs."""
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    now = start_ticks(member.pid)
    return not (member.started and now) or member.started == now
