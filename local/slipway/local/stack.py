"""The whole system on this machine: a local cluster, a Valkey, the nodes and the four services as processes.

Owns the list of processes, the order of their start, their environment, and the end of all of them. The services are
the same programs that are deployed to clusters. Given a kubeconfig and a Redis URL, only the services are started, and
they use those. Every listener requires the token of the stack, which is in files that only this account can read
(`access.py`). On Valkey each service uses the account that it has in a cluster, so that a command that is forbidden in
a cluster fails here too.

Promises: `start` returns when all services are ready, or raises an error with the end of a failed process's log after
it has stopped all processes. A process that dies is restarted, and so is a service that is no longer alive
(`process.py`). After `stop` no process of the stack runs, and its folder is removed unless `keep` is set.
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
from slipway.local import access
from slipway.local.access import issue_certificate
from slipway.local.bootstrap import create_initial_objects
from slipway.local.layout import Layout, StackProcess, StackState, is_alive, register, unregister
from slipway.local.node.disk import remove_sockets
from slipway.local.node.logs import KEPT_BYTES
from slipway.local.process import PERIOD_S, Child, Watchdog
from slipway.local.valkey import ServerOptions, ValkeyProcess
from slipway.runtime import private_files, redis_url
from slipway.runtime.clock import Clock, Random, SystemClock, SystemRandom
from slipway.runtime.listen import LOCALHOST, ListenAddress, bind_all
from slipway.streams.accounts import OF_SERVICES

LOG_ARCHIVE_BYTES_MAX = 4 * 1024**3
"""Maximum size of the log archive, because it is on a personal disk."""
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
"""The networks of programs on this machine: ranks of the local cluster, and webhook receivers under development."""


class StackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a stack. `port`: the API's port; 0 means a free port, also used if the default port is in use."""

    folder: Path
    nodes: int = 2
    cpus: int = 4
    memory: str = "16Gi"
    gpus: int = 8
    port: int = DEFAULT_PORT
    keep: bool = False
    redis: bool = True
    kubeconfig: str = ""
    """The kubeconfig of an existing cluster; empty: a local cluster is started."""
    redis_url: str = ""
    """The URL of an existing Redis; empty: a local Valkey is started (unless `redis` is false)."""
    replicas: Mapping[str, int] = {}
    env: Mapping[str, str] = {}
    """Additional environment variables for the processes."""


class Stack:
    """One local stack. `say` is called with one line for each event."""

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
        """{api process: URL of its listener for tasks}."""
        self.valkey: ValkeyProcess | None = None
        self._redis_logins: dict[str, str] = {}
        """{account of our Valkey: password}."""
        self._say = say
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._watching: dict[str, list[asyncio.Task[None]]] = {}
        """{process: the tasks that restart and probe it}."""
        self._kubernetes = ""
        self.token = ""
        """The token of the API and the local cluster; set by `start`."""
        self._names = access.BrowserHosts("", "")
        self._workload_token = ""

    @property
    def api_url(self) -> str:
        """The URL of the API."""
        return self.children["api"].url

    @property
    def kubeconfig(self) -> str:
        """The kubeconfig of the cluster in use."""
        return self.options.kubeconfig or str(self.layout.kubeconfig)

    def redis_login(self, service: str) -> dict[str, str]:
        """Return the variables with a service's account on our Valkey; empty with an existing Redis."""
        password = self._redis_logins.get(service)
        return {redis_url.USER: service, redis_url.PASSWORD: password} if password else {}

    @property
    def redis_url(self) -> str:
        """The URL of the Redis in use; empty when there is none."""
        return self.options.redis_url or (self.valkey.url if self.valkey is not None else "")

    async def start(self) -> None:
        """Start everything and wait until it answers.

        Raises:
            InvalidError: a stack already runs in this folder.
            UnavailableError: a process did not become ready; all started processes are stopped again.
        """
        running = self.layout.read_state()
        if running is not None and any(is_alive(member) for member in running.members):
            raise InvalidError(
                f"a stack already runs in {self.layout.folder} (API at {running.api}); "
                "`slipway down` stops it, `--data DIR` starts another elsewhere"
            )
        self.layout.make()
        self.token = access.make_token(self.layout, self._clock.now())
        self._names = access.make_browser_hosts(self.layout)
        access.make_session_key(self.layout)
        self._workload_token = access.make_workload_token(self.layout)
        try:
            await self._start_cluster()
            await self._start_services()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the services, then nodes, cluster and Valkey; remove the folder unless `keep` is set."""
        await self._unwatch(*self._watching)
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
        """Send a signal to one process (`api`, `scheduler`, `podworker-1`, ...). Return its pid."""
        child = self.children[name]
        child.signal(how)
        return child.pid

    async def halt(self, name: str) -> None:
        """End one process without restarting it."""
        await self._unwatch(name)
        await self.children[name].stop(STOP_S)

    async def resume(self, name: str) -> None:
        """Start a halted process again and wait until it answers."""
        await self._unwatch(name)
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
            issued = await asyncio.to_thread(issue_certificate, self._clock.now())
            private_files.write(self.layout.certificate, issued.server)
            self.layout.write_kubeconfig(self._kubernetes, token=self.token, authority=issued.authority)
            argv = ["slipway.local.apiserver", "--listen", listen, "--token-file", str(self.layout.token)]
            argv += ["--tls-cert-file", str(self.layout.certificate)]
            # The data are on disk even when the folder is removed at the end, so a killed cluster process can restore
            # them.
            argv += ["--data", str(self.layout.cluster)]
            trusting = ssl.create_default_context(cadata=issued.authority.decode())
            await self._spawn("cluster", argv, url=self._kubernetes, tls=trusting)
        if self.valkey is not None:
            await self.valkey.start()
            self._go_on("redis", self._keep_valkey(self.valkey))

    async def _start_services(self) -> None:
        # The services start before the cluster answers. They wait for it themselves, and all processes load in
        # parallel.
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
            await create_initial_objects(
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
        """Return the variables of the api alone: authentication, and the host names that browsers use."""
        return {
            # Both loopback addresses, because a browser may try either, and must not reach another account's listener.
            "SLIPWAY_LISTEN": f"{LOCALHOST}:{port}",
            "SLIPWAY_AUTH": "token",
            "SLIPWAY_TOKEN_DIR": str(self.layout.tokens),
            "SLIPWAY_SESSION_KEY_DIR": str(self.layout.session_keys),
            "SLIPWAY_HOSTS": self._names.host,
            "SLIPWAY_PROXY_DOMAIN": self._names.workloads,
            "SLIPWAY_WORKLOAD_TOKEN_FILE": str(self.layout.workload_token),
            # The machine belongs to one person, so no rate limit is needed.
            "SLIPWAY_RATE_PER_S": "0",
            # Ranks use the api's own address, which accepts the tokens of tasks too.
            "SLIPWAY_TASK_LISTEN": f"127.0.0.1:{_free_port()}",
            "SLIPWAY_WEBHOOK_NETWORKS": LOOPBACK_NETWORKS,
            # The proxy connects to ranks, which are programs of this machine.
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
        """Return the environment of all processes: the parent's without its SLIPWAY_ settings, plus our own."""
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
        self._go_on(child.name, *works)

    def _go_on(self, name: str, *works: Coroutine[Any, Any, None]) -> None:
        self._watching[name] = [asyncio.ensure_future(work) for work in works]

    async def _unwatch(self, *names: str) -> None:
        """End the tasks that restart and probe these processes. A start that is under way is undone."""
        tasks = [task for name in names for task in self._watching.pop(name, ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self, child: Child) -> None:
        """End a service that is no longer alive, so that it is restarted."""
        watchdog = Watchdog(child, self._clock, self._say)
        while True:
            await self._clock.sleep(PERIOD_S)
            await watchdog.look()

    async def _keep(self, child: Child) -> None:
        """Restart a child whenever it ends, with a growing pause."""
        pause_s = RESTART_S
        while True:
            code = await child.ended()
            self._say(f"{child.name} ended ({_how(code)}); restarting it")
            await self._clock.sleep(pause_s)
            pause_s = min(RESTARTS_MAX_S, pause_s * 2)
            await child.start()
            self._write_state()

    async def _keep_valkey(self, valkey: ValkeyProcess) -> None:
        """Restart Valkey whenever it ends by itself, with a growing pause. It starts empty, unless `keep` is set."""
        pause_s = RESTART_S
        while True:
            await self._clock.sleep(VALKEY_LOOK_S)
            code = valkey.fell_with
            if code is None:
                continue
            self._say(f"redis ended ({_how(code)}); restarting it")
            await self._clock.sleep(pause_s)
            pause_s = min(RESTARTS_MAX_S, pause_s * 2)
            if valkey.fell_with is None:
                continue
            try:
                await valkey.start()
            except UnavailableError as error:
                self._say(
                    f"redis: {error}; the services continue without it. Restart everything with `slipway down` and "
                    "`slipway up`"
                )
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
    """Return a free port below the range for outgoing connections, which could use it before its service listens."""
    for _ in range(1_000):
        port = PORTS_FIRST + secrets.randbelow(PORTS_END - PORTS_FIRST)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOCALHOST, port))
            return port
    raise UnavailableError(f"no free port between {PORTS_FIRST} and {PORTS_END}: stop a process that listens there")


def _port(wanted: int) -> int:
    """Return `wanted`, or a free port when `wanted` is 0, or the default port and in use.

    Raises:
        UnavailableError: another requested port is in use.
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
