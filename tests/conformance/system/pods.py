"""The chart's own pods as processes of this machine: its Deployments and Jobs run by the cluster's controllers.

Replaces an image and a pod's network: its commands find the API server by the account's mounted token, and listen on
the pod's own address. The controllers of Kubernetes, kube-scheduler, and nodes that run each command as a process
decide which pods exist, when they are replaced, and when they are ready.
"""

import shlex
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.conformance.cluster.servers import RealCluster
from tests.conformance.kubelets.processes import running_process_nodes
from tests.conformance.system.operator import Json, Operator
from tests.support import chart
from tests.support.dockerfile import Image
from tests.support.enter_container import LISTENS, ImageAndServer
from tests.support.wait import wait_until

NODES = 2
ROLLED_S = 120.0
ADDRESS = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
"""additional environment of the services, because pods here share one network"""
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{chart.NAMESPACE}/deployments"
PODS = f"/api/v1/namespaces/{chart.NAMESPACE}/pods"
_COMMAND = """#!/bin/sh
set -eu
for token in "${{HOME%/home}}"/volumes/kube-api-access-*; do
  cat > "$HOME/kubeconfig" <<END
apiVersion: v1
kind: Config
current-context: pod
contexts: [{{name: pod, context: {{cluster: pod, user: pod, namespace: {namespace}}}}}]
clusters: [{{name: pod, cluster: {{server: "{url}", certificate-authority: "$token/ca.crt"}}}}]
users: [{{name: pod, user: {{tokenFile: "$token/token"}}}}]
END
  export KUBECONFIG="$HOME/kubeconfig"
done
for name in {listens}; do
  eval "said=\\${{$name-}}"
  if [ -n "$said" ] && [ -n "${{POD_IP-}}" ]; then export "$name=$POD_IP:${{said##*:}}"; fi
done
if [ -n "${{PLAYED_VERSION-}}" ]; then export PYTHONPATH="$(cat {versions}/"$PLAYED_VERSION")"; fi
exec {program} "$@"
"""


_ENTER = """#!/bin/sh
cd {tests}
export PYTHONPATH={tests}
exec {python} -m tests.support.enter_container {where} {name} "$@"
"""


@contextmanager
def running_pods_of(image: Image, cluster: RealCluster, folder: Path) -> Generator[None]:
    """Run nodes whose containers find the commands of the image, in a container of the image, with the account's own
    token."""
    host, _, port = cluster.url.removeprefix("https://").partition(":")
    about = ImageAndServer(root=str(image.root), env=dict(image.env), user=image.user, host=host, port=port)
    where = folder / "where.json"
    where.parent.mkdir(parents=True)
    where.write_bytes(msgspec.json.encode(about))
    told = {"tests": chart.ROOT, "python": sys.executable, "where": where}
    words = {name: shlex.quote(str(value)) for name, value in told.items()}
    python = _beside(folder / "image", lambda name: _ENTER.format(name=name, **words))
    with running_process_nodes(cluster, folder / "state", nodes=NODES, cpus=16, python=str(python)):
        yield


@contextmanager
def running_pods(cluster: RealCluster, folder: Path, versions: Mapping[str, str]) -> Generator[None]:
    """Run nodes whose containers find our commands; everything else is as on this machine.

    `versions` are {name: PYTHONPATH}. `with_version` selects the version that a service runs, as the tag of an image
    would.
    """
    python = _commands(cluster, folder / "image", versions)
    with running_process_nodes(cluster, folder / "state", nodes=NODES, cpus=16, python=str(python)):
        yield


def _commands(cluster: RealCluster, folder: Path, versions: Mapping[str, str]) -> Path:
    """Make a folder that replaces the image, and return its Python."""
    folder.mkdir(parents=True)
    for name, path in versions.items():
        (folder / name).write_text(path, encoding="utf-8")

    def command(name: str) -> str:
        return _COMMAND.format(
            namespace=chart.NAMESPACE,
            url=cluster.url,
            listens=" ".join(LISTENS),
            versions=shlex.quote(str(folder)),
            program=shlex.quote(str(Path(sys.executable).parent / name)),
        )

    return _beside(folder, command)


def _beside(folder: Path, command: Callable[[str], str]) -> Path:
    """A link to this Python, which finds the same packages, with our commands beside it."""
    own, place = Path(sys.executable).parent, folder / "bin"
    place.mkdir(parents=True)
    (folder / "lib").symlink_to(own.parent / "lib")
    (folder / "pyvenv.cfg").write_bytes((own.parent / "pyvenv.cfg").read_bytes())
    (place / "python").symlink_to((own / "python").resolve())
    scripts = tomllib.loads((chart.ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    for name in (*scripts, "python3"):
        (place / name).write_text(command(name), encoding="utf-8")
        (place / name).chmod(0o755)
    return place / "python"


def with_version(values: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The values, plus the environment that services need here."""
    extra = [*ADDRESS, {"name": "PLAYED_VERSION", "value": version}]
    services: dict[str, Any] = {name: {**values.get(name, {}), "extraEnv": extra} for name in chart.SERVICES}
    return {**values, **services}


def await_rolled_out(operator: Operator) -> None:
    """Wait until every pod of every Deployment has the newest version and is ready, and no older pod is left."""

    def lagging() -> list[str]:
        return [item["metadata"]["name"] for item in operator.items(DEPLOYMENTS) if not _is_rolled_out(item)]

    try:
        wait_until(lambda: not lagging(), "every Deployment is rolled out", timeout_s=ROLLED_S)
    except AssertionError as error:
        pods = [(pod["metadata"]["name"], pod["status"]) for pod in operator.items(PODS)]
        raise AssertionError(f"{error}: {lagging()}; {pods}") from None


def _is_rolled_out(item: Json) -> bool:
    wanted, status = item["spec"]["replicas"], item.get("status", {})
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    return status.get("observedGeneration", 0) >= item["metadata"]["generation"] and counts == [wanted] * 3


def addresses(operator: Operator, component: str) -> list[str]:
    """The addresses of the component's ready pods."""
    found: list[str] = []
    for pod in operator.items(PODS, f"app.kubernetes.io/component={component}"):
        ready = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}.get("Ready")
        if ready == "True" and "deletionTimestamp" not in pod["metadata"]:
            found.append(pod["status"]["podIP"])
    return found
