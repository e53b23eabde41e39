"""The REST surface under schemathesis: every operation of the OpenAPI document, against a real api process.

Owns the tested system (a stack with allocations in every phase and objects of every kind), the names in paths, and the
definition of a finding: a 5xx, an answer that is not in the document, one that takes too long, a process that grows or
dies; and a call that is not refused without a token, or with a viewer's token where the table of permissions requires
more. A request that is valid by the document and refused for its meaning is no finding: a schema cannot state that a
queue exists.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx2
import msgspec
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.specs.openapi import checks

from slipway.api.auth.principal import Role
from slipway.api.auth.route_rules import PermissionScope, rule_of
from slipway.runtime.clock import SystemClock
from tests.support.access import a_token
from tests.support.local_stack import RunningStack, running_stack
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

Json = dict[str, Any]
CALL_S = 15.0
"""Seconds that no answer may take, including the first byte of a stream."""
KNOWN = 0.7
"""The share of path parameters that name an existing object."""
GROWTH_MIB_MAX = 24.0
FINDINGS_MAX = 5
"""The most findings of one operation."""
LAST = ("kill", "terminate", "preempt", "forget", "DELETE")
"""The operations that end something run last."""
_accepts: Any = vars(checks)["positive_data_acceptance"]
STREAMS = ("/events", "/logs")


class OperationAnswers(msgspec.Struct, kw_only=True):
    """The answers of one operation."""

    label: str
    cases: int = 0
    statuses: Counter[int] = msgspec.field(default_factory=Counter[int])
    lesser: int = 0
    """calls of the same cases with too few rights: all were refused"""
    slowest_s: float = 0.0
    findings: list[str] = []


class Report(msgspec.Struct, kw_only=True):
    """The findings of a run. `rss_mib`: the memory of the api after each round."""

    operations: dict[str, OperationAnswers] = {}
    rss_mib: list[float] = []

    @property
    def findings(self) -> list[str]:
        """All findings."""
        found = [f"{each.label}: {what}" for each in self.operations.values() for what in each.findings]
        grown = self.rss_mib[-1] - self.rss_mib[0] if self.rss_mib else 0.0
        return [*found, f"the api grew by {grown:.0f} MiB: {self.rss_mib}"] if grown > GROWTH_MIB_MAX else found


@contextmanager
def running_target(folder: Path) -> Generator[tuple[RunningStack, dict[str, list[str]]]]:
    """A stack with objects of every kind, and {parameter: existing names}.

    Random launches never start, because the only node accepts no new pods.
    """
    with running_stack(folder, nodes=1, cpus=8) as stack:
        sleeps = {"image": "local", "command": ["sleep", "600"], "ranks": [{"count": 2, "resources": {"cpu": "1"}}]}
        ids = [
            stack.launch({"kind": "training", "preemptible": True, "maxRestarts": 3, **sleeps}),
            stack.launch({"kind": "shell", **sleeps}),
            stack.launch({"kind": "command", "image": "local", "command": ["true"]}),
            stack.launch({"kind": "command", "image": "local", "command": ["false"]}),
        ]
        for id_, phase in zip(ids, ("Running", "Running", "Terminated", "Terminated"), strict=True):
            stack.wait_for(id_, phase)
        node = stack.ask(lambda api: api.get("/nodes"))["items"][0]["name"]
        stack.ask(lambda api: api.post(f"/nodes/{node}/disable"))
        ids += [stack.launch({"kind": kind, "image": "local"}) for kind in ("notebook", "tensorboard")]
        stack.ask(lambda api: api.post("/jobs", {"name": "sweep"}))
        stack.ask(lambda api: api.call("PUT", "/templates/base", body={"body": {"image": "local"}}))
        stack.ask(lambda api: api.post("/workspaces", {"name": "victim"}))
        names = ["default", "sweep", "base", "victim"]
        yield stack, {"id": ids, "pool": ["default"], "name": names, "rank": ["0", "1"]}


class KnownNames(NamedTuple):
    """The existing names, the credentials of every call, and those of a viewer."""

    known: dict[str, list[str]]
    headers: dict[str, str]
    viewer: dict[str, str]
    lesser: httpx2.Client
    """for calls with too few rights"""


def fuzz(
    stack: RunningStack,
    known: dict[str, list[str]],
    *,
    cases: int,
    rounds: int,
    start: int,
    tell: Callable[[OperationAnswers], None] = lambda _answered: None,
) -> Report:
    """Call every operation `rounds` times with `cases` cases each; an equal `start` draws equal cases.

    The firehose is omitted: it only streams.
    """
    schema: Any = schemathesis.openapi.from_url(f"{stack.url}/openapi.json")
    operations = _ordered(found.ok() for found in schema.exclude(path="/api/v1/events").get_all_operations())
    report, pid = Report(), stack.pid("api")
    laid = KnownNames(
        known, stack.headers, a_viewer(stack), httpx2.Client(verify=NO_TLS, trust_env=False, timeout=CALL_S)
    )
    for round_ in range(rounds):
        for operation in operations:
            answered = report.operations.setdefault(operation.label, OperationAnswers(label=operation.label))
            _play(operation, laid, answered, cases=cases, start=start + round_)
            tell(answered)
            if stack.pid("api") != pid:
                answered.findings.append(f"the api died: {stack.log_tail('api')[-2000:]}")
                pid = stack.pid("api")
        _tidy(stack, keep=set(known["id"]))
        report.rss_mib.append(round(_rss_mib(pid), 1))
    laid.lesser.close()
    return report


def a_viewer(stack: RunningStack) -> dict[str, str]:
    """The headers of a user who may read the workspace `default`, and nothing else."""
    token = a_token(stack.folder / "tokens", "viewer", SystemClock().now(), {"default": "viewer"})
    headers = {"Authorization": f"Bearer {token}"}

    def is_known() -> bool:
        url = f"{stack.url}/api/v1/me"
        return httpx2.get(url, headers=headers, verify=NO_TLS, trust_env=False).status_code == 200

    wait_until(is_known, "the token of the viewer is known")
    return headers


def _ordered(operations: Iterable[Any]) -> list[Any]:
    return sorted(operations, key=lambda operation: any(word in operation.label for word in LAST))


def _play(operation: Any, laid: KnownNames, answered: OperationAnswers, *, cases: int, start: int) -> None:
    chance = random.Random(f"{start}-{operation.label}")

    @seed(start)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=list[HealthCheck](HealthCheck),  # pyright: ignore[reportArgumentType] - it iterates itself
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy())
    def play(case: Any) -> None:
        if len(answered.findings) < FINDINGS_MAX:
            _call(case, laid, chance, answered)

    play()


def _call(case: Any, laid: KnownNames, chance: random.Random, answered: OperationAnswers) -> None:
    known = laid.known
    parameters: dict[str, str] = case.path_parameters or {}
    for name in parameters:
        if known.get(name) and chance.random() < KNOWN and "/nodes/" not in case.path:
            parameters[name] = chance.choice(known[name])
    if case.method == "DELETE" and "default" in parameters.values():
        return  # this would change the tested system
    if case.path.endswith(STREAMS):
        case.query = {**(case.query or {}), "follow": "false"}  # streams have their own tests; here they take time
    if case.path.endswith("/allgather"):
        case.body = _alone(case.body)
    answered.cases += 1
    _call_with_less(case, laid, answered)
    begun = time.monotonic()
    try:
        response = case.call(timeout=CALL_S, headers=laid.headers)
    except Exception as error:  # noqa: BLE001 - whatever keeps an answer from coming is a finding
        answered.findings.append(f"no answer: {error!r} to {_shown(case)}")
        return
    answered.slowest_s = max(answered.slowest_s, time.monotonic() - begun)
    answered.statuses[response.status_code] += 1
    if response.status_code >= 500:
        answered.findings.append(f"{response.status_code} {response.text[:300]} to {_shown(case)}")
        return
    try:
        case.validate_response(response, excluded_checks=[_accepts])
    except BaseExceptionGroup as found:
        answered.findings += [f"{type(each).__name__} {each} to {_shown(case)}"[:1500] for each in found.exceptions]


def _call_with_less(case: Any, laid: KnownNames, answered: OperationAnswers) -> None:
    """Make the same request without a token or, every other time if that is not enough, as a viewer. It is made
    before the allowed one."""
    name, credential, rule = "no token", dict[str, str](), rule_of(case.method, case.path)
    needs_more = rule.where not in (PermissionScope.PUBLIC, PermissionScope.KNOWN) and rule.ask.role is not Role.VIEWER
    if needs_more and answered.cases % 2:
        name, credential = "a viewer's token", laid.viewer
    sent: Json = case.as_transport_kwargs()
    own = {name: value for name, value in sent.pop("headers").items() if name.lower() != "authorization"}
    try:
        answer = laid.lesser.request(**_as_httpx(sent), headers=own | credential)
    except (httpx2.InvalidURL, httpx2.LocalProtocolError, UnicodeEncodeError):
        return  # one that the client cannot send
    except httpx2.HTTPError as error:
        answered.findings.append(f"no answer with {name}: {error!r} to {_shown(case)}")
        return
    answered.lesser += 1
    if not _is_refused(answer, is_known=bool(credential)):
        answered.findings.append(f"{answer.status_code} with {name}: {answer.text[:200]} to {_shown(case)}")


def _as_httpx(sent: Json) -> Json:
    """The arguments that schemathesis would pass to requests."""
    known = {"data": "content"} if isinstance(sent.get("data"), str | bytes) else {}
    return {known.get(name, name): value for name, value in sent.items() if name not in ("cookies", "timeout")}


def _is_refused(answer: httpx2.Response, *, is_known: bool) -> bool:
    """Whether the answer's status is a refusal; a batch answers 200, and refuses each of its items."""
    if not is_known:
        # Other than 401: the path or the method is not in the document, or the request is malformed.
        return answer.status_code in (400, 401, 404, 405)
    if answer.status_code == 200 and answer.request.url.path.endswith("/batch"):
        return not any(item.get("ok", "problem" not in item) for item in answer.json().get("items", ()))
    return 400 <= answer.status_code < 500


def _alone(body: Any) -> Any:
    """Make an all-gather one of a single peer, which waits for no other."""
    return {**cast("Json", body), "numPeers": 1} if isinstance(body, dict) else body


def _shown(case: Any) -> str:
    return str(case.as_curl_command())[:600]


def _tidy(stack: RunningStack, keep: set[str]) -> None:
    """Remove random launches, so that rounds are alike."""
    listed: list[Json] = stack.ask(lambda api: api.get("/allocations", {"limit": 500}))["items"]
    for id_ in {item["id"] for item in listed} - keep:
        stack.ask(lambda api, id_=id_: api.call("DELETE", f"/allocations/{id_}"))

    def is_tidy() -> bool:
        left: list[Json] = stack.ask(lambda api: api.get("/allocations", {"limit": 500}))["items"]
        return {item["id"] for item in left} <= keep

    wait_until(is_tidy, "what was launched by chance is gone", timeout_s=120)


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
