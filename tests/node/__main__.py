"""A cluster with real nodes: `make node` starts one and keeps it until SIGINT; `--test` runs its tests.

Owns the namespaces that all of it runs in (network, mounts, processes): nothing of it is seen outside, and all of it is
gone when this ends.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.browser.chromium import find as find_browser
from tests.conformance.cluster.binaries import InstallError, MissingProgramError, ensure_debian
from tests.node import images
from tests.node.nodes import NodeCluster
from tests.node.place import a_place
from tests.node.programs import ensure_programs, spaces

SKIPPED = 77


def main() -> int:
    """0 after a signal or when every test passed; 77 where this machine cannot have a node; 1 if anything is left, or
    a program that can be installed here was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.node", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument(
        "--test",
        nargs=argparse.REMAINDER,
        help="run the tests, or those of the files named; all that follows goes to pytest",
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.inside:
        return _keep(words.inside, words.nodes)
    try:
        programs = ensure_programs()
        images.ensure_images(programs)
        if words.test is not None:
            # Inside there is no network to install it from; where it is missing, its test says so.
            with contextlib.suppress(MissingProgramError):
                if not find_browser():
                    ensure_debian("chromium")
    except InstallError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except MissingProgramError as error:
        sys.stderr.write(f"skipped: {error}\n")
        return SKIPPED
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, _interrupt)
    code = 0
    with a_place() as place:
        argv = [sys.executable, "-m", "tests.node", "--nodes", str(words.nodes), "--inside", str(place.folder)]
        if words.test is not None:
            named = any(word.startswith("tests/") for word in words.test)
            which = [*words.test] if named else ["tests/node", *words.test]
            argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *which]
        env = {**os.environ, "SLIPWAY_NODE_DIR": str(place.folder)}
        with contextlib.suppress(KeyboardInterrupt):
            code = subprocess.run(spaces(argv), env=env, check=False).returncode
    for each in place.left:
        sys.stderr.write(f"error: left behind: {each}\n")
    return code or bool(place.left)


def _interrupt(_sign: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _keep(folder: Path, nodes: int) -> int:
    stopping = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda _sign, _frame: stopping.set())
    programs = ensure_programs()
    began = time.monotonic()
    cluster = NodeCluster(folder, programs, images.ensure_images(programs), nodes=nodes)
    cluster.start()
    try:
        sys.stdout.write(
            f"Kubernetes {programs.cluster.version} with {nodes} real nodes after {time.monotonic() - began:.1f} s\n"
            f"enter it: nsenter --net --mount --pid --target "
            f"$(pgrep -f 'tests.node.*--inside {folder}' | tail -1) bash\n"
            f"there:    export KUBECONFIG={cluster.control.kubeconfig}; kubectl is {programs.cluster.kubectl}\n"
        )
        sys.stdout.flush()
        stopping.wait()
    finally:
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
