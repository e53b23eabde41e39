"""The services of the image: each started as by the chart, in its own container, and a launch that runs to its end.

The cluster, its nodes and the Valkey are those of local mode, beside the containers.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from slipway.local.valkey import ServerOptions
from tests.conformance.system.process import ServiceProcess
from tests.support import chart
from tests.support.container import Container, let_in
from tests.support.dockerfile import Image
from tests.support.gangs import all_running, assert_succeeded, gang_body, let_go
from tests.support.local_stack import RunningStack, running_stack
from tests.support.ports import free_port
from tests.support.redis import running_server

CREDENTIALS = "/etc/slipway/kubernetes"
REFUSED = ("Read-only file system", "Permission denied", "Traceback")


class DeployedServices:
    """One container for each service, with a stack without services of its own."""

    def __init__(self, stack: RunningStack, image: Image, folder: Path, api: int) -> None:
        self.stack = stack
        self._folder = folder
        self._documents = chart.render({"valkey": {"enabled": False}, "externalRedis": {"url": stack.stack.redis_url}})
        self._api = api
        shared = folder / "credentials"
        shared.mkdir(parents=True)
        (shared / "kubeconfig").write_bytes(Path(stack.stack.kubeconfig).read_bytes())
        self.containers = {
            service: Container(
                image,
                folder / service,
                {CREDENTIALS: shared, **chart.service_mounts(self._documents, service, folder / "mounts")},
            )
            for service in (*chart.SERVICES, chart.SETUP)
        }
        self.processes = {service: self._process(service) for service in chart.SERVICES}

    def environment(self, component: str) -> dict[str, str]:
        """The environment of the chart, except where the service listens and where the cluster is."""
        env = chart.service_environment(self._documents, component)
        places = {"SLIPWAY_LISTEN": "127.0.0.1:0", "SLIPWAY_TASK_LISTEN": "127.0.0.1:0"}
        return {**env, **{name: place for name, place in places.items() if name in env}} | {
            "KUBECONFIG": f"{CREDENTIALS}/kubeconfig"
        }

    def _process(self, service: str) -> ServiceProcess:
        health = f"127.0.0.1:{free_port()}"
        env = self.environment(service)
        probed = "SLIPWAY_HEALTH_LISTEN" if service == "api" else "SLIPWAY_LISTEN"
        env |= {probed: health} | ({"SLIPWAY_LISTEN": f"127.0.0.1:{self._api}"} if service == "api" else {})
        argv = self.containers[service].argv(chart.service_command(self._documents, service), env)
        told = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return ServiceProcess(service, argv, told, health, self._folder / f"{service}.log")

    def setup(self) -> int:
        """Run the Job of the chart in its container, and return the exit code."""
        command = chart.service_command(self._documents, chart.SETUP)
        return self.containers[chart.SETUP].run(*command, env=self.environment(chart.SETUP)).code


@pytest.fixture
def deployed(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedServices]:
    """All four services, ready; each test has its own, because one test ends them."""
    folder = tmp_path_factory.mktemp("deployed")
    let_in(folder)
    port = free_port()
    with ExitStack() as stays:
        server = stays.enter_context(running_server("valkey", ServerOptions(port=free_port())))
        stack = stays.enter_context(running_stack(folder / "data", redis_url=server.url, port=port))
        stack.halt(*chart.SERVICES)
        found = DeployedServices(stack, image, folder / "pods", port)
        for process in found.processes.values():
            stays.callback(process.end)
            process.start()
        for process in found.processes.values():
            process.await_ready()
        yield found


def test_every_service_is_ready_and_runs_as_nobody(deployed: DeployedServices, image: Image) -> None:
    """Each service answers /readyz; none has a group, a capability or another user than the image's."""
    user, _, group = image.user.partition(":")
    for name, process in deployed.processes.items():
        assert process.is_ready(), name
        lines = Path(f"/proc/{process.pid}/status").read_text("utf-8").splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert (set(status["Uid"].split()), set(status["Gid"].split())) == ({user}, {group}), name
        assert (status["Groups"].split(), int(status["CapPrm"], 16), status["NoNewPrivs"]) == ([], 0, "1"), name


def test_a_launch_runs_to_its_end_and_nobody_writes_a_file(deployed: DeployedServices, marks: Path) -> None:
    """A gang is launched over REST, with events and logs; no service writes a file or is refused one."""
    assert deployed.setup() == 0
    stack = deployed.stack
    id_ = stack.launch(gang_body(marks))
    all_running(stack, id_)
    let_go(marks)
    assert_succeeded(stack, id_)
    story = [entry["phase"] for entry in stack.stream_of(id_)]
    assert (story[0], story[-1]) == ("Pending", "Terminated")
    for process in deployed.processes.values():
        assert process.end() == 0, process.tail()
    for name, container in deployed.containers.items():
        assert container.written() == [], name
    for name, process in deployed.processes.items():
        said = process.log.read_text("utf-8")
        assert [word for word in REFUSED if word in said] == [], f"{name}: {said[-2000:]}"
