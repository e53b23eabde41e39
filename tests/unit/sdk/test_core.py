"""The core of the SDK without IO: bodies of launches, calls, retries, streams, tables, and the cost of its import."""

import inspect
import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from slipway.errors import (
    ControlPlaneError,
    DeadlineError,
    ExpiredError,
    InvalidError,
    NotFoundError,
    PermanentError,
    StaleError,
    ThrottledError,
    UnavailableError,
)
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event, Phase
from slipway.sdk import AsyncClient, AsyncRun, Client, Run, calls, launches, refusals, retries, runs, sse, watches
from slipway.sdk.retries import RetryBudget, Tries
from slipway.streams.codec import encode_event
from tests.support.sdk import a_view, html_of

MODULES_MAX = 125
"""The maximum number of modules that `from slipway.sdk import Client` may load; they take about 100 ms, the limit for a
prompt."""


# --- importing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "needed"), [("Client", set[str]()), ("AsyncClient", {"asyncio", "ssl"})])
def test_importing_the_sdk_is_cheap(name: str, needed: set[str]) -> None:
    """A client is imported without the HTTP library and everything that only services need; only the asynchronous
    client imports asyncio."""
    heavy = {
        "httpx2",
        "asyncio",
        "ssl",
        "starlette",
        "redis",
        "kubernetes",
        "numpy",
        "opentelemetry",
        "yaml",
        "hashlib",
    }
    code = (
        f"import sys; before = set(sys.modules); from slipway.sdk import {name}\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded & heavy <= needed
    if not needed:
        assert len(loaded) <= MODULES_MAX, sorted(loaded)


def test_a_name_that_the_sdk_has_not_is_an_attribute_error() -> None:
    """An unknown name of the SDK is an AttributeError although the module loads lazily: `from slipway.sdk import Foo`
    fails as usual."""
    with pytest.raises(ImportError):
        exec("from slipway.sdk import Foo")


@pytest.mark.parametrize(("one", "other"), [(Client, AsyncClient), (Run, AsyncRun)])
def test_both_clients_have_the_same_methods(one: type, other: type) -> None:
    """Both clients have the same methods with the same parameters and defaults."""

    def methods(owner: type) -> dict[str, list[str]]:
        found = inspect.getmembers(owner, inspect.isfunction)
        public = [(name, method) for name, method in found if not name.startswith("_")]
        return {name: list(map(str, inspect.signature(method).parameters.values())) for name, method in public}

    assert methods(one) == methods(other)
    assert len(methods(one)) > 5


# --- launches ---------------------------------------------------------------------------------------------------------


def test_only_what_is_given_is_sent() -> None:
    """Only given fields are sent; None counts as not given. Templates and the defaults of the workspace fill in the
    others."""
    body = launches.body_of("command", {"image": "python:3.12", "max_runtime": "2h", "queue": None})
    assert body == {"kind": "command", "image": "python:3.12", "maxRuntime": "2h"}


def test_the_short_forms_of_ranks_and_resources() -> None:
    """`ranks=4, gpus=8` is one role; half a CPU is written as Kubernetes writes it."""
    body = launches.body_of("training", {"ranks": 4, "gpus": 8, "cpus": 0.5, "memory": "4Gi"})
    resources = {"cpu": "500m", "memory": "4Gi", "nvidia.com/gpu": "8"}
    assert body["ranks"] == [{"name": "worker", "count": 4, "resources": resources}]


def test_whole_roles_are_passed_on() -> None:
    """Whole roles are passed on; the short forms of resources would be ambiguous beside them, and are refused."""
    roles = [{"name": "head", "count": 1}, {"name": "worker", "count": 3}]
    assert launches.body_of("training", {"ranks": roles})["ranks"] == roles
    with pytest.raises(InvalidError, match="resources of each role"):
        launches.body_of("training", {"ranks": roles, "gpus": 1})


def test_a_named_template_is_for_the_server() -> None:
    """A template may be a name, which the server resolves, or a pod template."""
    assert launches.body_of("command", {"template": "base"})["template"] == "base"


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"imgae": "x"}, "/imgae", "did you mean image"),
        ({"gpu": 1}, "/gpu", "did you mean gpus"),
        ({"priority": "high"}, "/priority", "Expected `int`"),
        ({"priority": 2000}, "/priority", "<= 1000"),
        ({"command": "python train.py"}, "/command", "Expected `array`"),
        ({"ranks": True}, "/ranks", "Expected `array`"),
    ],
)
def test_a_wrong_field_is_named_before_anything_is_sent(given: dict[str, Any], field: str, words: str) -> None:
    """A wrong field is refused before anything is sent, with the field and the closest valid name."""
    with pytest.raises(InvalidError, match=words) as refused:
        launches.body_of("command", given)
    assert [each.pointer for each in refused.value.fields] == [field]


# --- calls ------------------------------------------------------------------------------------------------------------


def test_a_target_has_only_the_parameters_that_are_said() -> None:
    """A URL has only the given parameters: None and the empty text are left out, lists are joined, and True becomes
    `true`."""
    query = calls.parameters(
        {"created_after": "2026-01-02T00:00:00Z", "active": False, "queue": "", "phase": ["a", "b"]}
    )
    assert (
        calls.target("/x", "/allocations", query)
        == "/x/api/v1/allocations?createdAfter=2026-01-02T00%3A00%3A00Z&active=false&phase=a%2Cb"
    )


def test_an_id_can_not_leave_its_path() -> None:
    """An id is quoted in the path; an empty one is refused, because the call would be that of the list."""
    assert calls.get("../nodes").path == "/allocations/..%2Fnodes"
    with pytest.raises(InvalidError, match="an id or a name is needed"):
        calls.delete("")


def test_an_answer_of_another_version_is_said() -> None:
    """An answer that cannot be decoded is an error that says to compare the versions."""
    with pytest.raises(PermanentError, match="compare the versions"):
        calls.get("a").decode(b'{"id": 7}')


def test_a_refusal_has_its_code_fields_and_next_step() -> None:
    """A problem document becomes one exception; the next step is also in its traceback."""
    problem = {"code": "not-found", "detail": "there is no queue 'x'", "traceId": "abc"}
    error = refusals.error_of(404, {}, json.dumps(problem).encode())
    assert isinstance(error, NotFoundError)
    assert (error.code, error.status, error.trace_id) == ("not-found", 404, "abc")
    assert error.next_step
    assert error.__notes__ == [f"next step: {error.next_step}"]


def test_a_wrong_field_is_the_next_step() -> None:
    """Without a step of its own, a refusal says which fields to correct."""
    problem = {"code": "invalid", "detail": "1 problem", "errors": [{"pointer": "/priority", "detail": "too high"}]}
    assert refusals.error_of(422, {}, json.dumps(problem).encode()).next_step == "correct /priority"


def test_a_list_that_has_moved_on_is_expired() -> None:
    """A 410 for a list is ExpiredError, not bad input: the same call succeeds from the start."""
    assert isinstance(refusals.error_of(410, {}, b'{"code": "page-expired"}'), ExpiredError)


@pytest.mark.parametrize("code", sorted(refusals.NEXT_STEPS))
def test_each_code_with_a_next_step_is_one_of_the_server(code: str) -> None:
    """Each code with a next step is one that the server uses."""
    from slipway.api.http import problems

    rows = {row.code for row in problems.TABLE.values()} | {"no-such-path"}
    assert code in rows


# --- retries ----------------------------------------------------------------------------------------------------------


def tries(*, is_repeatable: bool = True, timeout_s: float = 30.0, budget: RetryBudget | None = None) -> Tries:
    """The tries of a call that begins at 100 s."""
    return Tries(budget or RetryBudget(), is_repeatable=is_repeatable, now=100.0, timeout_s=timeout_s)


def pause(made: Tries, error: ControlPlaneError, *, was_sent: bool = True, now: float = 100.0) -> float:
    """The pause before the next try, with the largest random value."""
    return made.pause_after(error, was_sent=was_sent, now=now, chance=1.0)


def test_waits_double_and_end() -> None:
    """A call is tried a limited number of times, with doubling pauses; then the error has the number of tries."""
    made = tries()
    assert [pause(made, UnavailableError("away")) for _ in range(retries.TRIES_MAX - 1)] == [0.25, 0.5, 1.0, 2.0]
    with pytest.raises(UnavailableError) as last:
        pause(made, UnavailableError("away"))
    assert last.value.attempts == retries.TRIES_MAX


def test_what_the_server_asks_for_is_waited() -> None:
    """Retry-After is respected; when there is not enough time for it, the error is raised at once."""
    assert pause(tries(), ThrottledError("slow", retry_after_s=7.0)) == 7.0
    with pytest.raises(ThrottledError):
        pause(tries(timeout_s=5.0), ThrottledError("slow", retry_after_s=7.0))


@pytest.mark.parametrize(
    ("error", "was_sent", "again"),
    [
        (UnavailableError("lost"), True, False),
        (DeadlineError("late"), True, False),
        (UnavailableError("refused"), False, True),
        (ThrottledError("slow"), True, True),
    ],
)
def test_a_call_that_may_do_something_else_is_not_made_twice(
    error: ControlPlaneError, was_sent: bool, again: bool
) -> None:
    """A call whose repeat may have another effect, such as a kill, is repeated only when the first one was certainly
    not carried out."""
    made = tries(is_repeatable=False)
    if again:
        assert pause(made, error, was_sent=was_sent) > 0
    else:
        with pytest.raises(type(error)):
            pause(made, error, was_sent=was_sent)


@pytest.mark.parametrize(
    ("call", "may_repeat"),
    [
        (calls.launch({}, "key"), True),
        (calls.preview({}), True),
        (calls.batch("kill", "key", {"ids": ["a"]}), True),
        (calls.kill("a", grace="", force=False), False),
        (calls.kill("a", grace="", force=True), True),
        (calls.terminate("a", ""), False),
        (calls.preempt("a", ""), False),
        (calls.hold("a"), True),
        (calls.release("a"), True),
        (calls.change("a", {"priority": 3}), True),
        (calls.create_job("a", "", {}), False),
        (calls.delete("a"), False),
        (calls.pools(), True),
    ],
)
def test_which_calls_are_repeated(call: calls.ApiCall[Any], may_repeat: bool) -> None:
    """A call is repeated if the second one has the same effect and the same answer; a second DELETE finds nothing."""
    assert call.is_repeatable == may_repeat


@pytest.mark.parametrize("error", [NotFoundError("x"), InvalidError("x"), PermanentError("x"), ExpiredError("x")])
def test_a_refusal_that_stays_is_not_repeated(error: ControlPlaneError) -> None:
    """A permanent refusal is not repeated."""
    with pytest.raises(type(error)):
        pause(tries(), error)


def test_a_change_at_the_same_time_is_repeated() -> None:
    """A conflict with another write is repeated, because nothing was done."""
    assert pause(tries(), StaleError("changed")) > 0


def test_a_quota_is_not_waited_for() -> None:
    """A used up quota, which is 429 as well, is not repeated, because a pause of seconds does not help."""
    error = refusals.error_of(429, {"Retry-After": "1"}, b'{"code": "quota-exceeded"}')
    with pytest.raises(ThrottledError):
        pause(tries(), error)


def test_a_client_repeats_only_a_part_of_its_calls() -> None:
    """When everything fails, a client stops repeating; each ten calls that succeed allow one more."""
    budget, repeated = RetryBudget(), 0
    for _ in range(40):
        try:
            pause(tries(budget=budget), UnavailableError("away"))
            repeated += 1
        except UnavailableError:
            pass
    assert repeated == retries.TOKENS_MAX
    for _ in range(11):
        budget.earn()
    assert pause(tries(budget=budget), UnavailableError("away")) > 0


# --- streams ----------------------------------------------------------------------------------------------------------


def an_event(seq: int, type_: Event = Event.RUNNING) -> AllocationEvent:
    """An event of one allocation."""
    return AllocationEvent(
        allocation_id=AllocationId("a-12345678"),
        namespace="default",
        name="a",
        uid="12345678-0000-0000-0000-000000000000",
        created_ms=1_700_000_000_000,
        seq=seq,
        attempt=1,
        type=type_,
        phase=Phase.TERMINATED if type_ is Event.TERMINATED else Phase.RUNNING,
        time="2026-01-02T03:04:05.678Z",
    )


def told(event: AllocationEvent) -> bytes:
    """The event as a server-sent event."""
    fields: dict[str, Any] = {name: value.decode() for name, value in encode_event(event).items()}
    fields["data"] = json.loads(fields["data"])
    return b"id: %b\ndata: %b\n\n" % (event.entry_id.encode(), msgspec.json.encode(fields))


def test_entries_come_whole_however_the_bytes_are_cut() -> None:
    """Entries are decoded however the bytes are cut: an entry is complete at its empty line; heartbeats and unknown
    fields are no entries."""
    whole = b": alive\n\nretry: 10\n\nid: 1-1\nevent: x\ndata: {\ndata: }\n\n"
    whole += b"id: 1-2\r\ndata: not json\r\n\r\nid: 1-3\ndata: 3"
    expected: list[Any] = [("1-1", "x", {}), ("1-2", "", "not json")]
    for size in (1, 2, 7, len(whole)):
        parser = sse.EventParser()
        found = [tuple(each) for at in range(0, len(whole), size) for each in parser.feed(whole[at : at + size])]
        assert found == expected


def test_a_stream_goes_on_after_what_was_passed_on() -> None:
    """A stream resumes after the last entry that was passed to the caller, not after one that was only received."""
    watch = watches.watch_events("/events", {}, after="", ends=False)
    watch.open(0.0)
    first, second = watch.feed(told(an_event(1)) + told(an_event(2)), 0.0)
    watch.passed(first[0])
    assert watch.headers["Last-Event-ID"] == an_event(1).entry_id
    assert second[1] == an_event(2)


def test_a_stream_that_breaks_before_its_first_event_goes_on_at_its_position() -> None:
    """The server says where a stream of new events begins: an id without data, which is no event."""
    watch = watches.watch_events("/events", {}, after="", ends=False)
    watch.open(0.0)
    assert watch.feed(b"retry: 2000\n\nid: 7-0\n\n", 0.0) == []
    assert (watch.cursor, watch.headers["Last-Event-ID"]) == ("7-0", "7-0")


def test_events_of_an_unknown_type_are_left_out() -> None:
    """Events of an unknown type, as from a newer server, are skipped; the others are read."""
    watch = watches.watch_events("/events", {}, after="", ends=False)
    unknown = told(an_event(1)).replace(b".running", b".levitating")
    assert [value.seq for _, value in watch.feed(unknown + told(an_event(2)), 0.0)] == [2]


def test_what_is_no_event_ends_the_stream() -> None:
    """Bytes that are no event end the stream with an error."""
    watch = watches.watch_events("/events", {}, after="", ends=False)
    with pytest.raises(PermanentError):
        watch.feed(b'data: {"specversion": "1.0", "type": 7}\n\n', 0.0)


def test_the_end_of_an_allocation_is_the_end_of_its_stream() -> None:
    """The stream of one allocation ends with `terminated`; that of all allocations does not."""
    one, every = (watches.watch_events("/x", {}, after="", ends=ends) for ends in (True, False))
    for watch in (one, every):
        watch.feed(told(an_event(9, Event.TERMINATED)), 0.0)
    assert (one.is_over, every.is_over) == (True, False)


def test_a_quiet_stream_is_patient_after_each_break() -> None:
    """The time for reconnects starts anew after each break, because heartbeats show that the stream works: breaks that
    are hours apart are separate."""
    watch = watches.watch_events("/x", {}, after="", ends=True)
    for hour in range(5):
        watch.open(hour * 3600.0)
        assert watch.feed(b": alive\n\n", hour * 3600.0 + 15.0) == []
        assert watch.pause_after(UnavailableError("away"), hour * 3600.0 + 20.0) == sse.PAUSE_S


def test_a_stream_that_only_opens_does_not_work() -> None:
    """A stream that opens but sends nothing for long does not count as working, and is given up after the limit."""
    watch = watches.watch_events("/x", {}, after="", ends=True)

    def broken(at: float) -> None:
        watch.open(at)
        watch.feed(b": hello\n\n", at + 1.0)
        watch.pause_after(UnavailableError("away"), at + 4.0)

    for at in range(0, 60, 5):
        broken(float(at))
    with pytest.raises(UnavailableError):
        broken(66.0)


def test_a_stream_with_a_deadline_ends_in_time() -> None:
    """A stream with a deadline ends in time, also while heartbeats arrive and while the server is away."""
    watch = watches.watch_events("/x", {}, after="", ends=True, deadline=60.0)
    assert watch.open(0.0) == sse.SILENCE_S
    assert not watch.is_to_reopen(10.0)
    assert watch.is_to_reopen(30.0)
    assert watch.open(30.0) == 30.0
    assert watch.pause_after(UnavailableError("away"), 59.9) <= 0.11
    with pytest.raises(DeadlineError):
        watch.is_to_reopen(60.0)
    with pytest.raises(DeadlineError):
        watch.pause_after(UnavailableError("away"), 61.0)


def test_a_stream_that_does_not_come_back_says_why() -> None:
    """A stream that stays broken is reopened with doubling pauses up to a limit; then the error is raised."""
    watch = watches.watch_events("/x", {}, after="", ends=True)
    waits = [watch.pause_after(UnavailableError("away"), float(at)) for at in range(6)]
    assert waits == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0]
    with pytest.raises(UnavailableError):
        watch.pause_after(UnavailableError("away"), sse.PATIENCE_S + 1.0)


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_a_run_shows_itself() -> None:
    """A run is shown in one line on a prompt, and as a table in a notebook."""
    run = Run(Client("http://127.0.0.1:1"), a_view())
    assert repr(run) == "<Run a-12345678: Running, ranks 1/2>"
    assert "<td" in html_of(run)


def test_no_text_of_a_user_is_markup() -> None:
    """Texts of users are no markup: names, users and messages are escaped in tables."""
    shown = runs.allocations_table([a_view(user="<script>alert(1)</script>", message='"><b>')])
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "&lt;script&gt;" in shown


def test_a_long_list_is_cut_with_a_word() -> None:
    """A notebook shows a limited number of rows of a list, and says that there are more."""
    shown = runs.allocations_table([a_view()] * (runs.ROWS_MAX + 1))
    assert shown.count("<tr>") == runs.ROWS_MAX + 1
    assert "and more" in shown


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"phase": "Pending", "hold": True}, "Held"),
        ({"ready": True}, "Ready"),
        ({"phase": "Terminated", "result": "Succeeded"}, "Succeeded"),
        ({}, "Running"),
    ],
)
def test_the_state_is_the_word_of_the_command(changes: dict[str, Any], state: str) -> None:
    """A table shows the same state as `slipway ps`."""
    assert runs.state_of(a_view(**changes)) == state
