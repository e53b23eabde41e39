"""Where a local stack keeps its things, and what it says of itself to other processes.

Owns the folder, the state file `stack.json`, the token that every listener of the stack asks for, and the index that
says which folder the stack at a port of this machine has, so that the command finds the token by the address alone.
Knows nothing of how anything is started.

Invariants: no other account can open the folder or anything in it, whatever the umask is; a token is given for a
server only while the stack that the token is of runs there.
"""

import base64
import os
from pathlib import Path

import msgspec
import yaml

from slipway.errors import DeniedError
from slipway.runtime import private_files

_NAME = "slipway"


class StackProcess(msgspec.Struct, frozen=True, kw_only=True):
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
    members: list[StackProcess] = []


class Layout:
    """The files of one stack below its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "stack.json"
        self.token = folder / "token"
        """opens every listener of the stack"""
        self.tokens = folder / "tokens"
        """the records of the tokens that the API takes"""
        self.session_keys = folder / "session-keys"
        """what seals the cookies of browsers"""
        self.workload_token = folder / "workload-token"
        """what the proxy of the API shows to workloads"""
        self.names = folder / "names"
        """what browsers call the stack"""
        self.certificate = folder / "apiserver.pem"
        """of the local API server, with its key"""
        self.kubeconfig = folder / "kubeconfig"
        self.logs = folder / "logs"
        self.log_archive = folder / "log-archive"
        """what workloads printed, whole"""
        self.cluster = folder / "cluster"
        self.redis = folder / "redis"
        self.nodes = folder / "nodes"

    def make(self) -> None:
        """Create the folders, and close those of an earlier version to other accounts.

        Raises:
            DeniedError: the folder belongs to another account.
        """
        private_files.mend(self.folder)
        for folder in (
            self.tokens,
            self.session_keys,
            self.logs,
            self.log_archive,
            self.cluster,
            self.redis,
            self.nodes,
        ):
            folder.mkdir(exist_ok=True, mode=private_files.FOLDER_MODE)
            private_files.mend(folder)

    def read_state(self) -> StackState | None:
        """What the stack in this folder says of itself; None when there is none."""
        try:
            return msgspec.json.decode(self.state.read_bytes(), type=StackState)
        except (OSError, msgspec.DecodeError):
            return None

    def write_state(self, state: StackState) -> None:
        """Replace the state file at once (a reader sees the old or the new one)."""
        private_files.write(self.state, msgspec.json.format(msgspec.json.encode(state), indent=2))

    def write_kubeconfig(self, server: str, *, token: str, authority: bytes) -> None:
        """A kubeconfig for kubectl and for the services. `authority` is the PEM that the server's certificate is of."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": _NAME,
            "clusters": [
                {
                    "name": _NAME,
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": base64.b64encode(authority).decode(),
                    },
                }
            ],
            "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": "default"}}],
            "users": [{"name": _NAME, "user": {"token": token}}],
        }
        private_files.write(self.kubeconfig, yaml.safe_dump(document, sort_keys=False).encode())


def register(api: str, folder: Path) -> None:
    """Note which folder the stack at this address has."""
    index = index_folder()
    private_files.make_folder(index)
    private_files.write(index / _port_of(api), str(folder).encode())


def unregister(api: str, folder: Path) -> None:
    """Forget it, unless another stack has the address by now."""
    entry = index_folder() / _port_of(api)
    if _read(entry) == str(folder):
        entry.unlink(missing_ok=True)


def token_at(port: int) -> str:
    """The token of the stack whose API listens at that port of this machine; empty when none of ours does."""
    folder = _read(index_folder() / str(port))
    if not folder:
        return ""
    layout = Layout(Path(folder))
    state = layout.read_state()
    if state is None or _port_of(state.api) != str(port):
        return ""
    api = [member for member in state.members if member.url == state.api]
    return _read(layout.token) if any(is_alive(member) for member in api) else ""


def index_folder() -> Path:
    """One file per port of this machine at which a stack of this account has its API."""
    return _state_home() / "slipway-servers"


def default_folder() -> Path:
    """`$XDG_STATE_HOME/slipway`, else `~/.local/state/slipway`."""
    return _state_home() / "slipway"


def _state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return Path(base) if base else Path.home() / ".local" / "state"


def _port_of(url: str) -> str:
    return url.rpartition(":")[2].strip("/")


def _read(path: Path) -> str:
    """The text of a file that only this account can have written; empty when there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise DeniedError(f"{path} belongs to another account; remove it")
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot (Linux); 0 when that cannot be told or it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def is_alive(member: StackProcess) -> bool:
    """Whether this very process still runs."""
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    now = start_ticks(member.pid)
    return not (member.started and now) or member.started == now
