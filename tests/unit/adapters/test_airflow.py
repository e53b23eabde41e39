"""The wait in the triggerer. Airflow itself cannot be installed here, so its base classes are empty ones."""

import importlib
import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from slipway.sdk import retries
from tests.support.http_stub import serve
from tests.support.sdk import a_view

MODULE = "slipway.adapters.airflow"


class Event:
    """What a trigger fires."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self.payload = payload


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapter, imported beside base classes without a body."""
    named: dict[str, dict[str, Any]] = {
        "airflow": {},
        "airflow.sdk": {"BaseHook": object, "BaseOperator": object},
        "airflow.sdk.exceptions": {"AirflowException": Exception},
        "airflow.triggers": {},
        "airflow.triggers.base": {"BaseTrigger": object, "TriggerEvent": Event},
    }
    for name, content in named.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    adapter: Any = importlib.import_module(MODULE)
    del sys.modules[MODULE]
    adapter.AGAIN_S = 0.001
    monkeypatch.setattr(retries, "FIRST_S", 0.001)
    return adapter


async def waited(
    airflow: Any, monkeypatch: pytest.MonkeyPatch, *, status: int, times: int
) -> tuple[dict[str, Any], int]:
    """Return the event of the trigger when the first answers have this status, and the number of requests."""

    async def answer(_: Request) -> Response:
        if len(stub.requests) <= times:
            return Response(b"", status)
        return Response(msgspec.json.encode(a_view(phase="Terminated", result="Succeeded")))

    async with serve(answer) as stub:
        monkeypatch.setenv("SLIPWAY_SERVER", stub.url)
        events = [event async for event in airflow.SlipwayRunTrigger("a-12345678").run()]
        return events[0].payload, len(stub.requests)


async def test_a_wait_survives_an_api_that_is_away(airflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait survives an API that is away; otherwise the task would fail while its allocation runs, and the next try
    would end that and start again."""
    payload, count = await waited(airflow, monkeypatch, status=503, times=20)
    assert (payload["result"], count) == ("Succeeded", 21)


async def test_a_refusal_ends_the_wait(airflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permanent refusal ends the wait."""
    payload, count = await waited(airflow, monkeypatch, status=404, times=20)
    assert (payload["result"], count) == ("", 1)
