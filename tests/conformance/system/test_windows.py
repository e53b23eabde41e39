"""Windows of a pool on a real API server: which ones it refuses, which allocations wait for them, and which are evicted
when they begin."""

import pytest

from slipway.model.times import format_time
from slipway.runtime.clock import SystemClock
from tests.conformance.system.operator import GROUP
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

POOL = f"{GROUP}/resourcepools/default"
CLOCK = SystemClock()


def test_work_waits_for_a_window_that_evicts_and_starts_when_it_is_over(system: System) -> None:
    """A preemptible allocation is evicted as the window begins; the explanation of one that would run into it shows
    when to end. Both run again once the window has ended, without any other event."""
    first = system.launch(a_body("training", 1, preemptible=True))
    system.wait_for(first, "Running")
    begins = CLOCK.now() + 20.0
    window = {
        "name": "patch",
        "start": format_time(begins, "seconds"),
        "duration": "20s",
        "leadTime": "1h",
        "maintenance": True,
        "onStart": "Evict",
    }
    system.operator.change(POOL, {"spec": {"windows": [window]}})
    try:
        wait_until(lambda: _windows(system) == ["patch"], "the api shows the window")
        second = system.launch(a_body("training", 1))
        wait_until(lambda: f"a maxRuntime that ends it by {window['start']}" in _why(system, second), "told why")
        assert "reserved for maintenance patch" in _why(system, second)
        system.wait_until(first, lambda view: view["status"]["attempt"] == 2, "it has made room", timeout_s=60.0)
        assert "NodeReserved" in str(system.object(first)["status"])
        assert CLOCK.now() >= begins - 1.0
        system.wait_for(second, "Running", timeout_s=60.0)
        system.wait_for(first, "Running", timeout_s=60.0)
        assert CLOCK.now() >= begins + 19.0
    finally:
        system.operator.change(POOL, {"spec": {"windows": None}})
        system.settle()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "state either queues"),
        ({"maintenance": True, "start": "2026-02-30T22:00:00Z"}, "start"),
        ({"maintenance": True, "repeat": {"every": "Daily", "until": "2020-01-01T00:00:00Z"}}, "is before start"),
        ({"maintenance": True, "nodeNames": ["n"], "nodes": 1}, "leave out nodeSelector"),
    ],
)
def test_the_api_server_refuses_windows_that_contradict_themselves(
    system: System, more: dict[str, object], words: str
) -> None:
    """The API server's own evaluation of the rules refuses them."""
    window = {"name": "w", "start": "2026-12-05T22:00:00+01:00", "duration": "4h", **more}
    status, message = system.operator.refusal(lambda: system.operator.change(POOL, {"spec": {"windows": [window]}}))
    assert status == 422
    assert words in message


def _why(system: System, id_: str) -> str:
    return str(system.get(f"/allocations/{id_}/explain")["message"])


def _windows(system: System) -> list[str]:
    (pool,) = [each for each in system.get("/pools")["items"] if each["name"] == "default"]
    return [each["name"] for each in pool["windows"]]
