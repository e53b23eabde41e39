"""The messages of Kubernetes about pods, as users read them."""

from typing import Any

import pytest

from slipway.crd.meta import ObjectMeta
from slipway.kube.objects import EventSeries, KubeEvent, ObjectReference
from slipway.watcher import pod_messages


def an_event(reason: str, message: str = "", **fields: Any) -> KubeEvent:
    return KubeEvent(metadata=ObjectMeta(name="e", uid="u"), reason=reason, message=message, **fields)


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        ("Scheduled", "Successfully assigned default/run-1 to node-a", "placed on node-a"),
        (
            "FailedScheduling",
            "0/3 nodes are available: 3 Insufficient cpu.",
            "Waiting for resources: 0/3 nodes are available: 3 Insufficient cpu.",
        ),
        ("Pulling", 'Pulling image "python:3.11"', "Pulling image python:3.11"),
        (
            "Pulled",
            'Successfully pulled image "python:3.11" in 3.204s (3.204s including waiting). Image size: 5 bytes.',
            "image pulled in 3.2 s",
        ),
        ("Pulled", 'Successfully pulled image "a" in 3.0s', "image pulled in 3 s"),
        ("Pulled", 'Successfully pulled image "a" in 812ms (812ms including waiting)', "image pulled in 0.81 s"),
        ("Pulled", 'Successfully pulled image "a" in 1m0s', "image pulled in 60 s"),
        ("Pulled", 'Successfully pulled image "a" in 1m23.456s (2m3s including waiting)', "image pulled in 83 s"),
        ("Pulled", 'Successfully pulled image "a" in 1h2m3.004s (1h2m4s including waiting)', "image pulled in 3723 s"),
        ("Pulled", 'Successfully pulled image "a" in 845.123µs', "image pulled in 0 s"),
        ("Pulled", 'Successfully pulled image "a" in a while', "image a pulled"),
        ("Pulled", 'Container image "a:1" already present on machine', "image a:1 was already on the node"),
        ("Created", "Created container: main", ""),
        ("Started", "Started container main", "container main started"),
        ("Started", "Container started", "a container started"),
        ("Killing", "Stopping container main", "container main is being stopped"),
        (
            "BackOff",
            'Back-off pulling image "no:such"',
            "Waiting for image no:such: the pull failed and is retried",
        ),
        (
            "Failed",
            'Failed to pull image "no:such": rpc error: code = NotFound desc = no such manifest',
            "image no:such could not be pulled: no such manifest",
        ),
        ("Failed", "Error: ErrImagePull", ""),
        ("Failed", "Error: ImagePullBackOff", ""),
        ("Failed", 'Error: secret "key" not found', 'a container could not be started: secret "key" not found'),
        ("FailedMount", 'SetUp failed for volume "d"', 'Waiting for a volume: SetUp failed for volume "d"'),
        ("Evicted", "The node was low on resource: memory.", "evicted: The node was low on resource: memory."),
        ("TaintManagerEviction", "Marking for deletion Pod a/b", "evicted from the node: Marking for deletion Pod a/b"),
        ("Preempted", "Preempted by pod 1 on node n", "evicted for another pod: Preempted by pod 1 on node n"),
        ("NodeNotReady", "Node is not ready", "the node does not answer"),
        ("OutOfcpu", "Node didn't have enough: cpu", "refused by the node: Node didn't have enough: cpu"),
        ("Unhealthy", "Readiness probe failed: dial: connection refused", "not ready yet: dial: connection refused"),
        ("SomethingNew", "it did happen", "something new: it did happen"),
        ("SomethingNew", "", "SomethingNew"),
    ],
)  # fmt: skip
def test_events_are_said_in_words(reason: str, message: str, said: str) -> None:
    """Common events get short messages; unknown ones keep the text of Kubernetes."""
    assert pod_messages.text_of(an_event(reason, message)) == said


def test_the_container_is_named_by_its_place() -> None:
    """Newer kubelets write "Container started", and the container's name in a separate field."""
    about = ObjectReference(kind="Pod", field_path="spec.initContainers{fetch-data}")
    event = an_event("Started", "Container started", involved_object=about)
    assert pod_messages.text_of(event) == "container fetch-data started"


def test_a_long_message_is_cut() -> None:
    """A long message is cut to a few lines of a screen."""
    assert len(pod_messages.text_of(an_event("FailedMount", "x" * 5000))) == pod_messages.TEXT_CHARS_MAX


@pytest.mark.parametrize(
    ("fields", "count", "time"),
    [
        ({"count": 3, "last_timestamp": "2026-01-02T03:04:05Z"}, 3, "2026-01-02T03:04:05Z"),
        ({"count": None, "event_time": "2026-01-02T03:04:05.123456Z"}, 1, "2026-01-02T03:04:05.123456Z"),
        (
            {"count": 0, "series": EventSeries(count=9, last_observed_time="2026-01-02T04:00:00.5Z")},
            9,
            "2026-01-02T04:00:00.5Z",
        ),
    ],
)
def test_both_forms_of_repeats_are_read(fields: dict[str, Any], count: int, time: str) -> None:
    """Both forms of repeats are read: `count` of older sources, `series` of newer ones."""
    event = an_event("BackOff", **fields)
    assert (pod_messages.count_of(event), pod_messages.time_of(event)) == (count, time)


def test_repeats_are_said_when_they_have_doubled() -> None:
    """Repeats are reported when their number has doubled, so that a pod that waits all night for its image does not
    fill the log."""
    said, told = 0, list[int]()
    for count in range(1, 1001):
        if pod_messages.is_worth_reporting(count, said):
            said = count
            told.append(count)
    assert told == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert not pod_messages.is_worth_reporting(3, 3)


def test_a_count_can_be_read_back() -> None:
    """The count can be read back from the message, so that a restarted watcher knows what was reported."""
    for count in (1, 2, 77):
        counted = pod_messages.with_count("Waiting for image a", count)
        assert pod_messages.without_count(counted) == ("Waiting for image a", count)
