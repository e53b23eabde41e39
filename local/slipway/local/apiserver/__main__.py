"""`python -m slipway.local.apiserver`: the local cluster's API server as a process.

The composition root: the only place that gives the core a real clock and real uids.
"""

import argparse
import secrets
import time
import uuid
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.http import create_app
from slipway.local.apiserver.journal import Journal
from slipway.model.exec_channels import MESSAGE_BYTES_MAX
from slipway.runtime import memory, private_files
from slipway.runtime.connections import ListenerLimits
from slipway.runtime.http_server import LimitedProtocol, LimitedServer
from slipway.runtime.listen import ListenAddress, bind

_GRACE_S = 2


class _Server(LimitedServer):
    """Ends the watches first, because a server waits for its connections before it stops."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config, ListenerLimits())
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.state.server.close()
        super().handle_exit(sig, frame)


def build_core(*, allow_unknown_rules: bool = False) -> ClusterCore:
    """Return a core on the real clock, with the Python twins of our own CEL rules."""
    from slipway.crd import rules

    return ClusterCore(
        clock=time.time,  # noqa: TID251 - here the real clock enters
        new_uid=lambda: str(uuid.uuid4()),
        twins=rules.TWINS,
        allow_unknown_rules=allow_unknown_rules,
    )


def _accounts_key(folder: Path) -> bytes:
    """Return the key of this cluster. It is created once, so that tokens stay valid after a restart."""
    path = folder / "accounts.key"
    if not path.exists():
        private_files.write(path, secrets.token_bytes(32))
    return path.read_bytes()


def _token(path: Path) -> str:
    """Return the administrator's token. Creates it when the file is missing. Raises ValueError when it is empty."""
    if not path.exists():
        private_files.write(path, secrets.token_urlsafe(32).encode())
    token = path.read_text(encoding="ascii").strip()
    if not token:
        raise ValueError(f"{path} is empty")
    return token


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slipway.local.apiserver", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:6443", help="host:port; keep it on loopback")
    parser.add_argument("--data", type=Path, help="folder in which the cluster is stored (default: only in memory)")
    parser.add_argument(
        "--token-file",
        type=Path,
        required=True,
        metavar="FILE",
        help="file with the administrator's bearer token; created when it does not exist",
    )
    parser.add_argument("--host-name", action="append", default=[], metavar="NAME", help="one more name of this server")
    parser.add_argument(
        "--authorization",
        choices=("open", "rbac"),
        default="open",
        help="rbac: roles and bindings decide; open: every token may do everything",
    )
    parser.add_argument("--tls-cert-file", type=Path, help="serve over TLS; kubectl sends tokens only over TLS")
    parser.add_argument(
        "--tls-private-key-file", type=Path, help="file with the key, when it is not in the certificate's file"
    )
    parser.add_argument(
        "--allow-unknown-rules", action="store_true", help="ignore CEL rules that this server does not implement"
    )
    options = parser.parse_args(argv)
    try:
        token = _token(options.token_file)
    except (OSError, ValueError) as error:
        parser.error(f"--token-file: {error}")
    host, _, port = str(options.listen).rpartition(":")
    core = build_core(allow_unknown_rules=options.allow_unknown_rules)
    journal = Journal(options.data, core) if options.data else None
    core.bootstrap()
    key = _accounts_key(options.data) if options.data else b""
    app = create_app(
        core,
        token=token,
        authorization=options.authorization,
        accounts_key=key,
        hosts=(host, *options.host_name),
    )
    config = uvicorn.Config(
        app, http=LimitedProtocol, ws="websockets-sansio", ws_ping_timeout=None, ws_max_size=MESSAGE_BYTES_MAX,
        log_level="warning", access_log=False, date_header=False,
        timeout_keep_alive=75, timeout_graceful_shutdown=_GRACE_S, ssl_certfile=options.tls_cert_file,
        ssl_keyfile=options.tls_private_key_file,
    )  # fmt: skip
    memory.settle_process()
    try:
        with bind(ListenAddress(host or "127.0.0.1", int(port))) as listener:
            _Server(config, app).run(sockets=[listener])
    finally:
        if journal is not None:
            journal.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
