"""Container logs through the API server: the program's own output, as it is written."""

import asyncio

import httpx2
import pytest

from slipway.errors import InvalidError, TransientError
from tests.support.local_node import NAMESPACE, NodeWorld
from tests.support.plain_http import NO_TLS


async def test_a_log_is_followed_to_its_end(world: NodeWorld):
    """Lines arrive as they are written; the stream ends with the container."""
    script = "echo one; while [ ! -e $HOME/go ]; do sleep 0.01; done; echo two >&2; printf three"
    await world.start("a", ["sh", "-c", script])
    pod = await world.running("a")
    read = b""
    async with asyncio.timeout(5):
        async for chunk in world.kube.follow_log(NAMESPACE, "a"):
            read += chunk
            if read.endswith(b" one\n"):
                (world.folder / "pods" / pod.metadata.uid / "home" / "go").touch()
    assert sorted(line.partition(b" ")[2] for line in read.splitlines()) == [b"one", b"three", b"two"]


@pytest.mark.parametrize("number", ["TERM", "KILL", "SEGV"])
async def test_a_log_has_the_words_of_the_program_only(world: NodeWorld, number: str):
    """The wrapper between the node and the program does not print which signal ended the program."""
    await world.run("a", ["sh", "-c", f"echo mine >&2; kill -{number} $$$$"])
    assert await world.log("a") == "mine\n"


async def test_a_reader_resumes_after_the_last_time_it_saw(world: NodeWorld):
    """Times strictly rise; the API has whole seconds in `sinceTime`, so some lines are repeated with the same times."""
    await world.run("a", ["sh", "-c", "for i in 1 2 3 4 5; do echo $i; done"])
    times = [line.split()[0] for line in (await world.kube.read_log(NAMESPACE, "a")).decode().splitlines()]
    assert times == sorted(set(times))
    rest = await world.kube.read_log(NAMESPACE, "a", since_time=times[3])
    later = [line.split() for line in rest.decode().splitlines()]
    assert [text for time, text in later if time >= times[3]] == ["4", "5"]
    assert all(time[:19] >= times[3][:19] for time, _ in later)


async def test_the_tail_of_a_log(world: NodeWorld):
    """A tail has the last lines only."""
    await world.run("a", ["sh", "-c", "for i in 1 2 3 4 5; do echo $i; done"])
    tail = await world.kube.read_log(NAMESPACE, "a", tail_lines=2)
    assert [line.split()[1] for line in tail.decode().splitlines()] == ["4", "5"]


async def test_one_of_several_containers_has_to_be_named(world: NodeWorld):
    """The refusal has the kubelet's words."""
    containers = [{"name": name, "image": "x", "command": ["echo", name]} for name in ("left", "right")]
    await world.run("a", spec={"containers": containers})
    assert await world.log("a", "right") == "right\n"
    with pytest.raises(InvalidError, match=r"a container name must be specified for pod a, choose one of: .left right"):
        await world.log("a")
    with pytest.raises(InvalidError, match="container middle is not valid for pod a"):
        await world.log("a", "middle")


async def test_a_container_that_waits_has_no_log(world: NodeWorld):
    """The refusal names what the container waits for."""
    await world.start("a", None)
    with pytest.raises(TransientError, match="waiting to start"):
        await world.log("a")


async def test_the_log_endpoint_needs_its_key(world: NodeWorld):
    """Other users of the machine get no log; nor do other methods."""
    pod = await world.run("a", ["echo", "hello"])
    node = world.core.get("nodes", "", "node-0")
    endpoint = str(node["metadata"]["annotations"]["slipway.dev/log-endpoint"])
    path = f"logs/{NAMESPACE}/{pod.metadata.uid}"
    async with httpx2.AsyncClient(verify=NO_TLS, trust_env=False) as client:
        good = await client.get(f"{endpoint}/{path}")
        keyless = await client.get(f"{endpoint.rpartition('/')[0]}/{path}")
        wrong = await client.get(f"{endpoint.rpartition('/')[0]}/{'0' * 32}/{path}")
        post = await client.post(f"{endpoint}/{path}")
        strange = await client.get(f"{endpoint}/{path}?tailLines=x")
    assert (good.status_code, good.text) == (200, "hello\n")
    assert [keyless.status_code, wrong.status_code, post.status_code, strange.status_code] == [401, 401, 405, 400]


async def test_a_long_log_is_bounded_and_whole_lines_survive(world: NodeWorld):
    """A line of 100 kB is read back in one piece, byte for byte."""
    await world.run("a", ["python", "-c", "print('x' * 100_000); print('end')"])
    first, last = (await world.log("a")).splitlines()
    assert first == "x" * 100_000
    assert last == "end"
