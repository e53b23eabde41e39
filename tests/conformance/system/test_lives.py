"""The whole life of every kind of allocation, on a real API server and under the accounts of the chart."""

import pytest

from tests.conformance.system.system import System, a_body


@pytest.mark.parametrize("kind", ["command", "training"])
def test_what_ends_by_itself(system: System, kind: str) -> None:
    """Requested, assigned, starting, running, terminated; the exit code is on record; nothing is left."""
    id_ = system.launch(a_body(kind, script={"runsS": 0.3}))
    view = system.ended(id_, "Succeeded")
    assert view["status"]["ranks"][0]["exitCode"] == 0
    told = system.story(id_)
    assert told[:2] == ["requested", "assigned"]
    assert told[-2:] == ["running", "terminated"]
    system.started_once(id_, 1)
    system.nothing_left(system.object(id_)["metadata"]["uid"])
