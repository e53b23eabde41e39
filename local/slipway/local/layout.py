"""The files of a local stack, and the state that it publishes for other processes.

Owns the folder, the state file `stack.json`, the token that every listener of the stack requires, and the index of
folders. The index maps the API's port on this machine to the stack's folder, so that the `slipway` command finds the
token by the address alone. Knows nothing about how processes are started.

Invariants: no other account can open the folder or a file in it, whatever the umask is; the token of a stack is
returned for a port only while this stack runs there.
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
    """One process of the stack. `started`: start time in clock ticks, to detect a reused pid; 0 when unknown."""

    name: str
    pid: int
    started: int = 0
    url: str = ""
    log: str = ""


class StackState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `stack.json`."""

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
        """The token that every listener of the stack accepts."""
        self.tokens = folder / "tokens"
        """The records of the tokens that the API accepts."""
        self.session_keys = folder / "session-keys"
        """The keys that seal browser cookies."""
        self.workload_token = folder / "workload-token"
        """The token that the API's proxy sends to workloads."""
        self.names = folder / "names"
        """The random label in the host names that browsers use for the stack."""
        self.certificate = folder / "apiserver.pem"
        """The certificate of the local API server, with its key."""
        self.kubeconfig = folder / "kubeconfig"
        self.logs = folder / "logs"
        self.log_archive = folder / "log-archive"
        """The archive of the workloads' whole logs."""
        self.cluster = folder / "cluster"
        self.redis = folder / "redis"
        self.nodes = folder / "nodes"

    def make(self) -> None:
        """Create the folders, and correct the modes of existing ones, so that no other account can open them.

        Raises:
            DeniedError: the folder belongs to another account.
        """
        private_files.fix_modes(self.folder)
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
            private_files.fix_modes(folder)

    def read_state(self) -> StackState | None:
        """Return the state of the stack in this folder, or None when there is no stack."""
        try:
            return msgspec.json.decode(self.state.read_bytes(), type=StackState)
        except (OSError, msgspec.DecodeError):
            return None

    def write_state(self, state: StackState) -> None:
        """Replace the state file atomically (a reader sees the old or the new file)."""
        private_files.write(self.state, msgspec.json.format(msgspec.json.encode(state), indent=2))

    def write_kubeconfig(self, server: str, *, token: str, authority: bytes) -> None:
        """Write a kubeconfig for kubectl and the services. `authority`: PEM of the server certificate's authority."""
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
    """Record the folder of the stack at this address in the index."""
    index = index_folder()
    private_files.make_folder(index)
    private_files.write(index / _port_of(api), str(folder).encode())


def unregister(api: str, folder: Path) -> None:
    """Remove the stack's entry from the index, unless another stack has the address now."""
    entry = index_folder() / _port_of(api)
    if _read(entry) == str(folder):
        entry.unlink(missing_ok=True)


def token_at(port: int) -> str:
    """Return the token of the stack whose API listens on this local port, or "" if this account has no such stack."""
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
    """Return the folder of the index: one file per port on which the API of a stack of this account listens."""
    return _state_home() / "slipway-servers"


def default_folder() -> Path:
    """Return the default folder of a stack: `$XDG_STATE_HOME/slipway`, else `~/.local/state/slipway`."""
    return _state_home() / "slipway"


def _state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return Path(base) if base else Path.home() / ".local" / "state"


def _port_of(url: str) -> str:
    return url.rpartition(":")[2].strip("/")


def _read(path: Path) -> str:
    """Return the text of a file of this account, or "" when it cannot be read.

    Raises:
        DeniedError: the file belongs to another account.
    """
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise DeniedError(f"{path} belongs to another account; remove it")
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def start_ticks(pid: int) -> int:
    """Return a process's start time in clock ticks since boot (Linux); 0 when it is unknown or the process ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def is_alive(member: StackProcess) -> bool:
    """Whether this process still runs. A later process with the same pid is detected by its start time."""
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    now = start_ticks(member.pid)
    return not (member.started and now) or member.started == now
