"""Secret values of a launch: where they are stored, that nothing else has them, and what a failure on the way leaves
behind."""

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from slipway.api.launch.secret_values import SecretValues, split
from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.errors import ControlPlaneError, DeniedError, InvalidError, StaleError, UnavailableError
from slipway.kube.resources import ALLOCATIONS, SECRETS, TEMPLATES
from slipway.model import ids
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from tests.support.api_world import COMMAND, ApiWorld

CANARY = "canary-7d1f-$(HOME)"
LAUNCH = {**COMMAND, "secretValues": {"HF_TOKEN": CANARY, "B": "2"}}


def refusing(monkeypatch: pytest.MonkeyPatch, world: ApiWorld, error: ControlPlaneError, *, times: int = 1_000) -> None:
    """Creates of Secrets fail with that error, `times` times."""
    create: Callable[..., Awaitable[Any]] = world.kube.create
    left = [times]

    async def refused(resource: Any, body: Any, **words: Any) -> Any:
        if resource is SECRETS and left[0]:
            left[0] -= 1
            raise error
        return await create(resource, body, **words)

    monkeypatch.setattr(world.kube, "create", refused)


async def test_the_values_are_in_a_secret_that_the_allocation_owns(world: ApiWorld) -> None:
    """The allocation has only the names. The Secret is deleted with it, and cannot be changed."""
    answer = await world.launch(**LAUNCH)
    stored = await world.stored(answer["name"])
    assert stored.spec.secret_variables == ["B", "HF_TOKEN"]
    [secret] = (await world.kube.list(SECRETS)).items
    uid = stored.metadata.uid
    assert (secret.metadata.name, secret.type, secret.immutable) == (ids.values_name(uid), "Opaque", True)
    assert {name: base64.b64decode(text).decode() for name, text in secret.data.items()} == LAUNCH["secretValues"]
    assert [owner.uid for owner in secret.metadata.owner_references] == [uid]
    assert secret.metadata.labels[LABEL_ALLOCATION_UID] == uid
    assert CANARY not in msgspec.json.encode(stored).decode() + str(answer)
    await world.kube.patch(ALLOCATIONS, answer["name"], {"metadata": {"finalizers": None}}, namespace="default")
    await world.kube.delete(ALLOCATIONS, answer["name"], namespace="default")
    world.core.settle()
    assert (await world.kube.list(SECRETS)).items == []


async def test_a_dry_run_shows_the_reference_and_keeps_nothing(world: ApiWorld) -> None:
    """The reference is in every role's main container and in no other."""
    template = {"spec": {"containers": [{"name": "main"}, {"name": "side", "image": "s"}]}}
    response = await world.post("/allocations?dryRun=true", {**LAUNCH, "template": template})
    assert response.status_code == 200, response.text
    assert CANARY not in response.text
    assert base64.b64encode(CANARY.encode()).decode() not in response.text
    assert (await world.kube.list(SECRETS)).items == []
    pod = next(each for each in response.json()["objects"] if each["kind"] == "Pod")
    main, side = pod["spec"]["containers"]
    [found] = [each for each in main["env"] if each["name"] == "HF_TOKEN"]
    assert found["valueFrom"]["secretKeyRef"]["key"] == "HF_TOKEN"
    assert found["valueFrom"]["secretKeyRef"]["name"].startswith(ids.VALUES_PREFIX)
    assert "HF_TOKEN" not in str(side)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"secretValues": CANARY}, "/secretValues"),
        ({"secretValues": {"A": 7}}, "/secretValues/A"),
        ({"secretValues": {"A": {"x": CANARY}}}, "/secretValues/A"),
        ({"secretValues": {"A B": CANARY}}, "/secretValues/A B"),
        ({"secretValues": {"SLIPWAY_X": CANARY}}, "/secretValues/SLIPWAY_X"),
        ({"secretValues": {"..": CANARY}}, "/secretValues/.."),
        ({"secretValues": {"A": f"{CANARY}\0"}}, "/secretValues/A"),
        ({"secretValues": {"A": CANARY * 5_000}}, "/secretValues/A"),
        ({"secretValues": {f"A{n}": CANARY * 3_000 for n in range(10)}}, "/secretValues"),
        ({"secretValues": {f"A{n}": CANARY for n in range(600)}}, "/secretValues"),
        ({"secretValues": {"A": CANARY}, "env": {"A": "1"}}, "/secretValues/A"),
        ({"secretValues": {"A": CANARY}, "secrets": {"A": "hub/a"}}, "/secretValues/A"),
        ({"secretVariables": ["A"]}, "/secretVariables"),
        ({"secretValue": {"A": CANARY}}, "/secretValue"),
    ],
)
async def test_what_cannot_be_is_refused_without_a_value(world: ApiWorld, body: dict[str, Any], pointer: str) -> None:
    """The error has the field, and nothing is created."""
    response = await world.post("/allocations", {**COMMAND, **body})
    assert response.status_code == 422, response.text
    assert pointer in [error["pointer"] for error in response.json()["errors"]]
    assert "canary" not in response.text
    assert await world.names() == []


async def test_one_key_launches_once_whatever_the_values(world: ApiWorld) -> None:
    """The first values count: a repeated request is recognised by its names, because a hash of values could be
    guessed."""
    headers = {"idempotency-key": "k1"}
    first = await world.launch(headers=headers, **LAUNCH)
    other = {**LAUNCH, "secretValues": {"HF_TOKEN": "another", "B": "2"}}
    assert (await world.launch(headers=headers, **other))["id"] == first["id"]
    [secret] = (await world.kube.list(SECRETS)).items
    assert base64.b64decode(secret.data["HF_TOKEN"]).decode() == CANARY
    more = {**LAUNCH, "secretValues": {"HF_TOKEN": CANARY}}
    refused = await world.post("/allocations", more, **headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency-key-reused"), refused.text


async def test_the_same_request_completes_what_a_crash_left(world: ApiWorld) -> None:
    """A process ended between both creates: the allocation exists, and its Secret does not."""
    headers = {"idempotency-key": "k1"}
    first = await world.launch(headers=headers, **LAUNCH)
    [secret] = (await world.kube.list(SECRETS)).items
    await world.kube.delete(SECRETS, secret.metadata.name, namespace="default")
    assert (await world.launch(headers=headers, **LAUNCH))["id"] == first["id"]
    [again] = (await world.kube.list(SECRETS)).items
    assert (again.metadata.name, again.data) == (secret.metadata.name, secret.data)


async def test_what_has_ended_gets_no_secret_again(world: ApiWorld) -> None:
    """Nothing would delete such a Secret before its allocation is deleted."""
    headers = {"idempotency-key": "k1"}
    first = await world.launch(headers=headers, **LAUNCH)
    [secret] = (await world.kube.list(SECRETS)).items
    await world.step(first["name"], Event.TERMINATED, result=Result.CANCELED)
    await world.kube.delete(SECRETS, secret.metadata.name, namespace="default")
    await world.launch(headers=headers, **LAUNCH)
    assert (await world.kube.list(SECRETS)).items == []


@pytest.mark.parametrize("error", [UnavailableError("away"), StaleError("counted at the same time")])
async def test_a_create_that_fails_for_a_moment_is_repeated(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch, error: ControlPlaneError
) -> None:
    """The launch succeeds."""
    refusing(monkeypatch, world, error, times=1)
    await world.launch(**LAUNCH)
    assert len((await world.kube.list(SECRETS)).items) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DeniedError(f"a webhook denied {CANARY} or {base64.b64encode(CANARY.encode()).decode()}"), 502),
        (InvalidError(f"Secret is invalid: {CANARY}"), 422),
        (UnavailableError("away"), 503),
    ],
)
async def test_a_secret_that_is_refused_takes_the_launch_back(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Any, status: int
) -> None:
    """The allocation is being deleted, the answer says so, and neither it nor a log repeats the value."""
    refusing(monkeypatch, world, error)
    response = await world.post("/allocations", LAUNCH)
    assert response.status_code == status, response.text
    assert "the secret values of the launch could not be stored" in response.text
    assert "nothing was launched" in response.text
    [left] = (await world.kube.list(ALLOCATIONS)).items
    assert left.metadata.deletion_timestamp is not None
    for text in (response.text, caplog.text):
        assert "canary" not in text
        assert base64.b64encode(CANARY.encode()).decode() not in text


@pytest.mark.parametrize("body", [{"secretValues": {"A": "x"}}, {"secretVariables": ["A"]}])
async def test_a_template_has_no_secret_values(world: ApiWorld, body: dict[str, Any]) -> None:
    """The API refuses such a template, and a launch with one that was applied by hand is refused."""
    response = await world.post("/templates", {"name": "t", "body": body})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == f"/body/{next(iter(body))}"
    meta = {"name": "t", "namespace": "default"}
    await world.kube.create(TEMPLATES, {"metadata": meta, "spec": {"body": body}})
    refused = await world.post("/allocations", {**COMMAND, "template": "t"})
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["pointer"] == f"/{next(iter(body))}"
    assert await world.names() == []


async def test_a_variable_of_a_template_does_not_replace_a_secret_value(world: ApiWorld) -> None:
    """The launch is refused, as where the launch itself names both; a change of it is refused too."""
    await world.post("/templates", {"name": "t", "body": {"env": {"HF_TOKEN": "1"}}})
    response = await world.post("/allocations", {**LAUNCH, "template": "t"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/secretValues/HF_TOKEN"
    held = await world.launch(**LAUNCH, hold=True)
    change = await world.http.patch(f"/api/v1/allocations/{held['id']}", json={"env": {"HF_TOKEN": "1"}})
    assert change.status_code == 422
    assert change.json()["errors"][0]["pointer"] == "/env/HF_TOKEN"


def test_the_values_are_not_printed() -> None:
    """The values are not printed, not even with a struct that contains them."""
    body, values = split({**LAUNCH})
    assert "secretValues" not in body
    assert CANARY not in repr(values) + str(body)
    assert values.without(f"<{CANARY}> 2") == "<***> 2"
    assert not SecretValues()
