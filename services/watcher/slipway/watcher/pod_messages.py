"""Turns the Events of Kubernetes about a pod into sentences for the user who started it.

Owns the table from reasons to sentences, and when a repeated Event is reported again. Pure: an Event in, the text of a
line out. A reason that is not in the table is reported in the words of Kubernetes. Only Events that repeat the
information of another line are left out.

Source: pkg/kubelet/events/event.go, pkg/kubelet/images/image_manager.go (reasons and messages, v1.36).
"""

import re
from collections.abc import Callable

from slipway.kube.objects import KubeEvent
from slipway.model.times import printed_duration

TEXT_CHARS_MAX = 400
_QUOTED = re.compile(r'image "([^"]*)"')
_TOOK = re.compile(r" in ((?:[0-9.]+[a-z\u00b5\u03bc]+)+)")
_CONTAINER = re.compile(r"container:? \"?([a-z0-9][-a-z0-9]*)")
_FIELD = re.compile(r"\{([^}]*)\}$")
_ABOUT_A_CONTAINER = ("Started", "Killing")
_COUNT = re.compile(r" \((\d{1,9}) times\)$")
_RUNTIME_ERROR = re.compile(r"rpc error: code = \w+ desc = ")

Say = Callable[[str], str]


def text_of(event: KubeEvent) -> str:
    """Return the text of the line; empty when other lines report the same."""
    say = _SAYINGS.get(event.reason)
    message = _RUNTIME_ERROR.sub("", event.message.strip())
    named = _FIELD.search(event.involved_object.field_path)
    if named is not None and event.reason in _ABOUT_A_CONTAINER:
        message = f"container {named.group(1)}"
    text = say(message) if say is not None else f"{_words(event.reason)}: {message}" if message else event.reason
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"


def count_of(event: KubeEvent) -> int:
    """Return how many times the Event happened."""
    if event.series is not None and event.series.count:
        return event.series.count
    return max(1, event.count or 1)


def time_of(event: KubeEvent) -> str:
    """Return when the Event happened last, by its source, so that it is the same for every reader."""
    last = event.series.last_observed_time if event.series is not None else None
    return last or event.last_timestamp or event.event_time or event.metadata.creation_timestamp or ""


def is_worth_reporting(count: int, reported: int) -> bool:
    """Whether `count` repetitions are reported, after `reported` were: the first one, then each doubling."""
    return count > reported and (reported == 0 or count >= 2 * reported)


def with_count(text: str, count: int) -> str:
    """Return the text, with the count if there is more than one repetition."""
    return f"{text} ({count} times)" if count > 1 else text


def without_count(line: str) -> tuple[str, int]:
    """Split a line into (text, count)."""
    found = _COUNT.search(line)
    return (line[: found.start()], int(found.group(1))) if found else (line, 1)


def _pulled(message: str) -> str:
    image = _image(message)
    if "already present" in message:
        return f"image {image} was already on the node" if image else "the image was already on the node"
    took = _TOOK.search(message)
    seconds = printed_duration(took.group(1)) if took is not None else None
    if seconds is None:
        return f"image {image} pulled"
    shown = f"{seconds:.{0 if seconds >= 10 else 1 if seconds >= 1 else 2}f}"
    return f"image pulled in {shown.rstrip('0').rstrip('.') if '.' in shown else shown} s"


def _failed(message: str) -> str:
    """Return the text for `Failed`. A failed pull causes three such Events;
    two of them only repeat the waiting reason."""
    if message.startswith("Failed to pull image"):
        image, _, why = message.removeprefix("Failed to pull image ").partition(": ")
        return f"image {image.strip(chr(34))} could not be pulled: {why}"
    if message in ("Error: ErrImagePull", "Error: ImagePullBackOff"):
        return ""
    return f"a container could not be started: {message.removeprefix('Error: ')}"


def _back_off(message: str) -> str:
    image = _image(message)
    if image:
        return f"Waiting for image {image}: the pull failed and is retried"
    return f"Waiting to start again: {message}"


def _unhealthy(message: str) -> str:
    if message.startswith("Readiness"):
        return f"not ready yet: {message.partition(': ')[2] or message}"
    return message


def _container_text(verb: str) -> Say:
    def say(message: str) -> str:
        found = _CONTAINER.search(message)
        return f"container {found.group(1)} {verb}" if found else f"a container {verb}"

    return say


def _after(prefix: str) -> Say:
    return lambda message: f"{prefix}: {message}" if message else prefix


def _image(message: str) -> str:
    found = _QUOTED.search(message)
    return found.group(1) if found else ""


def _words(reason: str) -> str:
    """Return a reason such as `FailedToDoIt` as words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", reason).lower()


_SAYINGS: dict[str, Say] = {
    "Scheduled": lambda message: f"placed on {message.rpartition(' to ')[2]}" if " to " in message else "placed",
    "FailedScheduling": _after("Waiting for resources"),
    "Pulling": lambda message: f"Pulling image {_image(message)}",
    "Pulled": _pulled,
    "Failed": _failed,
    "BackOff": _back_off,
    "InspectFailed": _after("the name of the image is wrong"),
    "ErrImageNeverPull": _after("the image is not on the node, and may not be pulled"),
    "Created": lambda _message: "",
    "Started": _container_text("started"),
    "Killing": _container_text("is being stopped"),
    "Unhealthy": _unhealthy,
    "FailedMount": _after("Waiting for a volume"),
    "FailedAttachVolume": _after("Waiting for a volume"),
    "SuccessfulAttachVolume": lambda _message: "volume attached",
    "FailedBinding": _after("Waiting for a volume"),
    "FailedCreatePodSandBox": _after("Waiting for the node to set the pod up"),
    "FailedCreatePodContainer": _after("a container could not be created"),
    "NetworkNotReady": _after("Waiting for the node's network"),
    "Evicted": _after("evicted"),
    "EvictionByEvictionAPI": _after("evicted"),
    "TaintManagerEviction": _after("evicted from the node"),
    "Preempted": _after("evicted for another pod"),
    "Preempting": _after("evicted for another pod"),
    "ExceededGracePeriod": _after("killed: it did not end within its grace period"),
    "NodeNotReady": lambda _message: "the node does not answer",
    "NodeShutdown": _after("evicted, because the node is shut down"),
    "NodeAffinity": _after("refused by the node"),
    "OutOfcpu": _after("refused by the node"),
    "OutOfmemory": _after("refused by the node"),
    "OutOfpods": _after("refused by the node"),
    "OOMKilling": _after("out of memory"),
}
