"""Starts a control plane and keeps it until SIGINT or SIGTERM: `python -m tests.conformance.cluster --data DIR`."""

import argparse
import signal
import sys
import threading
import time
from pathlib import Path

from tests.conformance.cluster.binaries import MissingProgramError
from tests.conformance.cluster.servers import ClusterOptions, running_cluster


def main() -> int:
    """Run until a signal. Return 0 after a signal, 1 when the control plane could not be started."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.cluster", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of its own, kept afterwards")
    parser.add_argument("--no-scheduler", action="store_true", help="no kube-scheduler")
    parser.add_argument("--no-audit", action="store_true", help="no audit log (faster)")
    words = parser.parse_args()
    options = ClusterOptions(scheduler=not words.no_scheduler, audit=not words.no_audit)
    stopping = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda _sign, _frame: stopping.set())
    began = time.monotonic()
    try:
        with running_cluster(words.data.resolve(), options) as cluster:
            sys.stdout.write(
                f"Kubernetes {cluster.binaries.version} at {cluster.url} after {time.monotonic() - began:.1f} s\n"
                f"export KUBECONFIG={cluster.kubeconfig}\nkubectl: {cluster.binaries.kubectl}\n"
            )
            sys.stdout.flush()
            stopping.wait()
    except (MissingProgramError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
