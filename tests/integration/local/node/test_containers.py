"""The surroundings of a container on a local node: files, environment, peers, other containers."""

import json
import sys
from typing import Any

import pytest

from slipway.crd.roleresources import objects_of
from slipway.local.apiserver.accounts import ServiceAccountTokens
from tests.support.clock import wait_until
from tests.support.local_node import NodeWorld

FILES: dict[str, Any] = {
    "volumes": [
        {"name": "files", "configMap": {"name": "code", "items": [
            {"key": "train.py", "path": "train.py", "mode": 0o644},
            {"key": "01__conf.json", "path": "conf/a.json", "mode": 0o600},
        ]}},
        {"name": "work", "emptyDir": {}},
    ],
}  # fmt: skip
MOUNTS: dict[str, Any] = {
    "workingDir": "/run/slipway/work",
    "volumeMounts": [
        {"name": "work", "mountPath": "/run/slipway/work"},
        {"name": "files", "mountPath": "/run/slipway/files", "readOnly": True},
        {"name": "files", "mountPath": "/run/slipway/work/train.py", "subPath": "train.py"},
        {"name": "files", "mountPath": "/run/slipway/work/conf/a.json", "subPath": "conf/a.json"},
    ],
}
CALL = """
import os, socket, time
while True:
    try:
        peer = socket.create_connection((os.environ["MASTER_ADDR"], 29500), 5)
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
print(peer.recv(9).decode(), os.environ["OTHER"])
"""
ANSWER = """
import os, socket
server = socket.create_server((os.environ["IP"], 29500))
server.accept()[0].sendall(b"hello")
"""


async def printed(world: NodeWorld, script: str, **more: Any) -> Any:
    """Run a Python script in a pod, and return what it prints as JSON."""
    pod = await world.run("a", ["python", "-c", script], **more)
    text = await world.log("a")
    assert pod.phase == "Succeeded", text
    return json.loads(text)


async def test_files_are_beside_the_program_and_at_their_mount_path(world: NodeWorld):
    """Relative paths work, and so do absolute mount paths in arguments and in the environment."""
    await world.config("code", {"train.py": "print(open('conf/a.json').read())", "01__conf.json": '{"lr": 1}'})
    await world.run("rel", ["python", "train.py"], spec=FILES, **MOUNTS)
    assert await world.log("rel") == '{"lr": 1}\n'
    await world.run("arg", ["sh", "-c", "cat /run/slipway/files/conf/a.json"], spec=FILES, **MOUNTS)
    assert await world.log("arg") == '{"lr": 1}'
    env = [{"name": "WHERE", "value": "/run/slipway/files"}]
    await world.run("env", ["sh", "-c", 'cat "$WHERE/conf/a.json"'], spec=FILES, env=env, **MOUNTS)
    assert await world.log("env") == '{"lr": 1}'


async def test_a_pod_waits_for_its_config_map(world: NodeWorld):
    """A pod waits for a missing volume; an Event names what is missing, as a kubelet's does."""
    await world.start("a", ["python", "train.py"], spec=FILES, **MOUNTS)
    await wait_until(lambda: world.core.list("events").items, "an Event")
    assert 'configmap "code" not found' in str(world.core.list("events").items[0])
    await wait_until(lambda: "containerStatuses" in world.pod("a").status, "a status")
    assert world.state("a")["waiting"] == {"reason": "ContainerCreating"}
    await world.config("code", {"train.py": "print('now')", "01__conf.json": "{}"})
    assert (await world.ended("a")).phase == "Succeeded"


async def test_the_environment_is_the_pods_own(world: NodeWorld, monkeypatch: pytest.MonkeyPatch):
    """The environment has nothing of the node's own but PATH; HOME and TMPDIR are below the pod's folder; `python`
    is ours."""
    monkeypatch.setenv("SLIPWAY_SECRET", "x")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    env = await printed(world, "import os, json; print(json.dumps(dict(os.environ)))")
    uid = world.pod("a").metadata.uid
    assert {name for name in env if name.startswith(("SLIPWAY", "KUBE"))} == set()
    assert uid in env["HOME"]
    assert uid in env["TMPDIR"]
    assert env["HOSTNAME"] == "a"


async def test_values_are_expanded_and_looked_up(world: NodeWorld):
    """fieldRef, configMapKeyRef, envFrom and $(NAME) work as with a kubelet."""
    await world.config("settings", {"COLOUR": "blue", "size": "3"})
    env: list[dict[str, Any]] = [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
        {"name": "SIZE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "size"}}},
        {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "no", "optional": True}}},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "URL", "value": "http://$(IP):80/$(MISSING)/$$(IP)"},
    ]
    env_from = [{"prefix": "P_", "configMapRef": {"name": "settings"}}]
    script = "import os, sys, json; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    more: dict[str, Any] = {
        "env": env,
        "envFrom": env_from,
        "args": ["$(SIZE)", "$(NO)"],
        "metadata": {"labels": {"team": "red"}},
    }
    found, args = await printed(world, script, **more)
    ip = world.pod("a").status["podIP"]
    assert found["URL"] == f"http://{ip}:80/$(MISSING)/$(IP)"
    assert (found["NODE"], found["TEAM"], found["SIZE"], found["P_COLOUR"]) == ("node-0", "red", "3", "blue")
    assert found["CPUS"] == "4"
    assert "NONE" not in found
    assert args == ["3", "$(NO)"]


async def test_a_missing_key_keeps_the_container_from_starting(world: NodeWorld):
    """The container waits with CreateContainerConfigError, which names the key, as with a kubelet."""
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "key"}}}]
    await world.start("a", ["true"], env=env)
    await wait_until(lambda: "containerStatuses" in world.pod("a").status, "a status")
    assert world.state("a")["waiting"]["reason"] == "CreateContainerConfigError"
    assert 'configmap "no" not found' in world.state("a")["waiting"]["message"]


async def test_ranks_find_each_other_by_name(world: NodeWorld):
    """A name below the pod's subdomain resolves to the peer's address, also when the peer is created later."""
    env = [{"name": "MASTER_ADDR", "value": "rank-0.gang.default.svc"}, {"name": "OTHER", "value": "pypi.example.org"}]
    spec = {"subdomain": "gang"}
    await world.start("rank-1", ["python", "-c", CALL], env=env, spec=spec, node="node-1")
    await wait_until(lambda: "containerStatuses" in world.pod("rank-1").status, "rank 1 waiting")
    assert "rank-0.gang.default.svc" in world.state("rank-1")["waiting"]["message"]
    own = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    await world.start("rank-0", ["python", "-c", ANSWER], env=own, spec=spec)
    await world.ended("rank-1")
    assert await world.log("rank-1") == "hello pypi.example.org\n"
    assert world.pod("rank-0").status["podIP"] != world.pod("rank-1").status["podIP"]


async def test_init_containers_run_first_and_in_order(world: NodeWorld):
    """They share volumes with the other containers; the pod is Pending until they have ended."""
    mount = [{"name": "shared", "mountPath": "/data"}]
    init = [
        {"name": f"init-{n}", "image": "x", "command": ["sh", "-c", f"echo {n} >>/data/order"], "volumeMounts": mount}
        for n in (1, 2)
    ]
    spec: dict[str, Any] = {"initContainers": init, "volumes": [{"name": "shared", "emptyDir": {}}]}
    pod = await world.run("a", ["cat", "/data/order"], spec=spec, volumeMounts=mount)
    assert await world.log("a") == "1\n2\n"
    states = [status["state"]["terminated"]["exitCode"] for status in objects_of(pod.status["initContainerStatuses"])]
    assert states == [0, 0]


async def test_a_failed_init_container_fails_the_pod(world: NodeWorld):
    """No other container is started."""
    init = [{"name": "init", "image": "x", "command": ["sh", "-c", "exit 4"]}]
    pod = await world.run("a", ["true"], spec={"initContainers": init})
    assert pod.phase == "Failed"
    assert world.state("a") == {"waiting": {"reason": "PodInitializing"}}


async def test_sidecars_run_beside_and_end_with_the_pod(world: NodeWorld):
    """A sidecar blocks neither the main container nor the end of the pod."""
    sidecar = {"name": "side", "image": "x", "command": ["sleep", "60"], "restartPolicy": "Always"}
    pod = await world.run("a", ["true"], spec={"initContainers": [sidecar]})
    assert pod.phase == "Succeeded"
    assert "terminated" in objects_of(pod.status["initContainerStatuses"])[0]["state"]


async def test_one_of_several_containers_fails(world: NodeWorld):
    """The pod runs until the last container has ended, and then has failed."""
    containers = [
        {"name": "main", "image": "x", "command": ["sh", "-c", "exit 2"]},
        {"name": "other", "image": "x", "command": ["sleep", "0.2"]},
    ]
    pod = await world.run("a", spec={"containers": containers})
    assert pod.phase == "Failed"
    assert [world.state("a", index)["terminated"]["exitCode"] for index in (0, 1)] == [2, 0]


async def test_a_policy_restarts(world: NodeWorld):
    """With OnFailure the container restarts until it succeeds; restarts are counted, and the last end is shown."""
    script = "test -e $HOME/been || { touch $HOME/been; exit 9; }"
    pod = await world.run("a", ["sh", "-c", script], spec={"restartPolicy": "OnFailure"})
    status = objects_of(pod.status["containerStatuses"])[0]
    assert pod.phase == "Succeeded"
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 9


async def test_the_last_words_of_a_failure_are_its_message(world: NodeWorld):
    """The last log lines of a failure are its message if the pod requests it; a success has no message."""
    policy: dict[str, Any] = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    await world.run("bad", ["sh", "-c", "echo no disk; exit 1"], **policy)
    await world.run("good", ["echo", "fine"], **policy)
    assert world.state("bad")["terminated"]["message"] == "no disk\n"
    assert "message" not in world.state("good")["terminated"]


@pytest.mark.parametrize("probe", [{"tcpSocket": {"port": "web"}}, {"httpGet": {"port": 8000, "path": "/x"}}])
async def test_a_pod_is_ready_when_its_probe_says_so(world: NodeWorld, probe: dict[str, Any]):
    """The pod is running, but not ready, until its server answers."""
    server = (
        "import os, sys, http.server as h; sys.stdin = open(os.environ['HOME'] + '/go', 'w+');\n"
        "class R(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n        self.send_response(200); self.end_headers()\n"
        "h.HTTPServer((os.environ['IP'], 8000), R).serve_forever()"
    )
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    more: dict[str, Any] = {
        "env": env,
        "ports": [{"name": "web", "containerPort": 8000}],
        "readinessProbe": {**probe, "periodSeconds": 1},
    }
    await world.start("a", ["python", "-c", server], **more)
    await world.running("a")

    def is_ready() -> bool:
        return bool(objects_of(world.pod("a").status["containerStatuses"])[0]["ready"])

    assert not is_ready()
    await wait_until(is_ready, "the pod ready")


async def test_the_account_token_of_a_pod(world: NodeWorld) -> None:
    """It is projected into each container that mounts it, is bound to the pod, and is readable for its user only."""
    world.core.settle()
    token = {"audience": "slipway", "expirationSeconds": 3600, "path": "token"}
    volume = {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}}
    show = "import os,sys; f = os.environ['TOKEN_FILE']; print(oct(os.stat(f).st_mode)[-3:], open(f).read())"
    await world.run(
        "holder",
        [sys.executable, "-c", show],
        env=[{"name": "TOKEN_FILE", "value": "/run/slipway/token/token"}],
        volumeMounts=[{"name": "token", "mountPath": "/run/slipway/token", "readOnly": True}],
        spec={"volumes": [volume]},
    )
    mode, said = (await world.log("holder")).split()
    assert mode == "600"
    user, audiences = ServiceAccountTokens(world.core, b"the key of this cluster").read(said, ["slipway"])
    assert audiences == ["slipway"]
    assert user.extra["authentication.kubernetes.io/pod-name"] == ["holder"]
