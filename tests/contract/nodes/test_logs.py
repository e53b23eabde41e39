"""Logs of containers: queries, logs before the start, to the end, after a restart, after the pod."""

import re
from itertools import pairwise

import pytest

from tests.contract.nodes.conftest import Pods, init_of

FIVE = ("sh", "-c", "for n in 1 2 3 4 5; do echo line $n; done")
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")


async def test_all_of_it_is_shown(pods: Pods) -> None:
    """The log has both streams, and the last line without a line end as it is."""
    name = await pods.run(["sh", "-c", "echo out; sleep 0.2; echo err >&2; sleep 0.2; printf rest"])
    assert await pods.log(name) == (200, "out\nerr\nrest")


@pytest.mark.parametrize(
    ("tail", "shown"), [(0, ""), (2, "line 4\nline 5\n"), (9, "line 1\nline 2\nline 3\nline 4\nline 5\n")]
)
async def test_the_last_lines(pods: Pods, tail: int, shown: str) -> None:
    """A tail returns that many lines, or all if there are fewer."""
    name = await pods.run(FIVE)
    assert await pods.log(name, tailLines=tail) == (200, shown)


async def test_a_limit_of_bytes_cuts_a_line(pods: Pods) -> None:
    """The answer has exactly as many bytes as the limit."""
    name = await pods.run(FIVE)
    assert await pods.log(name, limitBytes=9) == (200, "line 1\nli")


async def test_times_have_nine_digits_and_rise(pods: Pods) -> None:
    """Each line begins with its time, in nine digits, so that times compare as text."""
    name = await pods.run(FIVE)
    _, text = await pods.log(name, timestamps="true")
    times, lines = zip(*(line.split(" ", 1) for line in text.splitlines()), strict=True)
    assert lines == tuple(f"line {n}" for n in range(1, 6))
    assert all(STAMP.fullmatch(time) for time in times), times
    assert all(low <= high for low, high in pairwise(times))


async def test_lines_beside_a_progress_bar_are_whole(pods: Pods) -> None:
    """As tqdm and print write them: each line of one stream has its time, wherever the line of the other stream is.
    The node decides whether the bar is one line or several."""
    bar = "printf '\\rbar 10' >&2; sleep 0.2; echo loss 0; sleep 0.2; printf '\\rbar 90\\n' >&2; sleep 0.2; echo loss 1"
    name = await pods.run(["sh", "-c", bar])
    _, text = await pods.log(name, timestamps="true")
    lines = [line.split(" ", 1) for line in text.split("\n") if line]
    assert all(STAMP.fullmatch(time) for time, _ in lines), text
    assert [shown for _, shown in lines if shown.startswith("loss")] == ["loss 0", "loss 1"]
    assert "".join(shown for _, shown in lines if not shown.startswith("loss")) == "\rbar 10\rbar 90"


async def test_since_a_time_is_since_its_second(pods: Pods) -> None:
    """The API has whole seconds: all lines of that second are shown again."""
    name = await pods.run(["sh", "-c", "echo old; sleep 1.1; echo 1; sleep 0.01; echo 2; sleep 0.01; echo 3"])
    _, text = await pods.log(name, timestamps="true")
    times = [line.split(" ")[0] for line in text.splitlines()]
    seconds = [time.partition(".")[0] for time in times]
    _, shown = await pods.log(name, sinceTime=times[-1], timestamps="true")
    assert [line.split(" ")[0] for line in shown.splitlines()] == [
        time for time, second in zip(times, seconds, strict=True) if second >= seconds[-1]
    ]


REFUSED: list[tuple[dict[str, object], int]] = [
    ({"tailLines": -1}, 422),
    ({"tailLines": "x"}, 400),
    ({"limitBytes": 0}, 422),
    ({"sinceSeconds": 0}, 422),
    ({"sinceSeconds": 1, "sinceTime": "2026-01-01T00:00:00Z"}, 422),
    ({"sinceTime": "yesterday"}, 400),
    ({"container": "nobody"}, 400),
]


@pytest.mark.parametrize(
    ("query", "code"), REFUSED, ids=["-".join(query) + f"-{n}" for n, (query, _) in enumerate(REFUSED)]
)
async def test_unsupported_log_options_are_refused(pods: Pods, query: dict[str, object], code: int) -> None:
    """The API server refuses the query, whatever the node would answer."""
    name = await pods.run(FIVE)
    assert (await pods.log(name, **query))[0] == code


async def test_a_container_is_named_where_there_are_several(pods: Pods) -> None:
    """The refusal lists the containers, init containers first."""
    inits = [pods.container("first", ["echo", "first"])]
    both = [pods.container("main", ["echo", "main"]), pods.container("side", ["echo", "side"])]
    name = await pods.run([], containers=both, initContainers=inits)
    assert await pods.log(name) == (
        400,
        f"a container name must be specified for pod {name}, choose one of: [first main side]",
    )
    assert await pods.log(name, container="side") == (200, "side\n")
    assert await pods.log(name, container="first") == (200, "first\n")
    assert await pods.log(name, container="third") == (400, f"container third is not valid for pod {name}")


async def test_a_log_is_followed_to_the_end(pods: Pods) -> None:
    """A followed log includes later lines, and the stream ends with the container."""
    name = await pods.start(["sh", "-c", "echo one; sleep 1; echo two; sleep 1; printf three"])
    await pods.running(name)
    assert await pods.follow(name) == "one\ntwo\nthree"


async def test_the_last_lines_are_followed(pods: Pods) -> None:
    """The tail is of the present lines; all later lines follow."""
    name = await pods.start(["sh", "-c", "echo one; echo two; sleep 2; echo three"])
    await pods.logged(name, "one\ntwo\n")
    assert await pods.follow(name, tailLines=1) == "two\nthree\n"


async def test_a_log_that_has_ended_is_followed_at_once(pods: Pods) -> None:
    """A followed log of an ended container ends at once."""
    name = await pods.run(FIVE)
    assert await pods.follow(name, tailLines=1) == "line 5\n"


async def test_a_container_that_waits_for_an_init_container_has_no_log(pods: Pods) -> None:
    """The refusal names what the container waits for."""
    name = await pods.start(initContainers=[pods.container("first", ["sleep", "60"])])
    await pods.until(name, lambda status: "running" in init_of(status).get("state", {}), "its init runs")
    assert await pods.log(name) == (
        400,
        f'container "main" in pod "{name}" is waiting to start: PodInitializing',
    )


async def test_a_container_that_lacks_its_configuration_has_no_log(pods: Pods) -> None:
    """The refusal names what the container waits for."""
    wants = {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "missing", "key": "word"}}}
    name = await pods.start(container={"env": [wants]})
    await pods.waits(name, "CreateContainerConfigError")
    assert await pods.log(name) == (
        400,
        f'container "main" in pod "{name}" is waiting to start: CreateContainerConfigError',
    )


async def test_the_others_of_a_failed_init_container_have_no_log(pods: Pods) -> None:
    """The other containers wait for the failed one for ever."""
    inits = [pods.container("first", ["sh", "-c", "echo no data; exit 7"])]
    name = await pods.run(["true"], initContainers=inits)
    assert await pods.log(name, container="first") == (200, "no data\n")
    assert await pods.log(name) == (400, f'container "main" in pod "{name}" is waiting to start: PodInitializing')


async def test_a_pod_without_a_node_has_no_log(pods: Pods) -> None:
    """A pod without a node has an empty log, without an error."""
    name = await pods.start(nodeName=None, schedulerName="nobody")
    assert await pods.log(name) == (204, "")


async def test_there_is_no_previous_container_before_a_restart(pods: Pods) -> None:
    """The refusal names the container."""
    name = await pods.run(FIVE)
    assert await pods.log(name, previous="true") == (
        400,
        f'previous terminated container "main" in pod "{name}" not found',
    )


async def test_the_container_before_a_restart_has_its_own_log(pods: Pods) -> None:
    """The previous log has the lines of the container before. (Once the pod has ended a kubelet may remove it.)"""
    script = "if test -e /kept/once; then echo second; exec sleep 60; fi; touch /kept/once; echo first; exit 1"
    name = await pods.start(
        ["sh", "-c", script],
        container={"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]},
        restartPolicy="OnFailure",
        volumes=[{"name": "kept", "emptyDir": {}}],
    )
    await pods.logged(name, "second\n")
    assert await pods.log(name, previous="true") == (200, "first\n")


async def test_the_container_that_crashed_is_the_previous_one_while_its_pod_waits(pods: Pods) -> None:
    """Both queries show the container that ended last. The next start may happen before the second query, which then
    names a container that its node may have removed; then the test asks both again."""
    name = await pods.start(["sh", "-c", "echo crash; exit 4"], restartPolicy="OnFailure")
    shown: list[tuple[int, str]] = []
    for _ in range(3):
        await pods.waits(name, "CrashLoopBackOff")
        shown = [await pods.log(name), await pods.log(name, previous="true")]
        if shown[0] == shown[1]:
            break
    assert shown == [(200, "crash\n")] * 2


async def test_a_program_that_could_not_be_started_has_an_empty_log(pods: Pods) -> None:
    """The container has ended, so the query does not wait."""
    name = await pods.run(["no-such-program"])
    assert await pods.log(name) == (200, "")


async def test_a_pod_that_was_refused_has_no_log(pods: Pods) -> None:
    """A refused pod has no container."""
    name = await pods.run(FIVE, container={"resources": {"requests": {"cpu": "10000"}}})
    assert await pods.log(name) == (400, f'container "main" in pod "{name}" is not available')
