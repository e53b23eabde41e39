"""Each rule of the CRDs: what it accepts and what it refuses."""

import pytest

from slipway.crd.rules import RULES, TWINS, ValidationRule, violations
from tests.support.allocations import Json, a_spec, a_status, a_stored, changed

RELEASE = {"attempt": 1, "podUIDs": ["u0", "u1"]}
ADMISSION = {"decisionId": "d1", "epoch": 4, "attempt": 1}
ENDED = {"podUID": "u0", "phase": "Failed", "exitCode": 3}
LIVE = {"podUID": "u1", "phase": "Running"}
SIGNALS = {"attempt": 1, "preempt": {"n": 2, "attempt": 1}, "acks": {"0": 2}}
RUNNING = a_status(
    phase="Running", seq=6, attempt=1, admission=ADMISSION, release=RELEASE, ranks=[ENDED, LIVE], ready=False
)
TERMINATED = {**RUNNING, "phase": "Terminated", "result": "Failed"}


def messages(now: Json, before: Json | None, kind: str = "Allocation") -> list[str]:
    return [violation.message for violation in violations(kind, now, before)]


def test_every_cel_rule_has_its_own_python_rule() -> None:
    """Every expression has a twin, and equal expressions have the same meaning, because the local cluster finds each
    rule by its expression."""
    twins: dict[str, str] = {}
    for rule in RULES:
        assert rule.rule in TWINS
        assert twins.setdefault(rule.rule, rule.twin.__name__) == rule.twin.__name__


def test_a_fresh_object_passes() -> None:
    """A fresh object passes the rules that look at one version only, which a create runs."""
    assert messages(a_stored(), None) == []


def test_a_transition_rule_holds_where_there_was_nothing() -> None:
    """A transition rule accepts a new value, because Kubernetes does not run it then."""
    for rule in RULES:
        if rule.is_transition:
            assert rule.holds(a_stored(), None)


def test_an_expression_that_fails_refuses() -> None:
    """An expression that fails refuses the write, as in CEL: a missing key is an error."""
    rule = next(rule for rule in RULES if "self.metadata.name.matches" in rule.rule)
    assert not rule.holds({}, None)


@pytest.mark.parametrize("name", ["a", "a-1", "notebook-abc123", "a" * 40])
def test_good_names_pass(name: str) -> None:
    """Good names have a letter first, then lower case letters, digits and hyphens, at most 40 characters."""
    assert messages(a_stored(name=name), None) == []


@pytest.mark.parametrize("name", ["", "1a", "-a", "a-", "A", "a.b", "a_b", "a" * 41, "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    """The AllocationID starts with the name, and pods, ConfigMaps and hosts with the AllocationID."""
    assert messages(a_stored(name=name), None) != []


STATUS_STEPS: list[tuple[str, Json, Json, bool]] = [
    ("seq rises", RUNNING, {**RUNNING, "seq": 7}, True),
    ("seq falls", RUNNING, {**RUNNING, "seq": 5}, False),
    ("attempt falls", {**RUNNING, "attempt": 2}, {**RUNNING, "attempt": 1}, False),
    ("the end", RUNNING, {**TERMINATED, "seq": 7}, True),
    ("out of the end", TERMINATED, {**TERMINATED, "phase": "Running"}, False),
    ("out of the end by an attempt", TERMINATED, {**TERMINATED, "phase": "Pending", "attempt": 2}, False),
    ("another attempt after the end", TERMINATED, {**TERMINATED, "attempt": 2}, False),
    ("another result", TERMINATED, {**TERMINATED, "result": "Canceled"}, False),
    ("no result", TERMINATED, {key: value for key, value in TERMINATED.items() if key != "result"}, False),
    ("a condition after the end", TERMINATED, {**TERMINATED, "conditions": [{"type": "Complete"}]}, True),
    ("the same end again", TERMINATED, dict(TERMINATED), True),
    ("a higher epoch", RUNNING, {**RUNNING, "admission": {**ADMISSION, "epoch": 5}}, True),
    ("a lower epoch", RUNNING, {**RUNNING, "admission": {**ADMISSION, "epoch": 3}}, False),
    ("no admission", RUNNING, {key: value for key, value in RUNNING.items() if key != "admission"}, False),
    ("another release", RUNNING, {**RUNNING, "release": {**RELEASE, "podUIDs": ["u0", "u9"]}}, False),
    ("no release", RUNNING, {key: value for key, value in RUNNING.items() if key != "release"}, False),
    ("an exit", RUNNING, {**RUNNING, "ranks": [ENDED, {**LIVE, "exitCode": 0}]}, True),
    ("another exit", RUNNING, {**RUNNING, "ranks": [{**ENDED, "exitCode": 0}, LIVE]}, False),
    ("no exit", RUNNING, {**RUNNING, "ranks": [{"podUID": "u0"}, LIVE]}, False),
    ("the exit of another pod", RUNNING, {**RUNNING, "ranks": [{**ENDED, "podUID": "u9"}, LIVE]}, False),
    ("the phase of an ended rank", RUNNING, {**RUNNING, "ranks": [{**ENDED, "phase": "Succeeded"}, LIVE]}, True),
    ("fewer ranks", RUNNING, {**RUNNING, "ranks": [ENDED]}, False),
    ("no ranks", RUNNING, {key: value for key, value in RUNNING.items() if key != "ranks"}, False),
    ("the next attempt", RUNNING, a_status(seq=9, attempt=2, admission=ADMISSION), True),
    ("the next attempt forgets the epoch", RUNNING, a_status(seq=9, attempt=2), False),
]


@pytest.mark.parametrize(("before", "now", "passes"), [pytest.param(*s[1:], id=s[0]) for s in STATUS_STEPS])
def test_status_moves_forward_only(before: Json, now: Json, passes: bool) -> None:
    """A status only moves forward: Terminated is final; seq, attempt and epoch never decrease; release and exits are
    written once per attempt."""
    assert (messages(a_stored(status=now), a_stored(status=before)) == []) is passes


def test_status_can_not_be_removed() -> None:
    """A status cannot be removed; otherwise two writes could bypass every transition rule of the status."""
    assert "status cannot be removed" in messages(changed(a_stored(), "status", None), a_stored())


RELEASED = changed(changed(a_stored(), "status/release", RELEASE), "status/phase", "Assigned")
STOPPED = changed(a_stored(), "spec/desired", "Stopped")


@pytest.mark.parametrize(
    ("before", "now", "passes"),
    [
        pytest.param(a_stored(), RELEASED, True, id="release while desired"),
        pytest.param(STOPPED, changed(RELEASED, "spec/desired", "Stopped"), False, id="release after the stop"),
        pytest.param(RELEASED, changed(RELEASED, "spec/desired", "Stopped"), True, id="stop after the release"),
        pytest.param(a_stored(), STOPPED, True, id="stop"),
        pytest.param(STOPPED, a_stored(), False, id="start again"),
        pytest.param(
            changed(RELEASED, "spec/desired", "Stopped"),
            changed(STOPPED, "status/attempt", 2),
            True,
            id="a next attempt of a stopped one has no release",
        ),
    ],
)
def test_a_cancel_before_the_release_keeps_it_from_starting(before: Json, now: Json, passes: bool) -> None:
    """After a cancel before the release nothing starts: with desired Stopped the release cannot change, and Stopped
    cannot be undone."""
    assert (messages(now, before) == []) is passes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "command"),
        ("pool", "other"),
        ("job", "j"),
        ("preemptible", True),
        ("minAvailable", 1),
        ("preemptionGrace", "1h"),
        ("maxRestarts", 1),
        ("failurePolicy", {"rules": [{"action": "fail", "exitCodes": [42, "64-78"]}]}),
        ("successPolicy", {"targets": [{"role": "worker", "count": 1}]}),
        ("requestHash", "abc"),
        ("template", {"spec": {"nodeSelector": {"a": "b"}}}),
        ("ranks", [{"name": "worker", "count": 3}]),
        ("files", [{"path": "a", "content": "b"}]),
        ("ports", [{"name": "http", "port": 80}]),
        ("env", {"A": "1"}),
    ],
)
def test_what_runs_can_not_be_changed(field: str, value: object) -> None:
    """Fields of running work cannot be added, changed or removed; the error names the field."""
    plain, other = a_stored(), changed(a_stored(), f"spec/{field}", value)
    assert [v.pointer for v in violations("Allocation", other, plain)] == [f"/spec/{field}"]
    assert [v.pointer for v in violations("Allocation", plain, other)] == [f"/spec/{field}"]
    assert messages(other, other) == []


REPLACED = [
    ("template", {"spec": {"nodeSelector": {"a": "b"}}}),
    ("ranks", [{"name": "worker", "count": 3}]),
    ("env", {"A": "1"}),
]


@pytest.mark.parametrize(("field", "value"), REPLACED)
def test_what_is_held_may_be_given_other_work_until_it_is_admitted(field: str, value: object) -> None:
    """An allocation that was held before the write may get other work until it is admitted: a change that also resumes
    it passes, one that also holds it does not."""
    held = changed(a_stored(), "spec/hold", True)
    other = changed(held, f"spec/{field}", value)
    assert messages(other, held) == []
    assert messages(changed(other, "spec/hold", False), held) == []
    assert messages(other, a_stored()) == [f"{field} can only be changed while it is held and was not admitted"]
    admitted, replaced = (changed(each, "status/admission", ADMISSION) for each in (held, other))
    assert messages(replaced, admitted) == [
        "template, ranks and env cannot be changed once the allocation was admitted; start another allocation"
    ]
    assert messages(changed(admitted, "spec/priority", 3), admitted) == []


@pytest.mark.parametrize(("field", "empty"), [("env", {}), ("files", []), ("ports", [])])
def test_absent_means_empty(field: str, empty: object) -> None:
    """An absent field equals an empty one, so that an encoder that omits defaults is not refused."""
    assert messages(changed(a_stored(), f"spec/{field}", empty), a_stored()) == []
    assert messages(a_stored(), changed(a_stored(), f"spec/{field}", empty)) == []


@pytest.mark.parametrize("field", ["priority", "hold", "queuePosition"])
def test_what_orders_the_queue_may_be_changed(field: str) -> None:
    """The fields of the order in the queue (priority, hold and position) may be changed."""
    values = {"priority": 7, "hold": True, "queuePosition": "m"}
    assert messages(changed(a_stored(), f"spec/{field}", values[field]), a_stored()) == []


def test_queue_moves_until_the_admission() -> None:
    """The queue may change until the admission, because the quota of an admitted allocation is charged to its queue."""
    moved = a_stored(spec=a_spec(queue="b"))
    assert messages(moved, a_stored()) == []
    admitted = changed(a_stored(), "status/admission", ADMISSION)
    assert messages(changed(admitted, "spec/queue", "b"), admitted) == [
        "queue cannot be changed once the allocation was admitted"
    ]


SIGNALED = a_stored(spec=a_spec(signals=SIGNALS))


@pytest.mark.parametrize(
    ("path", "value", "passes"),
    [
        ("spec/signals/preempt/n", 3, True),
        ("spec/signals/preempt/n", 1, False),
        ("spec/signals/preempt", None, False),
        ("spec/signals", None, False),
        ("spec/signals/attempt", 0, False),
        ("spec/signals", {"attempt": 2}, True),
        ("spec/signals/acks/1", 2, True),
        ("spec/signals/acks/0", 1, False),
        ("spec/signals/acks", None, False),
        ("spec/signals/ready", True, True),
    ],
)
def test_signals_rise_within_an_attempt(path: str, value: object, passes: bool) -> None:
    """Signals only rise within an attempt: an acknowledgement decides the result, so it cannot be withdrawn."""
    assert (messages(changed(SIGNALED, path, value), SIGNALED) == []) is passes


def test_roles_have_names_of_their_own_and_minima_within_their_count() -> None:
    """Roles have different names and a minimum within their count; `kubectl apply` gets the error at once."""
    twice = [{"name": "a", "count": 1}, {"name": "a", "count": 1}]
    assert messages(a_stored(spec=a_spec(ranks=twice)), None) == ["each role needs a name of its own"]
    large = [{"name": "a", "count": 1}, {"name": "b", "count": 1, "minAvailable": 2}]
    found = violations("Allocation", a_stored(spec=a_spec(ranks=large)), None)
    assert [(v.pointer, v.message) for v in found] == [("/spec/ranks/1", "minAvailable must not be above count")]


def a_pool_with(**status: int) -> Json:
    return {"metadata": {"name": "default"}, "spec": {}, "status": status}


def test_the_ledger_never_goes_back() -> None:
    """The ledger never goes back: the server refuses an old epoch even with the right resourceVersion."""
    before = a_pool_with(epoch=3, tick=9)
    assert messages(a_pool_with(epoch=4, tick=9), before, "ResourcePool") == []
    assert messages(a_pool_with(epoch=2, tick=9), before, "ResourcePool") != []
    assert messages(a_pool_with(epoch=3, tick=8), before, "ResourcePool") != []
    assert messages({"metadata": {"name": "default"}}, before, "ResourcePool") != []


@pytest.mark.parametrize("kind", ["ResourcePool", "Queue", "Job", "Template"])
def test_names_of_the_other_kinds_are_labels(kind: str) -> None:
    """Names of the other kinds are valid labels, because they are used in specs, leases and labels, where a dot or 64
    characters are not allowed."""
    assert messages({"metadata": {"name": "a" * 63}}, None, kind) == []
    assert messages({"metadata": {"name": "a" * 64}}, None, kind) != []
    assert messages({"metadata": {"name": "a.b"}}, None, kind) != []


def test_a_queue_is_not_its_own_parent() -> None:
    """A queue is not its own parent."""
    assert messages({"metadata": {"name": "a"}, "spec": {"parent": "a"}}, None, "Queue") != []
    assert messages({"metadata": {"name": "a"}, "spec": {"parent": "b"}}, None, "Queue") == []


def test_every_rule_refuses_something() -> None:
    """Every rule refuses something: this file has a case for each message."""
    assert all(rule.message and rule.message[0].islower() for rule in RULES)
    assert len({(rule.kind, rule.path, rule.rule) for rule in RULES}) == len(RULES)
    assert all(isinstance(rule, ValidationRule) for rule in RULES)
