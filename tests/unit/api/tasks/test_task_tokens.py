"""The token of a task opens the help for its own allocation, as long as its attempt lasts, and nothing else."""

import io
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from slipway.api.app import ENDPOINTS, create_task_app
from slipway.api.auth.rate_limit import RateLimiter
from slipway.crd.v1alpha1 import Stop
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import NAMESPACES, PODS
from slipway.model.ids import pod_name
from slipway.model.lifecycle import Event
from slipway.model.reasons import Reason
from slipway.model.times import format_time
from slipway.runtime import log
from slipway.runtime.clock import SystemClock
from tests.support.access import served_by
from tests.support.api_world import ApiWorld

Json = dict[str, Any]


@pytest.fixture
async def tasks_client(world: ApiWorld) -> AsyncGenerator[httpx2.AsyncClient]:
    """The tasks' door, as a rank on another machine meets it."""
    transport = httpx2.ASGITransport(create_task_app(world.parts), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://slipway-api.slipway-system.svc:8090") as client:
        yield client


async def a_gang(world: ApiWorld, count: int = 2, **fields: Any) -> tuple[str, str]:
    """(name, id) of a running gang."""
    answer = await world.launch(ranks=[{"count": count}], **fields)
    await world.run(answer["name"])
    return answer["name"], answer["id"]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def ready(world: ApiWorld, id_: str, headers: dict[str, str]) -> httpx2.Response:
    return await world.http.post(f"/api/v1/allocations/{id_}/ready", headers=headers)


def token_of(world: ApiWorld, id_: str, rank: int = 0, attempt: int = 1, **options: Any) -> str:
    return world.token_of(pod_name(id_, attempt, rank), **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("through_door", [True, False])
async def test_it_opens_the_help_for_its_own_allocation(
    world: ApiWorld, tasks_client: httpx2.AsyncClient, *, through_door: bool
) -> None:
    """The token is accepted at the tasks' door and at the api, and tells which rank calls."""
    name, id_ = await a_gang(world)
    client = tasks_client if through_door else world.http
    root, headers = f"/api/v1/allocations/{id_}", bearer(token_of(world, id_, 1))
    assert (await client.post(f"{root}/ready", headers=headers)).status_code == 200
    assert (await client.get(f"{root}/rendezvous", headers=headers)).json()["size"] == 2
    await world.post(f"/allocations/{id_}/preempt")
    assert (await client.post(f"{root}/signals/preemption/ack", headers=headers)).status_code == 200
    gathered = await client.post(f"{root}/allgather", headers=headers, json={"requestId": "a", "numPeers": 1})
    assert gathered.json()["ranks"] == [1]
    signals = (await world.stored(name)).spec.signals
    assert signals is not None
    assert (signals.ready, signals.acks) == (True, {"1": 1})


async def test_a_task_calls_no_more_often_than_a_user(world: ApiWorld) -> None:
    """Each pod has the burst and the rate that a user has, so that none writes without end."""
    rates = RateLimiter(world.clock, rate_per_s=0.01, burst=3)
    world.parts = replace(world.parts, rates=rates)
    async with served_by(world.parts) as http:
        _, id_ = await a_gang(world, 2)
        path = f"/api/v1/allocations/{id_}/rendezvous"
        for rank in (0, 1):
            headers = bearer(token_of(world, id_, rank))
            answers = [(await http.get(path, headers=headers)).status_code for _ in range(4)]
            assert answers == [200, 200, 200, 429]


async def test_a_task_is_told_no_names_of_other_workspaces(world: ApiWorld, tasks_client: httpx2.AsyncClient) -> None:
    """A task gets the name of its preemptor in its own workspace; otherwise only that it is work of another one."""
    red = {"name": "red", "labels": {"slipway.dev/workspace": "true"}}
    await world.kube.create(NAMESPACES, {"metadata": red})
    for who, shown in (("red/topsecret", "work of another workspace"), ("default/mine", "default/mine")):
        name, id_ = await a_gang(world, 1, preemptible=True)
        stop = Stop(reason=Reason.PREEMPTED, requeue=True, attempt=1, at=format_time(world.clock.now()), by=who)
        await world.step(name, Event.PREEMPTING, stop=stop)
        path = f"/api/v1/allocations/{id_}/signals/preemption"
        for client in (tasks_client, world.http):
            told = (await client.get(path, headers=bearer(token_of(world, id_)))).json()
            assert (told["preempt"], told["by"]) == (True, shown)


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row.method} {row.path}")
async def test_it_opens_nothing_else(world: ApiWorld, tasks_client: httpx2.AsyncClient, row: Any) -> None:
    """Every other route refuses the token, and does not exist at the tasks' door; the help is refused for another
    allocation."""
    _, own = await a_gang(world, 1)
    _, other = await a_gang(world, 1)
    path = row.path.replace("{id}", other).replace("{rank}", "0").replace("{name}", "x")
    headers = bearer(token_of(world, own))
    answer = await world.http.request(row.method, path, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    if row.for_tasks:
        assert "which is not a rank of" in answer.json()["detail"]
        assert (await tasks_client.request(row.method, path, headers=headers)).status_code == 403
    else:
        assert "permits only the calls for its own allocation" in answer.json()["detail"]
        assert (await tasks_client.request(row.method, path, headers=headers)).status_code in (404, 405)


async def test_the_door_needs_a_token(world: ApiWorld, tasks_client: httpx2.AsyncClient) -> None:
    """A call without a token gets 401, with how to send one; the api itself serves callers without a token as
    before."""
    _, id_ = await a_gang(world)
    path = f"/api/v1/allocations/{id_}/signals/preemption"
    for headers in ({}, bearer("rubbish"), {"Authorization": "Basic dXNlcjpwdw=="}):
        answer = await tasks_client.get(path, headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "$SLIPWAY_TOKEN_FILE" in answer.json()["detail"]
        assert (await world.http.get(path, headers=headers)).status_code == 200


async def test_why_a_token_is_refused(world: ApiWorld, tasks_client: httpx2.AsyncClient) -> None:
    """A token for another audience, a forged one, one of a pod that is gone and one of no pod each get their own
    message."""
    _, id_ = await a_gang(world)
    path = f"/api/v1/allocations/{id_}/signals/preemption"

    async def refusal(token: str) -> tuple[int, str]:
        answers = [await client.get(path, headers=bearer(token)) for client in (world.http, tasks_client)]
        assert answers[0].json()["detail"] == answers[1].json()["detail"]
        return answers[0].status_code, answers[0].json()["detail"]

    good = token_of(world, id_)
    assert (await refusal(token_of(world, id_, audience="vault")))[0] == 401
    assert "for 'vault', not for 'slipway'" in (await refusal(token_of(world, id_, audience="vault")))[1]
    head, body, seal = good.split(".")
    forged = await refusal(f"{head}.{body}.{seal[::-1]}")
    assert (forged[0], "does not accept the token" in forged[1]) == (401, True)
    unbound = world.accounts.issue("default", "default", {"spec": {"audiences": ["slipway"]}})["status"]["token"]
    assert (await refusal(unbound))[0] == 403
    assert "to an account and not to a pod" in (await refusal(unbound))[1]
    gone = token_of(world, id_, 1)
    pod = pod_name(id_, 1, 1)  # pyright: ignore[reportArgumentType]
    await world.kube.patch(PODS, pod, {"metadata": {"finalizers": None}}, namespace="default")
    await world.kube.delete(PODS, pod, namespace="default", grace_s=0)
    assert (await refusal(gone))[0] == 401
    assert "invalidated" in (await refusal(gone))[1]


async def test_it_expires(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token expires also while the API server's review of it is still cached; the answer says when it expired, and
    where a new one is."""
    start = float(int(world.clock.now()))
    at = start
    reviews: list[str] = []

    def now(_clock: SystemClock) -> float:
        return at

    async def count(_verb: Verb, plural: str) -> None:
        if plural == "tokenreviews":
            reviews.append(plural)

    monkeypatch.setattr(SystemClock, "now", now)
    world.kube.before = count
    _, id_ = await a_gang(world)
    path, headers = f"/allocations/{id_}/signals/preemption", bearer(token_of(world, id_, life_s=600))
    for late in (0, 599):
        at = start + late
        assert (await world.get(path, **headers)).status_code == 200
    at = start + 600
    answer = await world.get(path, **headers)
    assert answer.status_code == 401
    assert f"has expired at {format_time(at)}; its file contains a new one" in answer.json()["detail"]
    assert "$SLIPWAY_TOKEN_FILE" in answer.json()["detail"]
    assert len(reviews) == 1


async def test_an_attempt_that_is_over(world: ApiWorld) -> None:
    """Ranks of an attempt that is over can change nothing in the next one."""
    name, id_ = await a_gang(world)
    old = bearer(token_of(world, id_))
    assert (await ready(world, id_, old)).status_code == 200
    await world.step(name, Event.RESTARTED)
    await world.run(name)
    assert (await ready(world, id_, old)).status_code in (403, 409)
    new = bearer(token_of(world, id_, attempt=2))
    assert (await ready(world, id_, new)).status_code == 200
    refused = await ready(world, id_, old)
    assert refused.status_code == 403
    assert refused.json()["detail"] == f"the token belongs to attempt 1 of {id_}, which is over; the current one is 2"


async def test_the_api_server_is_asked_seldom(world: ApiWorld) -> None:
    """A review is used for a minute; a caller without one is asked to try again while the API server is away."""
    _, id_ = await a_gang(world)
    path, headers = f"/allocations/{id_}/signals/preemption", bearer(token_of(world, id_))
    asked: list[str] = []
    is_away = False

    async def count(verb: Verb, plural: str) -> None:
        if plural == "tokenreviews":
            asked.append(plural)
            if is_away:
                raise UnavailableError("away")

    world.kube.before = count
    for _ in range(5):
        assert (await world.get(path, **headers)).status_code == 200
    assert len(asked) == 1
    is_away = True
    assert (await world.get(path, **headers)).status_code == 200
    answer = await world.get(path, **bearer(token_of(world, id_, 1)))
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)


async def test_tokens_of_other_allocations_are_refused(world: ApiWorld) -> None:
    """A proxy in front of us may send its own users' tokens along: they are not tasks."""
    claims = "eyJhdWQiOiJvYXV0aDIiLCJzdWIiOiJtZSJ9"  # {"aud": "oauth2", "sub": "me"}
    assert (await world.get("/allocations", **bearer(f"eyJhbGciOiJub25lIn0.{claims}.c2VhbA"))).status_code == 200


async def test_no_token_is_ever_written(world: ApiWorld, tasks_client: httpx2.AsyncClient) -> None:
    """No log at any level and no answer has a token, whether it is valid or not."""
    _, id_ = await a_gang(world)
    good = token_of(world, id_)
    tokens = [good, good[:-3] + "abc", token_of(world, id_, audience="vault"), "x.y.z"]
    written = io.StringIO()
    listener = logging.StreamHandler(written)
    listener.setLevel(logging.DEBUG)
    listener.setFormatter(log.JsonFormatter("api", lambda: None))
    root = logging.getLogger()
    before = root.level
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    try:
        for token in tokens:
            for client in (world.http, tasks_client):
                for method, path in (("GET", "signals/preemption"), ("POST", "ready"), ("POST", "allgather")):
                    answer = await client.request(
                        method, f"/api/v1/allocations/{id_}/{path}", headers=bearer(token), json={"data": 1}
                    )
                    written.write(answer.text + str(answer.headers))
    finally:
        root.removeHandler(listener)
        root.setLevel(before)
    text = written.getvalue()
    assert "signals/preemption" in text
    for token in tokens:
        assert token not in text
        assert token.split(".")[-1] not in text or len(token) < 10
