"""The real kube-scheduler as an oracle: it places one pod at a time, and its own log shows its choice and its scores.

Owns the control plane and the order of creates: nodes and namespaces exist before the scheduler starts, and a pod is
created only when the one before is bound or gone. So the scheduler's cache equals the objects of the API server.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import msgspec
import yaml

from tests.conformance.cluster.servers import ClusterOptions, RealCluster, running_cluster
from tests.conformance.scheduling.worlds import EXTENDED, NAMESPACES, Json
from tests.support.wait import wait_until

_SCORE = re.compile(
    r'"Plugin scored node for pod" pod="(?P<pod>[^"]+)" plugin="(?P<plugin>[^"]+)" node="(?P<node>[^"]+)" '
    r"score=(?P<score>-?\d+)"
)
# Without these plugins the test needs no kubelet and no accounts: a node is as we write it, a pod needs no token.
_NO_ADMISSION = "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,DefaultTolerationSeconds"
DEFAULT = "default-scheduler"
PACKING, CURVE = "packing", "curve"
_COUNTED = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 2}, {"name": EXTENDED, "weight": 3}]
PROFILES: dict[str, Json] = {
    DEFAULT: {},
    PACKING: {
        "NodeResourcesFit": {"scoringStrategy": {"type": "MostAllocated", "resources": _COUNTED}},
        "NodeResourcesBalancedAllocation": {
            "resources": [{"name": "cpu", "weight": 1}, {"name": EXTENDED, "weight": 1}]
        },
        "InterPodAffinity": {"hardPodAffinityWeight": 7},
    },
    CURVE: {
        "NodeResourcesFit": {
            "scoringStrategy": {
                "type": "RequestedToCapacityRatio",
                "resources": _COUNTED,
                "requestedToCapacityRatio": {
                    "shape": [
                        {"utilization": 10, "score": 3},
                        {"utilization": 45, "score": 10},
                        {"utilization": 100, "score": 0},
                    ]
                },
            }
        },
    },
}
"""{schedulerName: args of its plugins}, as in the configuration of kube-scheduler"""
Scores = dict[str, dict[str, int]]
"""{plugin: {node: weighted score}}"""


class Verdict(msgspec.Struct, frozen=True):
    """The decision about one pod. `node` is empty when no node fits; `scores` are empty when only one node fits."""

    node: str
    pod: Json
    """as the API server has it"""
    scores: Scores


class SchedulerOracle:
    """One control plane."""

    def __init__(self, cluster: RealCluster, client: httpx2.Client) -> None:
        self._cluster = cluster
        self._client = client
        self._read_to = 0

    def begin(self, nodes: list[Json]) -> list[Json]:
        """Make an empty cluster of `nodes`, with a scheduler that has seen all of them; return the nodes as stored."""
        self._cluster.stop_part("scheduler")
        for namespace in NAMESPACES:
            self._client.delete(f"/api/v1/namespaces/{namespace}/pods", params={"gracePeriodSeconds": 0})
        self._client.delete("/api/v1/nodes")
        made = [self._post("/api/v1/nodes", node) for node in nodes]
        self._cluster.start_part("scheduler")
        return made

    def ensure_namespaces(self) -> None:
        """Create the namespaces, with their labels."""
        for name, labels in NAMESPACES.items():
            self._post("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": name, "labels": labels}})

    def create(self, pod: Json) -> Json:
        """Create a pod and return it as stored then, without waiting."""
        return self._post(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    def judge(self, pod: Json) -> Verdict:
        """Return the decision about a created pod; delete the pod when no node fits."""
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        wait_until(lambda: _is_decided(self._get(path)), f"a decision on {path}", timeout_s=60.0)
        decided = self._get(path)
        node = str(decided["spec"].get("nodeName") or "")
        if not node:
            self._client.delete(path, params={"gracePeriodSeconds": 0}).raise_for_status()
        return Verdict(node, decided, self._scores(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"))

    def _scores(self, pod: str) -> Scores:
        found: Scores = {}
        with (self._cluster.folder / "scheduler.log").open(encoding="utf-8", errors="replace") as log:
            log.seek(self._read_to)
            lines = log.readlines()
            self._read_to = log.tell()
        for line in lines:
            match = _SCORE.search(line)
            if match and match["pod"] == pod:
                found.setdefault(match["plugin"], {})[match["node"]] = int(match["score"])
        return found

    def _get(self, path: str) -> Json:
        return self._client.get(path).raise_for_status().json()

    def _post(self, path: str, body: Json) -> Json:
        answer = self._client.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()


def _is_decided(pod: Json) -> bool:
    conditions: list[Json] = pod.get("status", {}).get("conditions") or []
    refused = any(item["type"] == "PodScheduled" and item["status"] == "False" for item in conditions)
    return bool(pod["spec"].get("nodeName")) or refused


def _options(folder: Path, extenders: Sequence[Json]) -> ClusterOptions:
    profiles = [
        {"schedulerName": name, "pluginConfig": [{"name": plugin, "args": given} for plugin, given in args.items()]}
        for name, args in PROFILES.items()
    ]
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(folder / "scheduler.kubeconfig"), "qps": 500, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "profiles": profiles,
        "extenders": list(extenders),
    }
    path = folder / "scheduler-configuration.yaml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    scheduler = [f"--config={path}", "--vmodule=schedule_one=10"]
    return ClusterOptions(
        controller_manager=False, audit=False, more={"apiserver": [_NO_ADMISSION], "scheduler": scheduler}
    )


@contextmanager
def an_oracle(folder: Path, extenders: Sequence[Json] = ()) -> Generator[SchedulerOracle]:
    """A control plane in `folder`; its scheduler calls `extenders`."""
    with running_cluster(folder, _options(folder, extenders)) as cluster, cluster.client() as client:
        oracle = SchedulerOracle(cluster, client)
        oracle.ensure_namespaces()
        yield oracle
