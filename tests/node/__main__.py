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
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.browser.chromium import find as find_browser
from tests.conformance.cluster.binaries import InstallError, MissingProgramError, ensure_debian
from tests.node import images
from tests.node.cluster_folder import ClusterFolder, a_cluster_folder
from tests.node.nodes import NodeCluster, own_places, unpacked
from tests.node.programs import ensure_programs, spaces

SKIPPED = 77
DISTURBING = ("test_machines", "test_operations", "test_install_page", "test_release")
"""Files whose tests stop nodes, move the services or uninstall them."""


def main() -> int:
    """0 after a signal, an install, or when every test passed; 77 where this machine cannot have a node; 1 if anything
    is left, or a program that can be installed here was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.node", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument(
        "--test",
        nargs=argparse.REMAINDER,
        help="run the tests, in two parts at once, or those of the files named; all that follows goes to pytest",
    )
    parser.add_argument("--install", action="store_true", help="build and install what is missing, and end")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--unpack", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.inside:
        return _keep(words.inside, words.nodes)
    if words.unpack:
        return _unpack()
    try:
        programs = ensure_programs()
        images.ensure_images(programs)
        if words.test is not None or words.install:
            # Inside there is no network to install it from; where it is missing, its test reports it.
            with contextlib.suppress(MissingProgramError):
                if not find_browser():
                    ensure_debian("chromium-headless-shell")
    except InstallError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except MissingProgramError as error:
        sys.stderr.write(f"skipped: {error}\n")
        return SKIPPED
    if words.install:
        subprocess.run(spaces([sys.executable, "-m", "tests.node", "--unpack"]), check=True)
        sys.stdout.write(f"Kubernetes {programs.cluster.version}, containerd and the images are there\n")
        return 0
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, _interrupt)
    if words.test is None:
        code = 0
        with a_cluster_folder() as cluster_folder, contextlib.suppress(KeyboardInterrupt):
            argv = ["-m", "tests.node", "--nodes", str(words.nodes), "--inside", str(cluster_folder.folder)]
            code = subprocess.run(spaces([sys.executable, *argv]), env=_env(cluster_folder), check=False).returncode
        return code or _say_what_is_left([cluster_folder])
    if any(word.startswith("tests/") for word in words.test):
        return _run([words.test])
    return _run([[*part, *words.test] for part in parts()])


def parts() -> list[list[str]]:
    """The files of tests in two parts, each for its own cluster: tests that take nodes or the services away from
    others, and tests that use what runs."""
    files = {path.stem: str(path.relative_to(Path.cwd())) for path in sorted(Path(__file__).parent.glob("test_*.py"))}
    return [[files[name] for name in DISTURBING], [path for name, path in files.items() if name not in DISTURBING]]


def _run(tests: Sequence[Sequence[str]]) -> int:
    """Run these at the same time, each on its own cluster; the first prints while it runs, the others when they have
    ended.

    Returns:
        the exit code of the first that failed; 1 if anything is left on the machine.
    """
    code = 0
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(a_cluster_folder()) for _ in tests]
        logs = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in tests[1:])]
        running: list[subprocess.Popen[bytes]] = []
        try:
            for cluster_folder, log, which in zip(places, logs, tests, strict=True):
                argv = spaces([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *which])
                running.append(subprocess.Popen(argv, env=_env(cluster_folder), stdout=log, stderr=log))
            for process in running:
                code = process.wait() or code
        except KeyboardInterrupt:
            code = 1
        finally:
            for process in running:
                process.kill()
                process.wait()
            for log in filter(None, logs):
                log.seek(0)
                sys.stdout.write(log.read().decode(errors="replace"))
    return code or _say_what_is_left(places)


def _env(cluster_folder: ClusterFolder) -> dict[str, str]:
    return {**os.environ, "SLIPWAY_NODE_DIR": str(cluster_folder.folder)}


def _say_what_is_left(places: Sequence[ClusterFolder]) -> int:
    left = [each for cluster_folder in places for each in cluster_folder.left]
    for each in left:
        sys.stderr.write(f"error: left behind: {each}\n")
    return int(bool(left))


def _interrupt(_sign: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _unpack() -> int:
    programs = ensure_programs()
    own_places()
    unpacked(programs, images.ensure_images(programs))
    return 0


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
