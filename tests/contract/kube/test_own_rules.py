"""The rules of our own definitions, each obeyed and broken once through the server."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from slipway.crd import schema
from tests.contract.kube.client import KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import CRDS, Json

BASE = "/apis/slipway.dev/v1alpha1"
TEMPLATE: Json = {"spec": {"containers": [{"name": "main", "image": "example.invalid/none:1"}]}}
ADMISSION: Json = {"decisionId": "d", "epoch": 3}
RELEASE: Json = {"attempt": 1, "podUIDs": ["u0"]}
ENDED: Json = {"phase": "Terminated", "result": "Failed", "seq": 9, "attempt": 1}
LIVE: Json = {"phase": "Running", "seq": 5, "attempt": 2}
EXITED: Json = {**LIVE, "ranks": [{"podUID": "u0", "exitCode": 1}, {"podUID": "u1"}]}
AGAIN: Json = {**EXITED, "restartedRanks": [{"rank": 0, "n": 1}]}
SIGNALLED: Json = {"signals": {"preempt": {"n": 2}, "acks": {"0": 2}, "attempt": 1}}
NEWER: Json = {**LIVE, "attempt": 3}


@pytest.fixture
async def home(kube: KubeHttp, ns: NamespacePaths) -> NamespacePaths:
    """A namespace on a server that serves our kinds."""
    if (await kube.get(_path(ns))).code == 200 and (await kube.get(f"{BASE}/queues")).code == 200:
        return ns
    for manifest in schema.crd_manifests():
        answer = await kube.post(CRDS, manifest)
        assert answer.code in (201, 409), answer.body

    async def are_served() -> bool:
        plurals = [manifest["spec"]["names"]["plural"] for manifest in schema.crd_manifests()]
        return all([(await kube.get(f"{BASE}/{plural}")).code == 200 for plural in plurals])

    await eventually(are_served, "our kinds are served", within_s=30)
    return ns


def _path(ns: NamespacePaths, name: str = "", sub: str = "") -> str:
    base = f"{BASE}/namespaces/{ns.name}/allocations"
    return "/".join(part for part in (base, name, sub) if part)


async def _launch(kube: KubeHttp, ns: NamespacePaths, spec: Json | None = None, status: Json | None = None) -> Reply:
    body = {
        "apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "a"},
        "spec": {"kind": "command", "template": TEMPLATE, **(spec or {})},
    }  # fmt: skip
    made = await kube.post(_path(ns), body, fieldValidation="Strict")
    assert made.code == 201, made.message
    return await _observe(kube, ns, made, status) if status else made


async def _observe(kube: KubeHttp, ns: NamespacePaths, known: Reply, status: Json) -> Reply:
    """PUT a status on /status, as every service writes it."""
    answer = await kube.put(_path(ns, "a", "status"), {**known.body, "status": status}, fieldValidation="Strict")
    assert answer.code == 200, answer.message
    return answer


class Case(msgspec.Struct, frozen=True):
    """A write to an existing allocation; `words` of the refusal, empty when the write is accepted."""

    before: Mapping[str, Any]
    now: Mapping[str, Any]
    words: str = ""


STATUS_CASES: dict[str, Case] = {
    "phases go on": Case({**LIVE, "phase": "Assigned"}, LIVE),
    "seq goes down": Case(LIVE, {**LIVE, "seq": 4}, "seq and attempt never go down"),
    "attempt goes down": Case(LIVE, {**LIVE, "attempt": 1}, "seq and attempt never go down"),
    "an end is left": Case(ENDED, {**ENDED, "phase": "Running"}, "the allocation has ended"),
    "an end gets another result": Case(ENDED, {**ENDED, "result": "Succeeded"}, "the allocation has ended"),
    "an end loses its result": Case(
        ENDED, {name: value for name, value in ENDED.items() if name != "result"}, "the allocation has ended"
    ),
    "an end gets another attempt": Case(ENDED, {**ENDED, "attempt": 2}, "the allocation has ended"),
    "an end is explained later": Case(ENDED, {**ENDED, "message": "it broke", "seq": 10}),
    "the epoch rises": Case({**LIVE, "admission": ADMISSION}, {**LIVE, "admission": {**ADMISSION, "epoch": 4}}),
    "the epoch goes down": Case(
        {**LIVE, "admission": ADMISSION}, {**LIVE, "admission": {**ADMISSION, "epoch": 2}}, "the epoch of the admission"
    ),
    "the admission goes": Case({**LIVE, "admission": ADMISSION}, LIVE, "the epoch of the admission"),
    "the release changes": Case(
        {**LIVE, "release": RELEASE}, {**LIVE, "release": {**RELEASE, "podUIDs": ["u9"]}}, "the release of an attempt"
    ),
    "the release goes": Case({**LIVE, "release": RELEASE}, LIVE, "the release of an attempt"),
    "the next attempt clears the release": Case({**LIVE, "release": RELEASE}, NEWER),
    "a second rank ends": Case(
        EXITED, {**EXITED, "ranks": [EXITED["ranks"][0], {"podUID": "u1", "exitCode": 0}]}
    ),
    "an exit code changes": Case(
        EXITED, {**EXITED, "ranks": [{"podUID": "u0", "exitCode": 0}, {"podUID": "u1"}]}, "the exit of a rank"
    ),
    "an exit code moves to another pod": Case(
        EXITED, {**EXITED, "ranks": [{"podUID": "u7", "exitCode": 1}, {"podUID": "u1"}]}, "the exit of a rank"
    ),
    "an exit code goes": Case(
        EXITED, {**EXITED, "ranks": [{"podUID": "u0"}, {"podUID": "u1"}]}, "the exit of a rank"
    ),
    "a rank goes": Case(EXITED, {**EXITED, "ranks": EXITED["ranks"][:1]}, "the exit of a rank"),
    "the next attempt clears the ranks": Case(EXITED, NEWER),
    "a rank starts again": Case(EXITED, AGAIN),
    "the next pod takes the place of one that failed": Case(
        AGAIN,
        {
            **AGAIN,
            "restartedRanks": [{"rank": 0, "n": 1, "podUID": "u7"}],
            "ranks": [{"podUID": "u7"}, {"podUID": "u1"}],
        },
    ),
    "another pod takes the place of the next one": Case(
        {**AGAIN, "restartedRanks": [{"rank": 0, "n": 1, "podUID": "u7"}]},
        {**AGAIN, "restartedRanks": [{"rank": 0, "n": 1, "podUID": "u8"}]},
        "restarts of ranks stay for their attempt",
    ),
    "a rank starts again once more": Case(
        {**AGAIN, "restartedRanks": [{"rank": 0, "n": 1, "podUID": "u7"}]},
        {**AGAIN, "restartedRanks": [{"rank": 0, "n": 2}, {"rank": 1, "n": 1}]},
    ),
    "restarts of a rank go down": Case(
        {**AGAIN, "restartedRanks": [{"rank": 0, "n": 2}]}, AGAIN, "restarts of ranks stay for their attempt"
    ),
    "restarts of ranks go": Case(AGAIN, EXITED, "restarts of ranks stay for their attempt"),
    "the next attempt clears the restarts": Case(AGAIN, NEWER),
}  # fmt: skip

SPEC_CASES: dict[str, Case] = {
    "it is stopped": Case({}, {"desired": "Stopped"}),
    "it is started again": Case({"desired": "Stopped"}, {"desired": "Running"}, "cannot be started again"),
    "its priority changes": Case({}, {"priority": 7}),
    "it is held": Case({}, {"hold": True}),
    "its kind changes": Case({}, {"kind": "shell"}, "kind cannot be changed"),
    "its pool changes": Case({}, {"pool": "other"}, "pool cannot be changed"),
    "it becomes preemptible": Case({"preemptible": False}, {"preemptible": True}, "preemptible cannot be changed"),
    "its restarts change": Case({"maxRestarts": 1}, {"maxRestarts": 2}, "maxRestarts cannot be changed"),
    "its ranks start again one by one": Case({"restart": "gang"}, {"restart": "rank"}, "restart cannot be changed"),
    "its rules on failures change": Case(
        {"failurePolicy": {"rules": [{"action": "fail", "exitCodes": [42, "64-78"]}]}},
        {"failurePolicy": {"rules": [{"action": "retry", "exitCodes": [42, "64-78"]}]}},
        "failurePolicy cannot be changed",
    ),
    "it gets a success policy": Case(
        {}, {"successPolicy": {"targets": [{"role": "worker", "count": 1}]}}, "successPolicy cannot be changed"
    ),
    "it gets a job": Case({}, {"job": "j"}, "job cannot be changed"),
    "its grace changes": Case({}, {"preemptionGrace": "5m"}, "preemptionGrace cannot be changed"),
    "its hash changes": Case({"requestHash": "a"}, {"requestHash": "b"}, "requestHash cannot be changed"),
    "its minimum changes": Case({}, {"minAvailable": 1}, "minAvailable cannot be changed"),
    "its template goes": Case({}, {"template": None}, "template can only be changed while it is held"),
    "its roles change": Case({"ranks": [{"count": 2}]}, {"ranks": [{"count": 3}]}, "ranks can only be changed while"),
    "its roles change while it is held": Case({"hold": True, "ranks": [{"count": 2}]}, {"ranks": [{"count": 3}]}),
    "its files change": Case(
        {"files": [{"path": "a", "content": "1"}]}, {"files": [{"path": "a", "content": "2"}]}, "files cannot be"
    ),
    "its environment changes": Case({"env": {"A": "1"}}, {"env": {"A": "2"}}, "env can only be changed while"),
    "its environment changes while it is held": Case({"hold": True, "env": {"A": "1"}}, {"env": {"A": "2"}}),
    "an empty environment comes": Case({}, {"env": {}}),
    "its ports change": Case({}, {"ports": [{"name": "http", "port": 80}]}, "ports cannot be changed"),
    "a signal rises": Case(SIGNALLED, {"signals": {"preempt": {"n": 3}}}),
    "a signal goes down": Case(SIGNALLED, {"signals": {"preempt": {"n": 1}}}, "signals.preempt.n only rises"),
    "an acknowledgement goes": Case(SIGNALLED, {"signals": {"acks": {"0": None}}}, "an acknowledgement cannot be"),
    "an acknowledgement goes down": Case(SIGNALLED, {"signals": {"acks": {"0": 1}}}, "an acknowledgement cannot be"),
    "signals go": Case(SIGNALLED, {"signals": None}, "signals cannot be removed"),
    "signals go back an attempt": Case(
        {"signals": {"attempt": 2}}, {"signals": {"attempt": 1}}, "nor go back to an earlier attempt"
    ),
    "the next attempt begins anew": Case(SIGNALLED, {"signals": {"attempt": 2, "preempt": None, "acks": None}}),
}  # fmt: skip


def _check(answer: Reply, words: str) -> None:
    if not words:
        assert answer.code == 200, answer.message
        return
    assert (answer.code, answer.reason) == (422, "Invalid"), answer.body
    assert words in answer.message


@pytest.mark.parametrize("name", sorted(STATUS_CASES))
async def test_status_rules(kube: KubeHttp, home: NamespacePaths, name: str) -> None:
    """A status never loses what was observed."""
    case = STATUS_CASES[name]
    known = await _launch(kube, home, status=dict(case.before))
    answer = await kube.put(_path(home, "a", "status"), {**known.body, "status": dict(case.now)})
    _check(answer, case.words)


@pytest.mark.parametrize("name", sorted(SPEC_CASES))
async def test_spec_rules(kube: KubeHttp, home: NamespacePaths, name: str) -> None:
    """Fields of a running allocation cannot change; fields that order the queue can."""
    case = SPEC_CASES[name]
    await _launch(kube, home, dict(case.before))
    _check(await kube.patch(_path(home, "a"), {"spec": dict(case.now)}), case.words)


async def test_release_after_a_cancel_is_refused(kube: KubeHttp, home: NamespacePaths) -> None:
    """A cancel that was stored before the release keeps the containers from starting; after the release it does not."""
    known = await _launch(kube, home, {"desired": "Stopped"}, {**LIVE, "admission": ADMISSION})
    wanted = {**LIVE, "admission": ADMISSION, "release": RELEASE}
    answer = await kube.put(_path(home, "a", "status"), {**known.body, "status": wanted})
    _check(answer, "no release: the allocation is stopped")


async def test_the_restart_of_a_rank_after_a_cancel_is_refused(kube: KubeHttp, home: NamespacePaths) -> None:
    """After a cancel the pod worker can name no further pod for the rank; pods that were named before stay."""
    named = {**AGAIN, "restartedRanks": [{"rank": 0, "n": 1}, {"rank": 1, "n": 1, "podUID": "u8"}]}
    known = await _launch(kube, home, {"desired": "Stopped"}, AGAIN)
    answer = await kube.put(_path(home, "a", "status"), {**known.body, "status": named})
    _check(answer, "no rank starts again: the allocation is stopped")


async def test_cancel_after_the_restart_of_a_rank_passes(kube: KubeHttp, home: NamespacePaths) -> None:
    """The status of the restart may be written unchanged."""
    named = {**EXITED, "restartedRanks": [{"rank": 1, "n": 1, "podUID": "u8"}]}
    await _launch(kube, home, status=named)
    stopped = await kube.patch(_path(home, "a"), {"spec": {"desired": "Stopped"}})
    assert stopped.code == 200, stopped.message
    await _observe(kube, home, stopped, {**named, "phase": "Terminating"})


async def test_cancel_after_the_release_passes(kube: KubeHttp, home: NamespacePaths) -> None:
    """After a release the end may be observed in spite of a cancel."""
    await _launch(kube, home, status={**LIVE, "release": RELEASE})
    stopped = await kube.patch(_path(home, "a"), {"spec": {"desired": "Stopped"}})
    assert stopped.code == 200, stopped.message
    await _observe(kube, home, stopped, {**LIVE, "release": RELEASE, "phase": "Terminating"})


async def test_queue_is_fixed_by_the_admission(kube: KubeHttp, home: NamespacePaths) -> None:
    """The queue may change before the admission, and not after it."""
    known = await _launch(kube, home, {"queue": "one"})
    moved = await kube.patch(_path(home, "a"), {"spec": {"queue": "two"}})
    assert (moved.code, known.code) == (200, 201)
    await _observe(kube, home, moved, {**LIVE, "admission": ADMISSION})
    _check(await kube.patch(_path(home, "a"), {"spec": {"queue": "three"}}), "queue cannot be changed once")


async def test_status_begins_with_its_defaults(kube: KubeHttp, home: NamespacePaths) -> None:
    """A new allocation has a phase, so that field selectors find it."""
    made = await _launch(kube, home)
    wanted = {"phase": "Pending", "seq": 0, "attempt": 1}
    assert {name: made.body["status"][name] for name in wanted} == wanted
    found = await kube.get(_path(home), fieldSelector="status.phase=Pending,spec.pool=default,spec.queue=default")
    assert found.names == ["a"]


async def test_status_can_not_be_removed(kube: KubeHttp, home: NamespacePaths) -> None:
    """A PUT without a status is refused or keeps the old one; the status is never removed."""
    known = await _launch(kube, home, status=LIVE)
    bare = {name: value for name, value in known.body.items() if name != "status"}
    await kube.put(_path(home, "a", "status"), bare)
    assert (await kube.get(_path(home, "a"))).body["status"]["seq"] == LIVE["seq"]


@pytest.mark.parametrize("name", ["a" * 41, "1a", "a.b"])
async def test_names_of_allocations_are_short_labels(kube: KubeHttp, home: NamespacePaths, name: str) -> None:
    """The names of allocations become parts of other names."""
    body = {"metadata": {"name": name}, "spec": {"kind": "command", "template": TEMPLATE}}
    body |= {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation"}
    _check(await kube.post(_path(home), body), "the name must have at most 40 characters")


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([{"name": "a"}, {"name": "a"}], "each role needs a name of its own"),
        ([{"count": 1, "minAvailable": 2}], "minAvailable must not be above count"),
    ],
)
async def test_roles_are_checked(kube: KubeHttp, home: NamespacePaths, ranks: list[Json], words: str) -> None:
    """Roles are checked on creation too."""
    body = {"metadata": {"name": "a"}, "spec": {"kind": "command", "template": TEMPLATE, "ranks": ranks}}
    body |= {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation"}
    _check(await kube.post(_path(home), body), words)


async def test_ledger_epoch_never_decreases(kube: KubeHttp, home: NamespacePaths) -> None:
    """Epoch and tick never decrease, and a compare-and-swap of the ledger has one winner."""
    name = home.name
    pools = f"{BASE}/resourcepools"
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ResourcePool", "metadata": {"name": name}, "spec": {}}
    made = await kube.post(pools, body)
    try:
        first = await kube.put(f"{pools}/{name}/status", {**made.body, "status": {"epoch": 2, "tick": 5}})
        assert first.code == 200, first.message
        lost = await kube.put(f"{pools}/{name}/status", {**made.body, "status": {"epoch": 3, "tick": 5}})
        assert lost.code == 409
        for status in ({"epoch": 1, "tick": 6}, {"epoch": 2, "tick": 4}):
            back = await kube.put(f"{pools}/{name}/status", {**first.body, "status": status})
            assert back.code == 422, status
    finally:
        await kube.delete(f"{pools}/{name}")


async def test_queue_is_not_its_own_parent(kube: KubeHttp, home: NamespacePaths) -> None:
    """A queue that is its own parent is refused."""
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Queue", "metadata": {"name": home.name}}
    answer = await kube.post(f"{BASE}/queues", {**body, "spec": {"pool": "default", "parent": home.name}})
    _check(answer, "parent")
