"""The API for programs in pods, on the port for tasks, with tokens that a real API server creates and reviews.

The simulated nodes run no programs, so the tests call the API for the ranks, with the same tokens that a kubelet would
project: bound to the pod, for the audience that the pod's volume names.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.system import System, a_body
from tests.support.plain_http import NO_TLS

TOKENS = "/api/v1/namespaces/default/serviceaccounts/default/token"


class TasksPort:
    """The api's port for tasks, as one rank calls it."""

    def __init__(self, system: System, id_: str, token: str = "") -> None:
        self._root = f"http://{system.installation.doors['api']}/api/v1/allocations/{id_}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """(status, answer)."""
        url = f"{self._root}/{path}"
        answer = httpx2.request(
            method, url, json=body, headers=self._headers, verify=NO_TLS, trust_env=False, timeout=30
        )
        return answer.status_code, answer.json()


def a_token(system: System, pod: Json | None, audience: str = "slipway") -> str:
    """The token that the kubelet requests: bound to the pod; without a pod, bound to nothing."""
    spec: Json = {"audiences": [audience], "expirationSeconds": 3600}
    if pod is not None:
        meta = pod["metadata"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
    made = system.operator.create(
        TOKENS, {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec}
    )
    return str(made["status"]["token"])


@pytest.fixture
def gang(system: System) -> tuple[str, list[Json]]:
    """(id, pods by rank) of a running gang of two."""
    id_ = system.launch(a_body("training", 2, preemptible=True))
    system.wait_for(id_, "Running")
    return id_, system.pods(id_)


def test_a_pod_has_what_it_needs_to_call(gang: tuple[str, list[Json]]) -> None:
    """Each container has the address of the port for tasks in its environment, and a token for our audience in a
    volume."""
    for pod in gang[1]:
        (container,) = pod["spec"]["containers"]
        env = {item["name"]: item.get("value") for item in container["env"]}
        assert env["SLIPWAY_API"] == "http://slipway-api.slipway-system.svc:8090"
        (mount,) = (
            mount for mount in container["volumeMounts"] if env["SLIPWAY_TOKEN_FILE"].startswith(mount["mountPath"])
        )
        (volume,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"])
        (source,) = volume["projected"]["sources"]
        assert source["serviceAccountToken"] == {"audience": "slipway", "expirationSeconds": 3600, "path": "token"}


def test_the_api_server_says_whose_a_token_is(system: System, gang: tuple[str, list[Json]]) -> None:
    """A token of a rank gives access to its own allocation and nothing else; one of another audience, of no pod, or
    a forged one gives access to nothing."""
    id_, pods = gang
    token = a_token(system, pods[1])
    assert TasksPort(system, id_, token).ask("POST", "ready")[0] == 200
    assert system.object(id_)["spec"]["signals"]["ready"] is True
    assert TasksPort(system, id_, token).ask("GET", "logs")[0] == 404
    other = system.launch(a_body())
    system.wait_for(other, "Running")
    refused: dict[str, tuple[int, Json]] = {
        "which is not a rank of": TasksPort(system, other, token).ask("POST", "ready"),
        "not for 'slipway'": TasksPort(system, id_, a_token(system, pods[0], "vault")).ask("POST", "ready"),
        "bound to no pod|and not to a pod": TasksPort(system, id_, a_token(system, None)).ask("POST", "ready"),
        "does not accept the token": TasksPort(system, id_, token[:-8] + "AAAAAAAA").ask("POST", "ready"),
        "missing bearer token": TasksPort(system, id_).ask("POST", "ready"),
    }
    for words, (status, answer) in refused.items():
        assert any(part in answer["detail"] for part in words.split("|")), answer
        assert status in (401, 403), answer
        assert token not in str(answer)


def test_a_token_ends_with_its_pod(system: System, gang: tuple[str, list[Json]]) -> None:
    """A token that was never used is refused once its pod is gone; a used one is refused at most a minute later."""
    id_, pods = gang
    fresh = a_token(system, pods[0])
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    system.nothing_left(system.object(id_)["metadata"]["uid"])
    status, answer = TasksPort(system, id_, fresh).ask("POST", "ready")
    assert (status, answer["code"]) == (401, "unauthorized"), answer


def test_ranks_exchange_data(system: System, gang: tuple[str, list[Json]]) -> None:
    """The token tells which rank calls; the ranks are ready when all of them have called."""
    id_, pods = gang
    doors = [TasksPort(system, id_, a_token(system, pod)) for pod in pods]

    def gather(rank: int) -> tuple[int, Json]:
        body: dict[str, Any] = {"requestId": uuid.uuid4().hex, "numPeers": 2, "data": {"rank": rank}}
        return doors[rank].ask("POST", "allgather", body)

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(gather, (1, 0)))
    for status, answer in answers:
        assert (status, answer["data"], answer["ranks"]) == (200, [{"rank": 0}, {"rank": 1}], [0, 1])
    system.wait_until(id_, lambda view: view["ready"], "ready")
    status, met = doors[0].ask("POST", "rendezvous?timeout_seconds=10")
    assert (status, [address["rank"] for address in met["addresses"]]) == (200, [0, 1])


def test_an_eviction_is_heard_answered_and_requeued(system: System, gang: tuple[str, list[Json]]) -> None:
    """A rank reads the scheduler's stop on the port for tasks. Acknowledged and ended with 0, the allocation is
    Preempted and runs again. The tokens of the attempt before are refused."""
    id_, pods = gang
    doors = [TasksPort(system, id_, a_token(system, pod)) for pod in pods]
    assert doors[0].ask("POST", "ready")[0] == 200
    system.wait_until(id_, lambda view: view["ready"], "ready")
    evict(system, id_)
    for rank, (tasks_port, pod) in enumerate(zip(doors, pods, strict=True)):
        status, heard = tasks_port.ask("GET", "signals/preemption?timeout_seconds=20")
        assert (status, heard["preempt"], heard["reason"], heard["requeue"]) == (200, True, "Preempted", True)
        status, acked = tasks_port.ask("POST", "signals/preemption/ack")
        assert (status, acked["acks"][str(rank)]) == (200, 1), acked
        system.wait_until(id_, lambda _view: "preempting" in system.story(id_), "told to make room")
        system.nodes.exit(pod["metadata"]["uid"], 0)
    system.wait_until(id_, lambda view: (view["attempt"], view["phase"]) == (2, "Running"), "running again")
    status, refused = doors[0].ask("POST", "ready")
    # The port may cache the attempt before for a moment; the allocation itself does not.
    assert status in (401, 403, 409), refused
    for pod in system.pods(id_):
        system.nodes.exit(pod["metadata"]["uid"], 0)
    view = system.ended(id_, "Succeeded")
    assert (2, "restarted", "Preempted") in [
        (item["attempt"], item["type"], item.get("reason")) for item in view["status"]["transitions"]
    ]


def evict(system: System, id_: str) -> None:
    """Write the stop that the scheduler writes when another allocation preempts this one."""
    path = f"{GROUP}/namespaces/default/allocations/{id_.rsplit('-', 1)[0]}"
    while True:
        found = system.operator.get(path)
        found["status"]["stop"] = {"reason": "Preempted", "at": "2026-01-02T03:04:05Z", "requeue": True, "by": "urgent"}
        try:
            system.operator.replace(f"{path}/status", found)
            return
        except httpx2.HTTPStatusError as error:
            if error.response.status_code != 409:
                raise
