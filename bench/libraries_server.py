"""A server that answers each GET with prepared bytes, so that a client's cost contains no work of the server.

Owns the answers: a pod, a list of 500, and 64 bytes. `python -m bench.libraries_server` prints its port, and ends when
its standard input ends.
"""

import asyncio
import sys
from typing import cast

import httptools
import msgspec
import uvloop

LISTED = 500


def a_pod(number: int) -> dict[str, object]:
    """A pod as an API server stores it: 4 kB. The services read a small part of it."""
    name = f"train-0123abcd-{number}"
    env = [{"name": f"SLIPWAY_VALUE_{place}", "value": f"value-{place}"} for place in range(20)]
    container = {
        "name": "main",
        "image": "registry.example/train@sha256:" + "0" * 64,
        "command": ["python", "-m", "train"],
        "env": env,
        "resources": {"limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-02T03:04:05Z"}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    status = {
        "name": "main",
        "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
        "ready": True,
        "restartCount": 0,
        "image": container["image"],
        "imageID": container["image"],
        "containerID": "containerd://" + "1" * 64,
        "started": True,
    }
    fields: object = {"f:metadata": {"f:labels": {".": {}, **{f"f:slipway.dev/{place}": {} for place in range(10)}}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"0123abcd-0000-0000-0000-{number:012d}",
            "resourceVersion": str(100_000 + number),
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {f"slipway.dev/{place}": f"value-{place}" for place in range(10)},
            "managedFields": [
                {
                    "manager": manager,
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": "2026-01-02T03:04:05Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": fields,
                }
                for manager in ("slipway-podworker", "kubelet")
            ],
        },
        "spec": {
            "nodeName": "node-1",
            "restartPolicy": "Never",
            "containers": [container],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "hostIP": "10.0.0.1",
            "podIP": "10.0.1.1",
            "startTime": "2026-01-02T03:04:05Z",
            "containerStatuses": [status],
        },
    }


def _answer(content: object) -> bytes:
    body = msgspec.json.encode(content)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Answers(asyncio.Protocol):
    """One connection: complete requests without bodies, answered in order."""

    small = _answer({"ok": "x" * 50})
    pod = _answer(a_pod(0))
    pods = _answer(
        {
            "apiVersion": "v1",
            "kind": "PodList",
            "metadata": {"resourceVersion": "1"},
            "items": [a_pod(number) for number in range(LISTED)],
        }
    )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url.partition(b"?")[0]

    def on_message_complete(self) -> None:
        answer = self.pods if self._url.endswith(b"/pods") else self.pod if b"/pods/" in self._url else self.small
        self._transport.write(answer)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Answers, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve())
