"""Launching: what is created, and that one request, key or name makes one allocation."""

import asyncio
from typing import Any

import pytest

from slipway.api.settings import Settings
from slipway.crd.expansion import literal
from slipway.crd.hashing import key_hash
from slipway.crd.meta import (
    ANNOTATION_IDEMPOTENCY_KEY,
    ANNOTATION_REQUEST_ID,
    ANNOTATION_USER,
    TEARDOWN_FINALIZER,
)
from slipway.crd.v1alpha1 import TopologySpec
from slipway.errors import (
    ControlPlaneError,
    DeadlineError,
    DeniedError,
    ExpiredError,
    StaleError,
    UnavailableError,
)
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, NAMESPACES, RESOURCE_POOLS, TEMPLATES
from slipway.local.node.environment import expand
from slipway.model.lifecycle import Event, Kind
from slipway.pods.podspec import command_of
from tests.support.api_world import COMMAND, ApiWorld, watching
from tests.support.clock import wait_until
from tests.support.stepping import over_and_over


async def test_a_launch_is_answered_with_the_allocation(world: ApiWorld) -> None:
    """A launch gets 201 with id, links, the complete spec and the place to find it."""
    response = await world.post("/allocations", COMMAND, **{"x-slipway-user": "ada"})
    answer = response.json()
    stored = await world.stored(answer["name"])
    assert response.status_code == 201
    assert answer["id"] == f"{answer['name']}-{stored.metadata.uid[:8]}"
    assert response.headers["location"] == answer["links"]["self"] == f"/api/v1/allocations/{answer['id']}"
    assert response.headers["etag"] == f'"{stored.metadata.resource_version}"'
    assert (answer["phase"], answer["attempt"], answer["kind"], answer["user"]) == ("Pending", 1, "command", "ada")
    assert (answer["queue"], answer["pool"], answer["workspace"]) == ("default", "default", "default")
    assert answer["warnings"] == []
    assert answer["spec"]["ranks"][0]["minAvailable"] == 1
    assert (await world.get(f"/allocations/{answer['id']}")).json() == answer


async def test_the_object_carries_what_the_others_rely_on(world: ApiWorld) -> None:
    """A launched object has the finalizer, user, request id, labels, and the hashes of its idempotency key and its
    request."""
    answer = await world.launch(headers={"idempotency-key": "k1", "x-slipway-user": "ada"}, labels={"team": "x"})
    meta = (await world.stored(answer["name"])).metadata
    assert meta.finalizers == [TEARDOWN_FINALIZER]
    assert meta.annotations[ANNOTATION_USER] == "ada"
    assert meta.annotations[ANNOTATION_REQUEST_ID]
    assert meta.annotations[ANNOTATION_IDEMPOTENCY_KEY] == key_hash("k1")
    assert meta.labels["team"] == "x"
    assert (await world.stored(answer["name"])).spec.request_hash


@pytest.mark.parametrize("word", ["echo pid $$", "$(RANK)", "$$(RANK)", "$HOME", "a$", "$$$", "$(", "$()", "${X}"])
async def test_a_program_gets_its_command_as_it_was_typed(world: ApiWorld, word: str) -> None:
    """Whatever a kubelet would make of the words: the command in the pod is expanded to what was typed."""
    answer = await world.launch(command=["sh", "-c", word], args=[word])
    (container,) = (await world.stored(answer["name"])).spec.template["spec"]["containers"]
    known = {"RANK": "0", "HOME": "/", "X": "1", "": "nothing"}
    assert [expand(each, known) for each in container["command"]] == ["sh", "-c", word]
    assert [expand(each, known) for each in container["args"]] == [word]


async def test_a_pod_template_keeps_the_meaning_of_kubernetes(world: ApiWorld) -> None:
    """A command in a pod template is for the kubelet, so it is not escaped."""
    container = {"name": "main", "image": "a", "command": ["echo", "$(RANK)"], "args": ["$$"]}
    answer = await world.launch(template={"spec": {"containers": [container]}}, command=[])
    (stored,) = (await world.stored(answer["name"])).spec.template["spec"]["containers"]
    assert (stored["command"], stored["args"]) == (["echo", "$(RANK)"], ["$$"])


async def test_a_secret_is_a_variable_of_the_main_container(world: ApiWorld) -> None:
    """The secret is a variable in every role, and replaces the template's own value."""
    main = {"name": "main", "env": [{"name": "TOKEN", "value": "old"}, {"name": "B", "value": "2"}]}
    roles = [{"name": "a"}, {"name": "b", "template": {"spec": {"containers": [{"name": "main"}]}}}]
    answer = await world.launch(
        image="a", command=["c"], ranks=roles, template={"spec": {"containers": [main]}}, secrets={"TOKEN": "hub/token"}
    )
    spec = (await world.stored(answer["name"])).spec
    wanted = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert spec.template["spec"]["containers"][0]["env"] == [{"name": "B", "value": "2"}, wanted]
    assert (spec.ranks[1].template or {})["spec"]["containers"][0]["env"] == [wanted]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"secrets": {"TOKEN": "hub"}}, "/secrets/TOKEN"),
        ({"secrets": {"TOKEN": "hub/a/b"}}, "/secrets/TOKEN"),
        ({"secrets": {"TOKEN": "Hub/a"}}, "/secrets/TOKEN"),
        ({"secrets": {"TOKEN": "hub/a"}, "env": {"TOKEN": "1"}}, "/secrets/TOKEN"),
        ({"secrets": {"A B": "hub/a"}}, "/secrets/A B"),
    ],
)
async def test_a_secret_that_can_not_be_is_refused(world: ApiWorld, body: dict[str, object], pointer: str) -> None:
    """The error has the field, and nothing is created."""
    response = await world.post("/allocations", {**COMMAND, **body})
    assert response.status_code == 422
    assert pointer in [error["pointer"] for error in response.json()["errors"]]
    assert await world.names() == []


async def test_the_short_fields_land_on_the_main_container(world: ApiWorld) -> None:
    """image, command and args are for the main container of every role's template."""
    sidecar = {"name": "side", "image": "b"}
    roles = [{"name": "a"}, {"name": "b", "template": {"spec": {"containers": [sidecar, {"name": "main"}]}}}]
    answer = await world.launch(image="img:1", command=["run"], args=["--fast"], ranks=roles)
    spec = (await world.stored(answer["name"])).spec
    main = spec.template["spec"]["containers"][0]
    assert (main["name"], main["image"], main["command"], main["args"]) == ("main", "img:1", ["run"], ["--fast"])
    own = (spec.ranks[1].template or {})["spec"]["containers"]
    assert [(each["name"], each["image"]) for each in own] == [("side", "b"), ("main", "img:1")]


@pytest.mark.parametrize("kind", list(Kind))
async def test_each_kind_has_a_collection(world: ApiWorld, kind: Kind) -> None:
    """POST and GET of a collection make and list work of its kind. The body names no kind; the name made begins with
    it."""
    body = {} if kind in (Kind.NOTEBOOK, Kind.SHELL, Kind.TENSORBOARD) else {"image": "a", "command": ["x"]}
    response = await world.post(f"/{kind.value}s", body)
    answer = response.json()
    assert response.status_code == 201, response.text
    prefix = "run" if kind is Kind.TRAINING else kind.value
    assert answer["name"].startswith(f"{prefix}-")
    assert len(answer["name"]) == len(prefix) + 7
    listed = (await world.get(f"/{kind.value}s")).json()["items"]
    assert [each["id"] for each in listed] == [answer["id"]]
    other = next(each for each in Kind if each is not kind)
    assert (await world.get(f"/{other.value}s/{answer['id']}")).status_code == 404
    assert (await world.get(f"/{kind.value}s/{answer['id']}")).json()["id"] == answer["id"]


async def test_a_collection_refuses_another_kind(world: ApiWorld) -> None:
    """The collection `/notebooks` launches nothing but notebooks."""
    response = await world.post("/notebooks", {"kind": "shell"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/kind"


async def test_a_topology_of_all_roles_is_kept_and_its_key_is_a_label(world: ApiWorld) -> None:
    """The topology is stored beside that of a role; a key that no node label can have is refused by its field."""
    ranks = [{"name": "a", "topology": {"key": "rack"}}, {"name": "b"}]
    launched = await world.launch(
        kind="training", ranks=ranks, topology={"key": "example.com/block", "mode": "preferred"}
    )
    spec = (await world.stored(launched["name"])).spec
    assert spec.topology == TopologySpec(key="example.com/block", mode="preferred")
    assert [role.topology for role in spec.ranks] == [TopologySpec(key="rack"), None]
    refused = await world.post("/allocations", {"kind": "training", "ranks": ranks, "topology": {"key": "no label"}})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/topology/key"


async def test_the_same_key_and_body_launch_once(world: ApiWorld) -> None:
    """The first gets 201, the others 200 with the same id, also at the same time and after the end."""
    key = {"idempotency-key": "k1"}
    answers = await asyncio.gather(*(world.post("/allocations", COMMAND, **key) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(await world.names()) == 1
    name = answers[0].json()["name"]
    await world.step(name, Event.TERMINATED)
    again = await world.post("/allocations", dict(reversed(COMMAND.items())), **key)
    assert (again.status_code, again.json()["phase"]) == (200, "Terminated")


@pytest.mark.parametrize("change", [{"command": ["other"]}, {"kind": "training"}, {"priority": 51}])
async def test_a_key_with_another_body_is_refused(world: ApiWorld, change: dict[str, object]) -> None:
    """A body that differs in anything gets 422, and nothing is launched."""
    await world.launch(headers={"idempotency-key": "k1"})
    response = await world.post("/allocations", {**COMMAND, **change}, **{"idempotency-key": "k1"})
    assert response.status_code == 422
    assert response.json()["code"] == "idempotency-key-reused"
    assert len(await world.names()) == 1


async def test_keys_of_different_users_do_not_meet(world: ApiWorld) -> None:
    """A key is per workspace and user."""
    one = await world.launch(headers={"idempotency-key": "k", "x-slipway-user": "ada"})
    two = await world.launch(headers={"idempotency-key": "k", "x-slipway-user": "bob"})
    assert one["id"] != two["id"]


async def test_a_key_with_a_name_uses_the_name(world: ApiWorld) -> None:
    """The key's hash decides whether a second launch with the name is a repetition."""
    one = await world.launch(headers={"idempotency-key": "k"}, name="llm")
    two = await world.launch(headers={"idempotency-key": "k"}, name="llm")
    assert one["name"] == "llm"
    assert one["id"] == two["id"]
    for key in ({"idempotency-key": "other"}, {"idempotency-key": "k", "x-slipway-user": "bob"}):
        foreign = await world.post("/allocations", {**COMMAND, "name": "llm"}, **key)
        assert (foreign.status_code, foreign.json()["code"]) == (409, "already-exists")


async def test_a_key_that_comes_again_with_another_name_is_refused(world: ApiWorld) -> None:
    """The launch gets 422, which names the field: a key launches once, whatever it is called."""
    await world.launch(headers={"idempotency-key": "k"}, name="llm")
    response = await world.post("/allocations", {**COMMAND, "name": "other"}, **{"idempotency-key": "k"})
    assert (response.status_code, response.json()["code"]) == (422, "idempotency-key-reused")
    assert [error["pointer"] for error in response.json()["errors"]] == ["/name"]
    assert await world.names() == ["llm"]
    elsewhere = await world.launch(headers={"idempotency-key": "k", "x-slipway-user": "bob"}, name="other")
    assert elsewhere["name"] == "other"


async def test_a_taken_name_is_a_conflict(world: ApiWorld) -> None:
    """Without a key the api cannot tell a repetition from a second launch."""
    await world.launch(name="llm")
    response = await world.post("/allocations", {**COMMAND, "name": "llm"})
    assert (response.status_code, response.json()["code"]) == (409, "already-exists")


async def test_a_name_that_is_being_deleted_is_a_conflict_for_now(world: ApiWorld) -> None:
    """The launch gets 409 with Retry-After, because the finalizer still holds the old object."""
    answer = await world.launch(headers={"idempotency-key": "k"})
    await world.kube.delete(ALLOCATIONS, answer["name"], namespace="default")
    response = await world.post("/allocations", COMMAND, **{"idempotency-key": "k"})
    assert (response.status_code, response.json()["code"]) == (409, "terminating")
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("error", [DeadlineError("no answer"), UnavailableError("reset")])
async def test_a_create_whose_answer_was_lost_is_recognised(world: ApiWorld, error: Exception) -> None:
    """The repeated create finds its own object, and the answer is 201 with it."""
    lost: list[Verb] = []

    async def lose_first(verb: Verb, plural: str) -> None:
        if verb is Verb.CREATE and plural == "allocations" and not lost:
            lost.append(verb)
            raise error

    world.kube.after = lose_first
    response = await world.post("/allocations", {**COMMAND, "name": "llm"})
    assert (response.status_code, lost) == (201, [Verb.CREATE])
    assert await world.names() == ["llm"]


async def test_a_replay_needs_nothing_that_has_gone_since(world: ApiWorld) -> None:
    """The template was deleted: the same request still gets its allocation."""
    template = {"metadata": {"name": "base", "namespace": "default"}, "spec": {"body": COMMAND}}
    await world.kube.create(TEMPLATES, template)
    body = {"template": "base"}
    first = await world.post("/allocations", body, **{"idempotency-key": "k"})
    await world.kube.delete(TEMPLATES, "base", namespace="default")
    again = await world.post("/allocations", body, **{"idempotency-key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]


async def test_a_template_lies_under_the_request(world: ApiWorld) -> None:
    """Objects are merged, the rest is replaced; a null removes the value of the template."""
    body = {"image": "base:1", "command": ["a", "b"], "env": {"A": "1", "B": "2"}, "priority": 70, "idleTimeout": "1h"}
    created = await world.post("/templates", {"name": "base", "body": body})
    assert created.status_code == 201, created.text
    request = {"kind": "training", "template": "base", "command": ["c"], "env": {"B": "3"}, "idleTimeout": None}
    response = await world.post("/allocations", request)
    spec = response.json()["spec"]
    main = spec["template"]["spec"]["containers"][0]
    assert (main["image"], main["command"]) == ("base:1", ["c"])
    assert spec["env"] == {"A": "1", "B": "3"}
    assert spec["priority"] == 70
    assert "idleTimeout" not in spec


async def test_a_dry_run_launches_nothing(world: ApiWorld) -> None:
    """The answer has the complete spec and the warnings; the API server has checked the spec too."""
    response = await world.http.post("/api/v1/allocations?dryRun=true", json={**COMMAND, "maxRuntime": "1s"})
    answer = response.json()
    assert response.status_code == 200
    assert answer["dryRun"] is True
    assert answer["spec"]["ranks"][0]["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}
    assert answer["requests"] == [{"role": "worker", "count": 1, "requests": {"cpu": "100m", "memory": "256Mi"}}]
    assert await world.names() == []


async def test_a_launch_is_announced_after_it_committed(world: ApiWorld) -> None:
    """The event `requested` is in its stream, and the scheduler's bell was rung."""
    answer = await world.launch()
    await world.parts.announcer.flush()
    stored = await world.streams.events.read(answer["id"])
    assert [(each.event.seq, each.event.type) for each in stored] == [(1, Event.REQUESTED)]
    assert (await world.streams.wake.wait("0-0", timeout_s=0)).reasons == ("launch",)


async def test_without_redis_everything_is_launched(world: ApiWorld) -> None:
    """A launch never waits for the streams."""
    world.server.absent = True
    answer = await world.launch()
    await world.parts.announcer.flush()
    assert await world.names() == [answer["name"]]


async def test_the_publisher_recovers_after_an_outage(world: ApiWorld) -> None:
    """The launches of the outage are lost to it; later ones are announced."""
    announcer = world.parts.announcer
    world.server.absent = True
    running = asyncio.ensure_future(over_and_over(announcer.step))
    try:
        await world.launch()
        await wait_until(lambda: announcer.is_idle, "the first launch to be given up")
        world.server.absent = False
        later = await world.launch()
        await wait_until(lambda: announcer.is_idle, "the second launch to be announced")
        assert len(await world.streams.events.read(later["id"])) == 1
    finally:
        running.cancel()
        await wait_until(running.done, "the announcer to end")


async def test_a_gang_larger_than_the_pool_is_taken_with_a_warning(world: ApiWorld) -> None:
    """Waiting may help, because nodes may be added."""
    whole = await world.launch(ranks=[{"count": 5, "resources": {"cpu": 4}}])
    one = await world.launch(ranks=[{"resources": {"nvidia.com/gpu": 3}}])
    fits = await world.launch(ranks=[{"count": 4, "resources": {"cpu": 4}}])
    assert "needs 20 cpu at once and the whole pool default has 16" in whole["warnings"][0]
    assert "no node of pool default can hold a rank of role worker: it asks for 3 nvidia.com/gpu" in one["warnings"][0]
    assert fits["warnings"] == []


@pytest.mark.parametrize("kind", [UnavailableError, ExpiredError, DeniedError])
async def test_a_failed_read_for_a_warning_does_not_block_a_launch(kind: type[ControlPlaneError]) -> None:
    """The API server may answer the request for the nodes with any error, from the start of the process on."""
    world = ApiWorld(Settings())
    await world.furnish()

    async def no_nodes(_verb: Verb, plural: str) -> None:
        if plural == "nodes":
            raise kind("not now")

    world.kube.before = no_nodes
    async with world.http, watching(world.parts):
        await wait_until(lambda: world.parts.nodes.is_away, "the nodes to be asked for")
        assert (await world.launch(ranks=[{"count": 5, "resources": {"cpu": 4}}]))["warnings"] == []


@pytest.mark.parametrize(
    ("labels", "detail"), [(None, "no namespace elsewhere"), ({}, "kubectl label namespace elsewhere")]
)
async def test_only_workspaces_are_launched_into(world: ApiWorld, labels: dict[str, str] | None, detail: str) -> None:
    """For a namespace that is missing, or is no workspace, the error has the next step."""
    if labels is not None:
        await world.kube.create(NAMESPACES, {"metadata": {"name": "elsewhere", "labels": labels}})
    response = await world.post("/allocations", {**COMMAND, "workspace": "elsewhere"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/workspace"
    assert detail in response.json()["errors"][0]["detail"]


async def test_an_unknown_pool_names_those_there_are(world: ApiWorld) -> None:
    """In an unknown pool no scheduler would ever explain why the allocation waits."""
    response = await world.post("/allocations", {**COMMAND, "pool": "gpu"})
    assert response.status_code == 422
    assert response.json()["errors"] == [{"pointer": "/pool", "detail": "there is no pool gpu; there are: default"}]


async def test_a_create_that_lost_a_race_is_made_again(world: ApiWorld) -> None:
    """The API server answers a create with Conflict when a quota was counted at the same time: nothing was made."""
    refused: list[str] = []

    async def racing(verb: Verb, plural: str) -> None:
        if verb is Verb.CREATE and not refused:
            refused.append(plural)
            raise StaleError("the quota has been modified")

    world.kube.before = racing
    response = await world.post("/allocations", COMMAND)
    assert (response.status_code, refused) == (201, ["allocations"])


async def test_an_unreachable_cluster_is_503_at_once(world: ApiWorld) -> None:
    """Launches and reads get 503 with Retry-After."""

    async def away(_verb: Verb, _plural: str) -> None:
        raise UnavailableError("connection refused")

    world.kube.before = away
    async with asyncio.timeout(3):
        for response in (await world.post("/allocations", COMMAND), await world.get("/allocations")):
            assert (response.status_code, response.json()["code"]) == (503, "unavailable")
            assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"secrets": {"KEY": "team/key"}}, "/secrets/KEY"),
        ({"template": {"spec": {"imagePullSecrets": [{"name": "team"}]}}}, "/template/spec/imagePullSecrets/0/name"),
        (
            {"template": {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "team"}}]}}},
            "/template/spec/volumes/0/secret/secretName",
        ),
    ],
)
@pytest.mark.parametrize(("released", "is_fine"), [(None, True), ("", False), ("other", False), ("other, te*", True)])
async def test_a_secret_is_one_that_the_workspace_releases(
    world: ApiWorld, body: dict[str, Any], at: str, released: str | None, is_fine: bool
) -> None:
    """Without the annotation all Secrets may be used. Otherwise the refusal points at the field of the body, and says
    what releases it."""
    await world.kube.patch(NAMESPACES, "default", {"metadata": {"annotations": {"slipway.dev/secrets": released}}})
    answer = await world.post("/allocations", {**COMMAND, **body})
    assert answer.status_code == (201 if is_fine else 422), answer.text
    if not is_fine:
        [error] = answer.json()["errors"]
        assert error["pointer"] == at
        wanted = ",".join([*filter(None, [released]), "team"])
        assert f"kubectl annotate --overwrite namespace WORKSPACE slipway.dev/secrets={wanted}" in error["detail"]


@pytest.mark.parametrize("allowed", ["", "other", "other, read*"])
async def test_a_service_account_is_one_that_the_workspace_allows(world: ApiWorld, allowed: str) -> None:
    """Any other account is refused at its field, with the annotation that would allow it; the stored spec has the
    allowed one."""
    await world.kube.patch(
        NAMESPACES, "default", {"metadata": {"annotations": {"slipway.dev/service-accounts": allowed}}}
    )
    template = {"spec": {"serviceAccountName": "reader", "containers": [{"name": "main"}]}}
    answer = await world.post("/allocations", {**COMMAND, "name": "reads", "template": template})
    if allowed.endswith("*"):
        assert answer.status_code == 201, answer.text
        assert (await world.stored("reads")).spec.template["spec"]["serviceAccountName"] == "reader"
        return
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["pointer"] == "/template/spec/serviceAccountName"
    wanted = ",".join([*filter(None, [allowed]), "reader"])
    assert f"kubectl annotate --overwrite namespace WORKSPACE slipway.dev/service-accounts={wanted}" in error["detail"]


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"image": "evil/x"}, "/image"),
        (
            {"template": {"spec": {"containers": [{"name": "main", "image": "evil/x"}]}}},
            "/template/spec/containers/0/image",
        ),
        (
            {"ranks": [{"name": "a", "template": {"spec": {"containers": [{"name": "main", "image": "evil/x"}]}}}]},
            "/ranks/0/template/spec/containers/0/image",
        ),
    ],
)
async def test_an_image_is_one_that_the_pool_allows(world: ApiWorld, body: dict[str, Any], at: str) -> None:
    """Any other image is refused at the field where the client wrote it."""
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"allowedImages": ["python", "reg.example/team"]}})
    taken = await world.post("/allocations", {**COMMAND, "image": "reg.example/team/app:1"})
    assert taken.status_code == 201, taken.text
    plain = {name: value for name, value in COMMAND.items() if name != "image"}
    refused = await world.post("/allocations", {**plain, **body})
    [error] = refused.json()["errors"]
    assert (refused.status_code, error["pointer"]) == (422, at)
    assert "pool default does not allow the image 'evil/x'; it allows python, reg.example/team" in error["detail"]


def contexts_of(spec: Any) -> list[Any]:
    """The securityContexts of the pods of a launch: (user, group, group of volumes, other groups) each."""
    templates = [spec.template, *(role.template for role in spec.ranks if role.template)]
    found = [template["spec"]["securityContext"] for template in templates]
    names = ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")
    return [tuple(each.get(name) for name in names) for each in found]


async def test_a_launch_says_as_whom_it_runs(world: ApiWorld) -> None:
    """Each field comes from the request, else from the workspace, else from the pool; null removes the workspace's
    value."""
    launched = 0

    async def ran(**body: Any) -> Any:
        nonlocal launched
        launched += 1
        answer = await world.post("/allocations", {**COMMAND, "name": f"who-{launched}", **body})
        assert answer.status_code == 201, answer.text
        return contexts_of((await world.stored(f"who-{launched}")).spec)

    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"runAs": {"user": 10, "group": 11}}})
    assert await ran() == [(10, 11, 1000, None)]
    changed = await world.http.patch("/api/v1/workspaces/default", json={"runAs": {"user": 20, "groups": [22]}})
    assert changed.status_code == 200, changed.text
    assert await ran() == [(20, 11, 1000, [22])]
    assert await ran(runAs={"user": 30, "fsGroup": 33}) == [(30, 11, 33, [22])]
    assert await ran(runAs={"user": None}) == [(10, 11, 1000, [22])]
    own = {"spec": {"securityContext": {"runAsUser": 40}, "containers": [{"name": "main", "image": "b"}]}}
    assert await ran(ranks=[{"name": "a"}, {"name": "b", "template": own}]) == [
        (20, 11, 1000, [22]),
        (40, 11, 1000, [22]),
    ]


async def test_users_and_groups_are_those_that_the_pool_allows(world: ApiWorld) -> None:
    """Other users and groups are refused at the client's field; the refusal of a workspace's value says that it comes
    from there."""
    rules = {"allowedUsers": ["1000-1999"], "allowedGroups": ["7", "2000-2999"]}
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": rules})
    fine = {"runAs": {"user": 1001, "group": 2001, "groups": [7]}}
    taken = await world.post("/allocations", {**COMMAND, **fine, "name": "fine"})
    assert taken.status_code == 201, taken.text
    assert contexts_of((await world.stored("fine")).spec) == [(1001, 2001, 2001, [7])]
    wrong = {"runAs": {"user": 5, "group": 2001, "fsGroup": 6, "groups": [7, 8]}}
    errors = (await world.post("/allocations", {**COMMAND, **wrong})).json()["errors"]
    assert [error["pointer"] for error in errors] == ["/runAs/user", "/runAs/fsGroup", "/runAs/groups"]
    assert "pool default does not allow the user '5'; it allows 1000-1999" in errors[0]["detail"]
    await world.http.patch("/api/v1/workspaces/default", json={"runAs": {"user": 9, "group": 2001}})
    [error] = (await world.post("/allocations", COMMAND)).json()["errors"]
    assert error["pointer"] == "/runAs/user"
    assert "it comes from workspace default" in error["detail"]


async def test_two_users_of_one_pod_are_one_too_many(world: ApiWorld) -> None:
    """The short form and the pod template of a request must not differ; the same value twice is no contradiction."""
    template = {"spec": {"securityContext": {"runAsUser": 40}, "containers": [{"name": "main", "image": "b"}]}}
    refused = await world.post("/allocations", {**COMMAND, "template": template, "runAs": {"user": 41}})
    assert [(error["pointer"], error["detail"]) for error in refused.json()["errors"]] == [
        ("/runAs/user", "template.spec.securityContext.runAsUser differs: leave one of them out")
    ]
    same = await world.post("/allocations", {**COMMAND, "template": template, "runAs": {"user": 40}})
    assert same.status_code == 201, same.text


BY_ROLE: dict[str, Any] = {
    "serviceAccount": "reader",
    "ranks": [{"name": "a"}, {"name": "b", "template": {"spec": {"containers": [{"name": "main", "image": "b"}]}}}],
}


async def test_the_short_form_of_the_service_account_is_that_of_every_role(world: ApiWorld) -> None:
    """The account is set in every template of the launch."""
    await world.kube.patch(
        NAMESPACES, "default", {"metadata": {"annotations": {"slipway.dev/service-accounts": "reader"}}}
    )
    assert (await world.post("/allocations", {**COMMAND, **BY_ROLE, "name": "reads"})).status_code == 201
    spec = (await world.stored("reads")).spec
    templates = (spec.template, spec.ranks[1].template or {})
    assert [template["spec"]["serviceAccountName"] for template in templates] == ["reader", "reader"]


async def test_a_refused_short_form_of_the_service_account_is_named_once(world: ApiWorld) -> None:
    """The error names the field that the client wrote, not each template that the field stands for."""
    refused = await world.post("/allocations", {**COMMAND, **BY_ROLE})
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/serviceAccount"], refused.text


async def test_two_names_of_the_service_account_are_one_too_many(world: ApiWorld) -> None:
    """The refusal says where the other one is; the same name twice is no contradiction."""
    await world.kube.patch(
        NAMESPACES, "default", {"metadata": {"annotations": {"slipway.dev/service-accounts": "reader,writer"}}}
    )
    template = {"spec": {"serviceAccountName": "writer", "containers": [{"name": "main", "image": "a"}]}}
    for body, at in (({"template": template}, "template"), ({"ranks": [{"template": template}]}, "ranks[0].template")):
        answer = await world.post("/allocations", {**COMMAND, **body, "serviceAccount": "reader"})
        assert [(error["pointer"], error["detail"]) for error in answer.json()["errors"]] == [
            ("/serviceAccount", f"{at}.spec.serviceAccountName names 'writer': leave one of them out")
        ]
        same = await world.post("/allocations", {**COMMAND, **body, "serviceAccount": "writer"})
        assert same.status_code == 201, same.text


async def test_one_long_name_of_the_service_account_twice_is_no_contradiction(world: ApiWorld) -> None:
    """A name may have 253 characters, and all of them count."""
    name = "r" * 100
    await world.kube.patch(NAMESPACES, "default", {"metadata": {"annotations": {"slipway.dev/service-accounts": name}}})
    template = {"spec": {"serviceAccountName": name, "containers": [{"name": "main", "image": "a"}]}}
    answer = await world.post("/allocations", {**COMMAND, "template": template, "serviceAccount": name})
    assert answer.status_code == 201, answer.text


FLAVORS = {"spec": {"flavors": [{"name": name, "nodeLabels": {"gpu": name}} for name in ("h100", "a100")]}}


@pytest.mark.parametrize(
    ("asked", "kept"),
    [({"gpuType": "h100"}, ["h100"]), ({"flavors": ["a100", "h100"]}, ["a100", "h100"]), ({}, [])],
)
async def test_a_launch_names_the_flavors_that_it_accepts(
    world: ApiWorld, asked: dict[str, Any], kept: list[str]
) -> None:
    """The stored order is that of the launch; `gpuType` is short for one flavor."""
    await world.kube.patch(RESOURCE_POOLS, "default", FLAVORS)
    answer = await world.post("/allocations", {**COMMAND, "name": "typed", **asked})
    assert answer.status_code == 201, answer.text
    assert (await world.stored("typed")).spec.flavors == kept


@pytest.mark.parametrize(
    ("asked", "pointer", "detail"),
    [
        ({"gpuType": "h200"}, "/gpuType", "pool default has no flavor 'h200'; it has h100, a100"),
        ({"flavors": ["h100", "h200"]}, "/flavors/1", "pool default has no flavor 'h200'; it has h100, a100"),
        ({"flavors": ["h100", "h100"]}, "/flavors/1", "h100 is listed twice; each must be different"),
        ({"gpuType": "h100", "flavors": ["a100"]}, "/gpuType", "flavors sets the accepted flavors"),
    ],
)
async def test_a_flavor_that_makes_no_sense_is_refused(
    world: ApiWorld, asked: dict[str, Any], pointer: str, detail: str
) -> None:
    """The error is at its field, with the flavors that the pool has."""
    await world.kube.patch(RESOURCE_POOLS, "default", FLAVORS)
    answer = await world.post("/allocations", {**COMMAND, **asked})
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["pointer"] == pointer
    assert error["detail"].startswith(detail)


async def test_a_pool_without_flavors_says_so(world: ApiWorld) -> None:
    """Otherwise the launch would wait for ever."""
    answer = await world.post("/allocations", {**COMMAND, "gpuType": "h100"})
    [error] = answer.json()["errors"]
    assert error["detail"] == "pool default has no flavor 'h100'; it has no flavors"


async def test_a_run_script_is_the_command(world: ApiWorld) -> None:
    """The script is the command of every role's main container, in a shell that ends at the first failure; its dollars
    stay as typed."""
    own = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    await world.launch(name="phases", command=None, setup="make", run="echo $(date)", ranks=[{"template": own}])
    stored = await world.stored("phases")
    assert stored.spec.setup == "make"
    assert stored.spec.ranks[0].template is not None
    for template in (stored.spec.template, stored.spec.ranks[0].template):
        assert template["spec"]["containers"][0]["command"] == [literal(word) for word in command_of("echo $(date)")]


@pytest.mark.parametrize("beside", [{"command": ["a"]}, {"command": None, "args": ["a"]}])
async def test_a_run_script_beside_a_command_is_refused(world: ApiWorld, beside: dict[str, Any]) -> None:
    """A script and a command both state what runs; the error names the other field."""
    refused = await world.post("/allocations", {**COMMAND, **beside, "run": "echo"})
    [error] = refused.json()["errors"]
    assert error["pointer"] == "/run"
    assert error["detail"] == f"{list(beside)[-1]} sets the program too: leave one of them out"
