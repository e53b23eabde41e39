"""Kubernetes Events about pods, in a kubelet's words.

Owns the words and a bounded queue. Mass runs should not use an announcer: each start costs four more writes.

Source: pkg/kubelet/events, pkg/kubelet/images/image_manager.go, pkg/kubelet/kuberuntime (words, v1.36).
"""

import asyncio

import msgspec

from slipway.model.times import format_time
from tests.conformance.kubelets.connections import Connections, LostConnectionError, RefusedError
from tests.conformance.kubelets.objects import Container, Json, Pod
from tests.conformance.kubelets.states import Note, NoteKind

QUEUE_MAX = 10_000
Word = tuple[str, str, str]
"""Type, reason, message."""


class EventRecorder:
    """`note` queues an event, `run` writes events until it is cancelled; events that do not fit into the queue are
    lost."""

    def __init__(self, wire: Connections) -> None:
        self.sent = 0
        self._wire = wire
        self._queue: asyncio.Queue[Json] = asyncio.Queue(QUEUE_MAX)
        self._number = 0

    def note(self, pod: Pod, note: Note) -> None:
        """Queue an event about a container, or about the pod."""
        for word in words_of(pod, note):
            if not self._queue.full():
                self._number += 1
                self._queue.put_nowait(event_of(pod, note, word, self._number))

    async def run(self) -> None:
        """Write one event after the other."""
        while True:
            event = await self._queue.get()
            target = f"/api/v1/namespaces/{event['metadata']['namespace']}/events"
            try:
                await self._wire.call("POST", target, msgspec.json.encode(event))
                self.sent += 1
            except (RefusedError, LostConnectionError):
                # As with a kubelet: events are lost while a namespace is being deleted or the API server is away.
                continue


def words_of(pod: Pod, note: Note) -> list[Word]:
    """The words in which a kubelet reports it."""
    image = next((item.image for item in _containers(pod) if item.name == note.container), "")
    meta = pod.metadata
    match note.what:
        case NoteKind.PULLING:
            return [("Normal", "Pulling", f'Pulling image "{image}"')]
        case NoteKind.PULLED:
            took = "in 40ms (40ms including waiting). Image size: 2222222 bytes."
            return [("Normal", "Pulled", f'Successfully pulled image "{image}" {took}')]
        case NoteKind.STARTED:
            return [("Normal", "Created", "Container created"), ("Normal", "Started", "Container started")]
        case NoteKind.PULL_FAILED:
            failed = ("Warning", "Failed", f'Failed to pull image "{image}": {note.text}')
            return [failed, ("Warning", "Failed", "Error: ErrImagePull")]
        case NoteKind.PULL_BACKOFF:
            backoff = ("Normal", "BackOff", f'Back-off pulling image "{image}"')
            return [backoff, ("Warning", "Failed", "Error: ImagePullBackOff")]
        case NoteKind.CRASH_BACKOFF:
            words = f"container {note.container} in pod {meta.name}_{meta.namespace}({meta.uid})"
            return [("Warning", "BackOff", f"Back-off restarting failed {words}")]
        case NoteKind.KILLING:
            return [("Normal", "Killing", note.text)]
        case NoteKind.MOUNT_FAILED:
            words = 'MountVolume.SetUp failed for volume "scripted" : configmap "scripted" not found'
            return [("Warning", "FailedMount", words)]
        case NoteKind.EVICTED:
            return [("Warning", "Evicted", note.text)]
        case NoteKind.REJECTED:
            reason, _, message = note.text.partition(": ")
            return [("Warning", reason, message)]
        case NoteKind.ENDED:
            return []


def event_of(pod: Pod, note: Note, word: Word, number: int) -> Json:
    """Build the Event."""
    type_, reason, message = word
    meta, node, stamp = pod.metadata, pod.spec.node_name, format_time(note.at, "seconds")
    about = {
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
    }
    if note.container:
        field = "initContainers" if note.container in {item.name for item in pod.spec.init_containers} else "containers"
        about["fieldPath"] = f"spec.{field}{{{note.container}}}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{meta.name[:200]}.{round(note.at * 1e6):x}{number & 0xFFFF:04x}",
            "namespace": meta.namespace,
        },
        "involvedObject": about,
        "type": type_,
        "reason": reason,
        "message": message,
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": "kubelet", "host": node},
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    }


def _containers(pod: Pod) -> list[Container]:
    return [*pod.spec.init_containers, *pod.spec.containers]
