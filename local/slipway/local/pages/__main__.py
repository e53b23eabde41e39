"""`python -m slipway.local.pages notebook|tensorboard`: the pages that local mode serves when the real programs are
not installed.

The composition root: reads the environment that every pod of ours has, and serves until SIGTERM. Invariant: it starts
quickly and needs nothing but the standard library.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from slipway.local.pages.server import NotebookSite, PageServer, TensorboardSite

ENV_WORKLOAD_TOKEN = "SLIPWAY_WORKLOAD_TOKEN"  # noqa: S105 - the name of a variable
NOTEBOOK_PORT = 8888
TENSORBOARD_PORT = 6006


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slipway.local.pages", description=__doc__)
    parser.add_argument("page", choices=("notebook", "tensorboard"))
    parser.add_argument("--host", default=os.environ.get("SLIPWAY_POD_IP", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=0, help="default: the port of this kind of workload")
    parser.add_argument("--prefix", default=os.environ.get("SLIPWAY_PROXY_PREFIX", ""), help="path prefix of all pages")
    parser.add_argument("--logdir", type=Path, default=Path(os.environ.get("TENSORBOARD_LOGDIR", ".")))
    options = parser.parse_args(argv)
    is_notebook = options.page == "notebook"
    site = NotebookSite() if is_notebook else TensorboardSite(options.logdir)
    port = options.port or (NOTEBOOK_PORT if is_notebook else TENSORBOARD_PORT)
    server = PageServer((options.host, port), site, prefix=options.prefix, token=os.environ.get(ENV_WORKLOAD_TOKEN, ""))

    def leave(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    sys.stderr.write(f"serving {options.page} at {server.url}\n")
    try:
        server.serve_forever()
    finally:
        site.close()
        server.server_close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
