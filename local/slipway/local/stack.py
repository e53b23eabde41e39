"""The whole system on this machine: a local cluster, a Valkey, the nodes and the four services as processes.

Owns what is started, in which order, with which environment, and that nothing of it is left. The services are exactly
the ones that are deployed; given a kubeconfig and a Redis URL they run against those, and nothing else is started.
Every listener asks for the token of the stack, which is in files that this account alone can read (`access.py`). Each
service has the account on the Valkey that it has in a cluster, so that what it may not do there fails here too.

Promises: `start` returns when everything answers, or raises with the end of the log of what did not, and then nothing
runs; what dies, or is a service and not alive any more (`watchdog.py`), is started again; after `stop` no process of
the stack runs, and its folder is gone unless it is to be kept.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from slipway.errors import InvalidError, UnavailableError
from slipway.kube import client
from slipway.local import access, certificate
from slipway.local.bootstrap import furnish
from slipway.local.layout import Layout, StackProcess, StackState, is_alive, register, unregister
from slipway.local.node.disk import remove_sockets
from slipway.local.node.logs import KEPT_BYTES
from slipway.local.process import Child
from slipway.local.valkey import ServerOptions, ValkeyProcess
from slipway.local.watchdog import PERIOD_S, Watchdog
from slipway.runtime import private_files, redis_url
from slipway.runtime.clock import Clock, Random, SystemClock, SystemRandom
from slipway.runtime.listen import LOCALHOST, ListenAddress, bind_all
from slipway.streams.accounts import OF_SERVICES

LOG_ARCHIVE_BYTES_MAX = 4 * 1024**3
"""Of a person's disk the archive of logs takes so much."""
SERVICES = ("api", "scheduler", "podworker", "watcher")
READY_S = 30.0
PORTS_FIRST, PORTS_END = 21_000, 32_000
STOP_S = 12.0
RESTART_S = 0.2
RESTARTS_MAX_S = 5.0
VALKEY_LOOK_S = 0.5
SYSTEM_NAMESPACE = "slipway-system"
DEFAULT_PORT = 8080
LOOPBACK_NETWORKS = "127.0.0.0/8,::1/128"
"""Where programs of this machine listen: ranks of the local cluster, and receivers of events that one tries out."""


class StackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. `port` is the API's; 0 takes a free one, and a taken default falls back to a free one."""

    folder: Path
    nodes: int = 2
    cpus: int = 4
    memory: str = "16Gi"
    gpus: int = 8
    port: int = DEFAULT_PORT
    keep: bool = False
    redis: bool = True
    kubeconfig: str = ""
    """of an existing cluster; empty: a local one is started"""
    redis_url: str = ""
    """of an existing Redis; empty: a local one is started (unless `redis` is false)"""
    replicas: Mapping[str, int] = {}
    env: Mapping[str, str] = {}
    """more environment for the services"""


class Stack:
    """One local stack. `say` is told what happens, one line each."""

    def __init__(
        self,
        options: StackOptions,
        *,
        say: Callable[[str], None] = lambda _line: None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.options = options
        self.layout = Layout(options.folder)
        self.children: dict[str, Child] = {}
        self.doors: dict[str, str] = {}
        """the tasks' door of each process of the api"""
        self.valkey: ValkeyProcess | None = None
        self._redis_logins: dict[str, str] = {}
        """{account of our Valkey: password}"""
        self._say = say
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._watching: set[asyncio.Task[None]] = set()
        self._resting: set[str] = set()
        self._stopping = False
        self._kubernetes = ""
        self.token = ""
        """opens the API and the local cluster; made by `start`"""
        self._names = access.Names("", "")
        self._workload_token = ""

    @property
    def api_url(self) -> str:
        """Where the API is."""
        return self.children["api"].url

    @property
    def kubeconfig(self) -> str:
        """The kubeconfig of the cluster in use."""
        return self.options.kubeconfig or str(self.layout.kubeconfig)

    def redis_login(self, service: str) -> dict[str, str]:
        """The account of a service on our Valkey, as its environment says it; empty where the Redis is another's."""
        password = self._redis_logins.get(service)
        return {redis_url.USER: service, redis_url.PASSWORD: password} if password else {}

    @property
    def redis_url(self) -> str:
        """The Redis in use; empty when there is none."""
        return self.options.redis_url or (self.valkey.url if self.valkey is not None else "")

    async def start(self) -> None:
        """Start everything and wait until it answers.

        Raises:
            InvalidError: a stack runs in this folder already.
            UnavailableError: something did not come up; what had started is stopped again.
        """
        running = self.layout.read_state()
        if running is not None and any(is_alive(member) for member in running.members):
            raise InvalidError(
                f"a stack already runs in {self.layout.folder} (API at {running.api}); "
                "`slipway down` stops it, `--data DIR` starts another elsewhere"
            )
        self.layout.make()
        self.token = access.make_token(self.layout, self._clock.now())
        self._names = access.make_names(self.layout)
        access.make_session_key(self.layout)
        self._workload_token = access.make_workload_token(self.layout)
        try:
            await self._start_cluster()
            await self._start_services()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End every process in reverse order; remove the folder unless it is kept."""
        self._stopping = True
        for task in self._watching:
            task.cancel()
        services = [child for name, child in self.children.items() if name not in ("cluster", "nodes")]
        await asyncio.gather(*(child.stop(STOP_S) for child in services))
        for name in ("nodes", "cluster"):
            if name in self.children:
                await self.children[name].stop(STOP_S)
        if self.valkey is not None:
            await self.valkey.stop()
        self.layout.state.unlink(missing_ok=True)
        if "api" in self.children:
            unregister(self.api_url, self.layout.folder)
        await asyncio.to_thread(remove_sockets, self.layout.nodes)
        if not self.options.keep:
            await asyncio.to_thread(shutil.rmtree, self.layout.folder, ignore_errors=True)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to one process (`api`, `scheduler`, `podworker-1`, ...); the pid it went to."""
        child = self.children[name]
        child.signal(how)
        return child.pid

    async def halt(self, name: str) -> None:
        """End one process and leave it ended."""
        self._resting.add(name)
        await self.children[name].stop(STOP_S)

    async def resume(self, name: str) -> None:
        """Start a halted process again and wait until it answers."""
        self._resting.discard(name)
        child = self.children[name]
        await child.start()
        self._watch(child)
        await child.answers("/readyz", READY_S)
        self._write_state()

    # --- starting -------------------------------------------------------------------------------------------------

    async def _start_cluster(self) -> None:
        if not self.options.redis_url and self.options.redis:
            self._redis_logins = {account.name: secrets.token_hex(32) for account in OF_SERVICES}
            users = tuple(
                f"{account.name} on #{hashlib.sha256(self._redis_logins[account.name].encode()).hexdigest()} "
                f"{account.rules()}"
                for account in OF_SERVICES
            )
            self.valkey = ValkeyProcess(
                self.layout.redis, ServerOptions(appendonly=self.options.keep, users=users), clock=self._clock
            )
        if self.options.kubeconfig:
            self._kubernetes = self.options.kubeconfig
        else:
            listen = f"127.0.0.1:{_free_port()}"
            self._kubernetes = f"https://{listen}"
            issued = await asyncio.to_thread(certificate.issue, self._clock.now())
            private_files.write(self.layout.certificate, issued.server)
            self.layout.write_kubeconfig(self._kubernetes, token=self.token, authority=issued.authority)
            argv = ["slipway.local.apiserver", "--listen", listen, "--token-file", str(self.layout.token)]
            argv += ["--tls-cert-file", str(self.layout.certificate)]
            # Kept on disk also when the folder is not: a cluster that is killed comes back as it was.
            argv += ["--data", str(self.layout.cluster)]
            trusting = ssl.create_default_context(cadata=issued.authority.decode())
            await self._spawn("cluster", argv, url=self._kubernetes, tls=trusting)
        if self.valkey is not None:
            await self.valkey.start()
            self._go_on(self._keep_valkey(self.valkey))

    async def _start_services(self) -> None:
        # The services are started before the cluster answers: they wait for it themselves, and all load at once.
        port = _port(self.options.port)
        for service in SERVICES:
            for index in range(self.options.replicas.get(service, 1)):
                name = service if index == 0 else f"{service}-{index}"
                own_port = port if name == "api" else _free_port()
                env = {
                    "SLIPWAY_LISTEN": f"127.0.0.1:{own_port}",
                    "SLIPWAY_API_URL": f"http://127.0.0.1:{port}",
                    "SLIPWAY_METRICS_TOKEN_FILE": str(self.layout.token),
                }
                env |= self.redis_login(service)
                if service == "api":
                    env |= self._api_environment(own_port)
                    self.doors[name] = f"http://{env['SLIPWAY_TASK_LISTEN']}"
                if service == "watcher" and not self.options.kubeconfig:
                    env["SLIPWAY_NODE_LOG_BYTES"] = str(KEPT_BYTES)
                if service == "watcher":
                    env["SLIPWAY_LOG_ARCHIVE_BYTES_MAX"] = str(LOG_ARCHIVE_BYTES_MAX)
                url = f"http://127.0.0.1:{own_port}"
                await self._spawn(name, [f"slipway.{service}.main"], url=url, env=env)
        if not self.options.kubeconfig:
            await self._spawn_nodes()
        async with client.connect(self.kubeconfig, clock=self._clock, random=self._random) as kube:
            local = not self.options.kubeconfig
            await furnish(
                kube,
                self._clock,
                system_namespace=SYSTEM_NAMESPACE,
                local_defaults=local,
                workload_domain=self._names.workloads,
            )
        self._write_state()
        waits = [child for name, child in self.children.items() if name not in ("cluster", "nodes")]
        await asyncio.gather(*(child.answers("/readyz", READY_S) for child in waits))

    def _api_environment(self, port: int) -> dict[str, str]:
        """What only the api is told: who may call, and what browsers call it."""
        return {
            # Both loopback addresses: a browser that looks for the host name may try either, and no other account's.
            "SLIPWAY_LISTEN": f"{LOCALHOST}:{port}",
            "SLIPWAY_AUTH": "token",
            "SLIPWAY_TOKEN_DIR": str(self.layout.tokens),
            "SLIPWAY_SESSION_KEY_DIR": str(self.layout.session_keys),
            "SLIPWAY_HOSTS": self._names.host,
            "SLIPWAY_PROXY_DOMAIN": self._names.workloads,
            "SLIPWAY_WORKLOAD_TOKEN_FILE": str(self.layout.workload_token),
            # One person's machine: nobody has to be kept from using it up.
            "SLIPWAY_RATE_PER_S": "0",
            # Ranks are told of the api itself, which takes the tokens of tasks too.
            "SLIPWAY_TASK_LISTEN": f"127.0.0.1:{_free_port()}",
            "SLIPWAY_WEBHOOK_NETWORKS": LOOPBACK_NETWORKS,
            # Ranks are programs of this machine.
            "SLIPWAY_PROXY_NETWORKS": LOOPBACK_NETWORKS,
        }

    async def _spawn_nodes(self) -> None:
        options = self.options
        argv = ["slipway.local.node", "--state", str(self.layout.nodes), "--nodes", str(options.nodes)]
        argv += ["--cpus", str(options.cpus), "--memory", options.memory, "--gpus", str(options.gpus)]
        await self._spawn("nodes", argv, env={access.ENV_WORKLOAD_TOKEN: self._workload_token})

    async def _spawn(
        self,
        name: str,
        module: list[str],
        *,
        url: str = "",
        env: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        child = Child(
            name,
            [sys.executable, "-m", *module],
            env={**self._environment(), **(env or {}), **self.options.env},
            log=self.layout.logs / f"{name}.log",
            clock=self._clock,
            url=url,
            tls=tls,
        )
        self.children[name] = child
        await child.start()
        self._watch(child)

    def _environment(self) -> dict[str, str]:
        """The parent's environment without settings that were meant for somebody else."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        env |= {"KUBECONFIG": self.kubeconfig, "SLIPWAY_NAMESPACE": SYSTEM_NAMESPACE, "PYTHONSAFEPATH": "1"}
        if self.redis_url:
            env["SLIPWAY_REDIS_URL"] = self.redis_url
            env["SLIPWAY_LOG_ARCHIVE_URL"] = self.layout.log_archive.as_uri()
        return env

    # --- watching -------------------------------------------------------------------------------------------------

    def _watch(self, child: Child) -> None:
        works = [self._keep(child)]
        if child.name not in ("cluster", "nodes"):
            works.append(self._probe(child))
        for work in works:
            self._go_on(work)

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _probe(self, child: Child) -> None:
        """End a service that stands still, so that it is started again; one that is halted is left alone."""
        watchdog = Watchdog(child, self._clock, self._say)
        while child.name not in self._resting:
            await self._clock.sleep(PERIOD_S)
            if child.name not in self._resting:
                await watchdog.look()

    async def _keep(self, child: Child) -> None:
        """Start a child again whenever it ends, with a growing pause."""
        pause_s = RESTART_S
        while True:
            code = await child.ended()
            if self._stopping or child.name in self._resting:
                return
            self._say(f"{child.name} ended ({_how(code)}); starting it again")
            await self._clock.sleep(pause_s)
            if self._stopping or child.name in self._resting:
                return
            pause_s = min(RESTARTS_MAX_S, pause_s * 2)
            await child.start()
            self._write_state()

    async def _keep_valkey(self, valkey: ValkeyProcess) -> None:
        """Start it again whenever it ends by itself, with a growing pause: empty, unless its data are kept."""
        pause_s = RESTART_S
        while True:
            await self._clock.sleep(VALKEY_LOOK_S)
            code = valkey.fell_with
            if code is None:
                continue
            self._say(f"redis ended ({_how(code)}); starting it again")
            await self._clock.sleep(pause_s)
            pause_s = min(RESTARTS_MAX_S, pause_s * 2)
            if valkey.fell_with is None:
                continue
            try:
                await valkey.start()
            except UnavailableError as error:
                self._say(f"redis: {error}; the services go on without it. `slipway down` and `slipway up` start anew")
                return
            self._write_state()

    def _write_state(self) -> None:
        members = [child.member() for child in self.children.values()]
        if self.valkey is not None and self.valkey.pid is not None:
            members.append(StackProcess(name="redis", pid=self.valkey.pid, log=str(self.valkey.log)))
        state = StackState(
            api=self.api_url,
            kubeconfig=self.kubeconfig,
            redis_url=self.redis_url,
            kubernetes=self._kubernetes,
            supervisor=os.getpid(),
            members=members,
        )
        self.layout.write_state(state)
        register(self.api_url, self.layout.folder)


def _how(code: int) -> str:
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name


def _free_port() -> int:
    """Below the ports of connections that go out: one of those could take it before its service listens."""
    for _ in range(1_000):
        port = PORTS_FIRST + secrets.randbelow(PORTS_END - PORTS_FIRST)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOCALHOST, port))
            return port
    raise UnavailableError(f"no free port between {PORTS_FIRST} and {PORTS_END}: end what listens there")


def _port(wanted: int) -> int:
    """`wanted`, or a free port when it is the default and taken.

    Raises:
        UnavailableError: a port that was asked for by name is taken.
    """
    if not wanted:
        return _free_port()
    try:
        listeners = bind_all(ListenAddress(LOCALHOST, wanted))
    except UnavailableError as exc:
        if wanted != DEFAULT_PORT:
            raise UnavailableError(f"port {wanted} is taken; choose another with --port, or 0 for any") from exc
        return _free_port()
    port = int(listeners[0].getsockname()[1])
    for listener in listeners:
        listener.close()
    return port
