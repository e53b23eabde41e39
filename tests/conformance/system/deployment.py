"""The chart installed on a real API server, and its Deployments run as processes of this machine.

Owns only what differs from a pod: where the processes listen, and a kubeconfig that names the account's token where a
pod would have it mounted. Command, environment and account are those of the installed objects.

Promises: after `stop` no process of ours runs.
"""

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.conformance.system.accounts import Credentials
from tests.conformance.system.operator import Operator
from tests.conformance.system.permissions import Account
from tests.conformance.system.process import ServiceProcess
from tests.support import chart
from tests.support.cli import CommandResult
from tests.support.ports import free_ports

Json = dict[str, Any]
PROJECT = Path(__file__).parents[3] / "pyproject.toml"
SETUP_S = 60.0
ONCE_S = 60.0
_KINDS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Secret": "/api/v1/namespaces/{}/secrets",
}


class Installation:
    """One release. `processes` by name: `api`, and `api-1` for a second one."""

    def __init__(self, operator: Operator, folder: Path, values: Mapping[str, Any]) -> None:
        self.operator = operator
        self.folder = folder
        self.values = dict(values)
        self.namespace = chart.NAMESPACE
        self.processes: dict[str, ServiceProcess] = {}
        self.addresses: dict[str, str] = {}
        self.doors: dict[str, str] = {}
        """{process of the api: the address on which it listens for tasks}"""
        self._credentials: dict[str, Credentials] = {}
        self._documents: list[Json] = []

    def install(self) -> None:
        """Install the chart and run its setup to the end, which must succeed."""
        chart.install(self.operator.cluster.kubeconfig, self.namespace, self.values)
        self.read()
        done = self.run(chart.SETUP, timeout_s=SETUP_S)
        assert done.code == 0, done.err + done.out

    def read(self) -> None:
        """Read the installed objects, from which processes are started from now on."""
        self._documents = [
            {"kind": kind, **item}
            for kind, path in _KINDS.items()
            for item in self.operator.items(path.format(self.namespace))
        ]

    def start(self) -> None:
        """Start one process of each service and wait until all can do their work."""
        self.resume(*chart.SERVICES)

    def stop(self) -> None:
        """End every process, all at once."""
        self.halt(*self.processes)

    @property
    def url(self) -> str:
        """The URL of the API."""
        return f"http://{self.addresses['api']}"

    # --- processes --------------------------------------------------------------------------------------------------

    def halt(self, *names: str) -> None:
        """End processes in order and leave them ended."""
        running = [self.processes[name] for name in names]
        with ThreadPoolExecutor() as pool:
            list(pool.map(ServiceProcess.end, running))

    def resume(
        self, *names: str, without: tuple[str, ...] = (), more: Mapping[str, str] | None = None, wait: bool = True
    ) -> None:
        """Start processes that do not run, with the environment minus `without` plus `more`; wait until they are
        ready."""
        for name in names:
            self._spawn(name, without, more or {})
        for name in names if wait else ():
            self.processes[name].await_ready()

    def kill(self, name: str) -> None:
        """Kill the process and start it again as a kubelet would; do not wait until it is ready."""
        process = self.processes[name]
        process.end(signal.SIGKILL)
        process.start()

    def await_ready(self) -> None:
        """Wait until every process is ready, except those that a test has ended.

        A process that ended by itself is started again as a kubelet would, and still fails the test."""
        crashed = [process for process in self.processes.values() if process.has_crashed]
        ends = [process.how_it_ended() for process in crashed]
        for process in crashed:
            process.start()
        for process in self.processes.values():
            if process.is_running:
                process.await_ready()
        assert not ends, "\n".join(ends)

    def run(
        self, component: str, *words: str, more: Mapping[str, str] | None = None, timeout_s: float = ONCE_S
    ) -> CommandResult:
        """Run the container of a component to its end: the setup, or a service with `--once`."""
        env = {**self.environment(component, "127.0.0.1:0", "127.0.0.1:0"), **(more or {})}
        argv = [*self.command(component), *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    # --- environments, commands and accounts ------------------------------------------------------------------------

    def rendered(self, component: str) -> dict[str, str]:
        """The environment of the component's container, as it is installed."""
        return chart.service_environment(self._documents, component, namespace=self.namespace)

    def command(self, component: str) -> list[str]:
        """The component's command: a program that the distribution declares, run from this tree."""
        program, *words = chart.service_command(self._documents, component)
        module, _, called = _programs()[program].partition(":")
        assert called == "main"
        return [sys.executable, "-m", module, *words]

    def environment(self, component: str, listen: str, health: str) -> dict[str, str]:
        """The whole environment of the component's process: the installed one, and what differs on this machine."""
        here = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        env = {**here, "HOME": str(self.folder), **self.rendered(component)}
        places = {"SLIPWAY_LISTEN": listen, "SLIPWAY_HEALTH_LISTEN": health, "SLIPWAY_TASK_LISTEN": "127.0.0.1:0"}
        for name, address in places.items():
            if name in env:
                env[name] = address
        for inside, place in chart.service_mounts(self._documents, component, self.folder / "mounts").items():
            env = {name: str(place) if value == inside else value for name, value in env.items()}
        return env | {"KUBECONFIG": str(self.credentials(component).kubeconfig)}

    def account(self, component: str) -> Account:
        """The service account of a component."""
        name = chart.service_account(self._documents, component)
        return Account(namespace=self.namespace, name=name)

    def accounts(self) -> list[Account]:
        """The service accounts of all components."""
        return [self.account(component) for component in (*chart.SERVICES, chart.SETUP, chart.AUDIT)]

    def credentials(self, component: str) -> Credentials:
        """The token and the kubeconfig of a component; made at the first call."""
        if component not in self._credentials:
            self._credentials[component] = Credentials(self.operator, self.account(component), self.folder)
        return self._credentials[component]

    def _spawn(self, name: str, without: tuple[str, ...], more: Mapping[str, str]) -> None:
        component = name.partition("-")[0]
        first, second, third = free_ports(3)
        known = self.addresses.get(name)
        listen = known or f"127.0.0.1:{first}"
        self.addresses[name] = listen
        health = f"127.0.0.1:{second}"
        env = self.environment(component, listen, health)
        if "SLIPWAY_TASK_LISTEN" in env:
            self.doors.setdefault(name, f"127.0.0.1:{third}")
            env["SLIPWAY_TASK_LISTEN"] = self.doors[name]
        probed = health if "SLIPWAY_HEALTH_LISTEN" in env else listen
        env = {key: value for key, value in env.items() if key not in without} | dict(more)
        log = self.folder / f"{name}.log"
        self.processes[name] = ServiceProcess(name, self.command(component), env, probed, log)
        self.processes[name].start()


def _programs() -> dict[str, str]:
    """{console script: its entry point}"""
    scripts: dict[str, str] = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["scripts"]
    return scripts
