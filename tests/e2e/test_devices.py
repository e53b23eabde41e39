"""Devices of the local cluster's nodes: a rank sees exactly its devices, in parts and whole."""

from pathlib import Path
from typing import Any

from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

Json = dict[str, Any]
SMALL: Json = {"cpu": "50m", "memory": "64Mi"}
TELLS = """
import os, pathlib, time
seen = [os.environ.get("NVIDIA_VISIBLE_DEVICES"), os.environ.get("SLIPWAY_DEVICES")]
pathlib.Path({path!r}, os.environ["SLIPWAY_RANK"]).write_text(str(seen))
time.sleep(600)
"""


def launch(stack: RunningStack, folder: Path, count: int, **resources: Any) -> str:
    """Launch ranks on one node that leave a mark of the devices that they see."""
    folder.mkdir(mode=0o777)
    command = ["python", "-c", TELLS.format(path=str(folder))]
    container = {"name": "main", "image": "local", "command": command}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    near = {"kubernetes.io/hostname": "node-0"}
    ranks = [{"count": count, "resources": {**SMALL, **resources}, "nodeSelector": near}]
    return stack.launch({"kind": "training", "template": template, "ranks": ranks})


def devices(view: Json) -> list[list[int]]:
    return [place["device"] for place in view["status"]["admission"]["placements"]]


def test_ranks_see_the_devices_that_they_were_given(stack: RunningStack, marks: Path) -> None:
    """Two parts of one GPU run, then whole ones beside it; status, pods and processes agree, and no device plugin is
    used. An allocation that ends releases its part."""
    parts = launch(stack, marks / "parts", 2, **{"slipway.dev/gpu-milli": 300})
    view = stack.wait_for(parts, "Running")
    (first, second) = devices(view)
    assert first == second
    whole = launch(stack, marks / "whole", 1, **{"nvidia.com/gpu": 2})
    other = stack.wait_for(whole, "Running")
    (mine,) = devices(other)
    assert len(mine) == 2
    assert first[0] not in mine
    for folder, rank, numbers in (("parts", 0, first), ("parts", 1, second), ("whole", 0, mine)):
        text = ",".join(map(str, numbers))
        said = marks / folder / str(rank)
        wait_until(lambda said=said: said.exists() and said.read_text(), "the rank tells what it sees")
        assert said.read_text() == str([text, text])
    for pod in (*stack.pods_of_uid(view), *stack.pods_of_uid(other)):
        (container,) = pod["spec"]["containers"]
        assert not {"nvidia.com/gpu", "slipway.dev/gpu-milli"} & container["resources"]["requests"].keys()
    annotations = [pod["metadata"]["annotations"] for pod in stack.pods_of_uid(view)]
    assert {(item["slipway.dev/devices"], item["slipway.dev/gpu-milli"]) for item in annotations} == {
        (str(first[0]), "300")
    }
    for id_ in (parts, whole):
        path = f"/allocations/{id_}/kill"
        stack.ask(lambda api, path=path: api.post(path))
        stack.wait_for(id_, "Terminated")
