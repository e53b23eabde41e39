"""A log line is one event: a constant message, key-values, the bound ids and the trace, without secrets."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from slipway.errors import UnavailableError
from slipway.runtime import log
from tests.support.clock import FakeClock


class _Lines:
    def __init__(self) -> None:
        self.stream = io.StringIO()

    def setup(self, style: Literal["json", "text"] = "json", level: str = "info") -> None:
        log.setup("test", level=level, style=style, stream=self.stream, trace_ids=lambda: ("t" * 32, "s" * 16))

    @property
    def text(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def parsed(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text]


@pytest.fixture
def lines() -> Iterator[_Lines]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    lines = _Lines()
    lines.setup()
    yield lines
    root.handlers[:] = handlers
    root.setLevel(level)


_log = log.get_logger("slipway.test")


def test_a_line_is_json_with_its_fields_and_its_trace(lines: _Lines):
    """A line is JSON with time, level, logger, service, trace and the event's own fields."""
    _log.info("pod created", rank=3, took_s=0.5, nodes=("a", "b"))
    (line,) = lines.parsed
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "slipway.test",
        "msg": "pod created",
        "service": "test",
        "trace_id": "t" * 32,
        "span_id": "s" * 16,
        "rank": 3,
        "took_s": 0.5,
        "nodes": ["a", "b"],
    }


async def test_bound_ids_reach_the_tasks_started_inside_and_end_outside(lines: _Lines):
    """Ids follow the context; inner ones add to outer ones."""

    async def child() -> None:
        _log.info("child")

    with log.bind(allocation="a-1"), log.bind(attempt=2):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child())
    _log.info("after")
    inside, after = lines.parsed
    assert (inside["allocation"], inside["attempt"]) == ("a-1", 2)
    assert "allocation" not in after
    assert not log.bound()


def test_secrets_are_hidden_in_fields_messages_and_tracebacks(lines: _Lines):
    """No secret gets into a line by key, by URL or by exception."""
    try:
        raise UnavailableError("cannot reach redis://u:hunter2@h")
    except UnavailableError as error:
        _log.error("failed", exc_info=error, password="hunter2", url="redis://u:hunter2@h", spec={"token": "hunter2"})
    assert "hunter2" not in lines.stream.getvalue()
    assert "UnavailableError: cannot reach redis://u:***@h" in lines.parsed[0]["traceback"]


def test_a_field_can_not_overwrite_the_line(lines: _Lines):
    """A field named like a part of the line is renamed, not lost."""
    _log.info("hello", service="evil", level="none")
    (line,) = lines.parsed
    assert (line["service"], line["level"]) == ("test", "info")
    assert (line["field_service"], line["field_level"]) == ("evil", "none")


def test_one_event_is_one_line_whatever_it_contains(lines: _Lines):
    """Line breaks in values and objects that JSON does not know stay inside the line."""
    _log.info("odd", text="a\nb", thing=object(), error=ValueError("x"))
    assert len(lines.text) == 1
    assert lines.parsed[0]["error"] == "x"


def test_levels_below_the_setting_are_not_written(lines: _Lines):
    """Levels below the process's setting are not written."""
    lines.setup(level="warning")
    _log.info("quiet")
    _log.debug("quieter")
    _log.warning("loud")
    assert [line["msg"] for line in lines.parsed] == ["loud"]


def test_libraries_log_through_the_same_format(lines: _Lines):
    """A plain standard logger with %-arguments is one of our lines, too."""
    logging.getLogger("some.library").warning("lost %s of %d", "one", 2)
    assert lines.parsed[0]["msg"] == "lost one of 2"


def test_text_is_for_people(lines: _Lines):
    """The text format, for users, shows the message first, then key=value."""
    lines.setup(style="text")
    _log.warning("slow", rank=3, token="hunter2")
    assert lines.text[0].endswith("WARNING test  slow  rank=3  token=***")


def test_the_canonical_line_has_outcome_and_duration(lines: _Lines):
    """The canonical line is one line at the end, with outcome, duration and the fields added on the way."""
    clock = FakeClock()
    with log.canonical_line(_log, "request", clock=clock, route="/x") as line:
        clock.advance(0.25)
        line.set(code=201)
        line.outcome = "created"
    (written,) = lines.parsed
    assert (written["outcome"], written["duration_s"], written["code"], written["route"]) == (
        "created",
        0.25,
        201,
        "/x",
    )


def test_the_canonical_line_of_a_failure_names_the_error_and_lets_it_pass(lines: _Lines):
    """The canonical line of a failure names the error, which is raised on."""
    with pytest.raises(UnavailableError), log.canonical_line(_log, "request", clock=FakeClock()):
        raise UnavailableError("gone")
    (written,) = lines.parsed
    assert (written["level"], written["outcome"], written["error"]) == ("warning", "UnavailableError", "gone")
