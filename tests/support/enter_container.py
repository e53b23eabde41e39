"""The command of a pod, run in a container of an image: `python -m tests.support.enter_container PLACE COMMAND...`.

Owns what a kubelet mounts into every container: the token of the account, where clients look for it by default. The
environment is the image's, overridden by the pod's. `PLACE` is a file in JSON: the image, and where the API is.
"""

import os
import shutil
import sys
from pathlib import Path

import msgspec

from tests.support.container import Container
from tests.support.dockerfile import Image

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
LISTENS = ("SLIPWAY_LISTEN", "SLIPWAY_HEALTH_LISTEN", "SLIPWAY_TASK_LISTEN")
OF_THE_NODE = ("HOME", "OLDPWD", "PATH", "PWD", "PYTHONPATH", "SHLVL", "TMPDIR", "_")


class ImageAndServer(msgspec.Struct, frozen=True, kw_only=True):
    """A built image, and the API server: its host and its port."""

    root: str
    env: dict[str, str]
    user: str
    host: str
    port: str


def main() -> None:
    """Replace this process by the command."""
    where = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ImageAndServer)
    home = Path(os.environ["HOME"])
    image = Image(root=Path(where.root), env=where.env, labels={}, user=where.user, bases=())
    container = Container(image, home / f"container-{os.getpid()}", {ACCOUNT: _account(home)})
    env = {name: value for name, value in os.environ.items() if name not in OF_THE_NODE}
    env |= {"KUBERNETES_SERVICE_HOST": where.host, "KUBERNETES_SERVICE_PORT": where.port}
    for name in LISTENS:
        if name in env and "POD_IP" in env:
            # All pods share one network here, so each listens on its own address instead of on all.
            env[name] = f"{env['POD_IP']}:{env[name].rpartition(':')[2]}"
    argv = container.argv(sys.argv[2:], env)
    os.execvp(argv[0], argv)  # the node identifies the process by its pid


def _account(home: Path) -> Path:
    """Let the container's user read what the node has mounted (a kubelet does it by fsGroup)."""
    (source,) = home.parent.glob("volumes/kube-api-access-*")
    copy = home / f"account-{os.getpid()}"
    shutil.copytree(source, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


if __name__ == "__main__":
    main()
