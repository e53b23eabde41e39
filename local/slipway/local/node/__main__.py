"""`python -m slipway.local.node`: all nodes of the local cluster as one process.

The composition root: the only place that gives the nodes a real clock, real chance and a client.
"""

import argparse
import asyncio
import fcntl
import os
import resource
import signal
import ssl
from pathlib import Path

from slipway.kube import client
from slipway.local.node.kubelet import Kubelet
from slipway.local.node.registration import PREFIX, NodeShape
from slipway.runtime import log
from slipway.runtime.clock import SystemClock, SystemRandom
from slipway.runtime.service import ServiceStop

FILES_MAX = 65_536


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slipway.local.node", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="folder of the pods and their logs")
    parser.add_argument("--nodes", type=int, default=2, help="number of nodes")
    parser.add_argument("--prefix", default=PREFIX, help="name of the nodes: PREFIX-0, PREFIX-1, ...")
    parser.add_argument("--cpus", type=int, default=4, help="cpus of each node (nothing is enforced)")
    parser.add_argument("--memory", default="16Gi", help="memory of each node")
    parser.add_argument("--gpus", type=int, default=0, help="simulated nvidia.com/gpu of each node")
    parser.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG"), help="default: KUBECONFIG")
    parser.add_argument("--certificate", type=Path, help="serve logs over TLS, as a kubelet: certificate and key, PEM")
    parser.add_argument("--client-ca", type=Path, help="with --certificate: CA of the clients that may read the logs")
    options = parser.parse_args(argv)
    if (options.certificate is None) != (options.client_ca is None):
        parser.error("--certificate and --client-ca go together")
    shape = NodeShape(cpus=options.cpus, memory=options.memory, gpus=options.gpus)
    try:
        shape.resources()
    except ValueError as error:
        parser.error(str(error))
    log.setup("node", style="text")
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    _raise_file_limit()
    with (options.state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            parser.error(f"another process runs the nodes of {options.state}")
        _run(options, shape)
    return 0


def _run(options: argparse.Namespace, shape: NodeShape) -> None:
    tls = _tls(options.certificate, options.client_ca) if options.certificate else None
    asyncio.run(_serve(options, shape, tls))


def _tls(certificate: Path, client_ca: Path) -> ssl.SSLContext:
    """Return a TLS context that accepts only clients with a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.load_verify_locations(client_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _raise_file_limit() -> None:
    """Raise the soft limit of open files. Each container needs four, so the usual limit suffices for 250 containers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(options: argparse.Namespace, shape: NodeShape, tls: ssl.SSLContext | None) -> None:
    stop, clock, random = ServiceStop(), SystemClock(), SystemRandom()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with client.connect(options.kubeconfig, clock=clock, random=random, user_agent="slipway-node") as kube:
        kubelet = Kubelet(
            kube,
            options.state.resolve(),
            nodes=options.nodes,
            shape=shape,
            clock=clock,
            random=random,
            tls=tls,
            prefix=options.prefix,
        )
        await kubelet.run(stop)


if __name__ == "__main__":
    raise SystemExit(main())
