"""Notebooks, TensorBoards and shells on a real API server: their files, their probes, their ends."""

import pytest

from slipway.crd.kinds import LIBRARY_PATH
from tests.conformance.system.operator import Json
from tests.conformance.system.system import System

FILES = {
    "shell": {"__main__.py", "client.py", "terminal.py", "sessions.py", "sockets.py", "home.py"},
    "notebook": {"__main__.py", "client.py", "service_reporter.py", "signals.py", "home.py"},
    "tensorboard": {"__main__.py", "client.py", "service_reporter.py", "signals.py", "home.py"},
}


@pytest.mark.parametrize("kind", sorted(FILES))
def test_our_programs_in_a_pod_are_part_of_the_pod(system: System, kind: str) -> None:
    """A launch with nothing but a kind: its pod passes admission, with the probe and the files of the kind."""
    id_ = system.launch({"kind": kind})
    system.wait_for(id_, "Running")
    (pod,) = system.pods(id_)
    (main,) = pod["spec"]["containers"]
    assert main["readinessProbe"]["tcpSocket"]["port"] == main["ports"][0]["containerPort"]
    (mount,) = [each for each in main["volumeMounts"] if each["mountPath"] == LIBRARY_PATH]
    assert mount["readOnly"] is True
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
    items: dict[str, str] = {each["path"].rpartition("/")[2]: each["key"] for each in volume["configMap"]["items"]}
    assert items.keys() == FILES[kind]
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/configmaps/{volume['configMap']['name']}"
    configmap: Json = system.operator.get(path)
    assert all(configmap["data"][key].startswith('"""') for key in items.values())
    assert system.cli("kill", id_, "--wait").code == 0
    system.nothing_left(system.object(id_)["metadata"]["uid"])
