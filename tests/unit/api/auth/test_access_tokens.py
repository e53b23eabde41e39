"""Mode `token`: the rights of a token, how long they last, and what a caller with few rights sees."""

import asyncio
import contextlib
import io
import json
import logging
import shutil
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx2
import msgspec
import pytest
from starlette.types import Message, Scope

from slipway.api.app import create_app
from slipway.api.auth import middleware
from slipway.api.http.audit import STRANGERS_MAX
from slipway.api.http.request_telemetry import ANONYMOUS_LINES_MAX
from slipway.api.settings import Settings
from slipway.crd.meta import ANNOTATION_USER
from slipway.crd.transitions import id_of, record
from slipway.crd.v1alpha1 import Admission
from slipway.errors import UnavailableError
from slipway.kube.resources import ALLOCATIONS, QUEUES, TEMPLATES
from slipway.model import apitokens
from slipway.model.apitokens import Role
from slipway.model.lifecycle import Event
from slipway.runtime import log
from slipway.runtime.health import HealthApp, ProcessHealth
from slipway.runtime.log import WINDOW_S
from tests.support.access import CANARY, Teams, bearer, teams_world, write
from tests.support.clock import ShiftedClock

TIME = "2026-01-02T03:04:05Z"
VIEW, EDIT = {"team-red": "viewer"}, {"team-red": "editor"}


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncGenerator[Teams]:
    async with teams_world("token", tmp_path) as world:
        yield world


async def test_the_user_is_always_that_of_the_token(teams: Teams) -> None:
    """The user that a request names is ignored."""
    headers = {**await teams.token("ada", EDIT), "X-Slipway-User": "root"}
    made = (await teams.launch(headers, name="mine", workspace="team-red")).json()
    stored = await teams.world.stored("mine", "team-red")
    assert (made["user"], stored.metadata.annotations[ANNOTATION_USER]) == ("ada", "ada")
    forged = await teams.launch(headers, workspace="team-red", annotations={ANNOTATION_USER: "root"})
    assert forged.status_code == 422
    me = (await teams.call("GET", "/me", headers)).json()
    assert (me["user"], me["auth"], me["workspaces"], me["roles"]) == ("ada", "token", ["team-red"], EDIT)


async def test_a_template_cannot_move_launches_to_another_workspace(teams: Teams) -> None:
    """A template that was applied by hand may name a workspace; only the request determines where a launch goes."""
    spec = {"body": {"workspace": "team-blue"}}
    await teams.world.kube.create(TEMPLATES, {"metadata": {"name": "evil", "namespace": "default"}, "spec": spec})
    headers = await teams.token("ada", {"default": "editor"})
    answer = await teams.launch(headers, template="evil")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/workspace")
    assert await teams.world.names() == [CANARY["blue"], CANARY["red"]]


async def test_lists_contain_only_visible_items(teams: Teams) -> None:
    """Page by page, sorted or not, lists contain only visible work; page tokens and counts tell nothing of the rest."""
    headers = await teams.token("ada", {"team-red": "viewer", "default": "viewer"})
    for number in range(3):
        await teams.launch(await teams.token("root", {"*": "admin"}), name=f"d{number}")
    for sort in ("", "-createdAt"):
        names: list[str] = []
        continue_ = ""
        while True:
            query = {"limit": 1, "continue": continue_, "sort": sort}
            page = (await teams.call("GET", "/allocations", headers, params=query)).json()
            names += [item["name"] for item in page["items"]]
            continue_ = page["metadata"].get("continue", "")
            if not continue_:
                break
        assert sorted(names) == [CANARY["red"], "d0", "d1", "d2"], sort
    for elsewhere in ("team-blue", "team-none"):
        answer = await teams.call("GET", "/allocations", headers, params={"workspace": elsewhere})
        detail = f"?workspace= there is no workspace {elsewhere}; there are: default, team-red"
        assert (answer.status_code, answer.json()["errors"]) == (422, [{"pointer": "", "detail": detail}])


async def test_an_editor_may_force_a_kill_but_not_give_up_nodes(teams: Teams) -> None:
    """A forced kill gives up ranks on silent nodes, too: no next attempt can run beside them."""
    headers = await teams.token("ada", EDIT)
    found = await teams.world.stored(CANARY["red"], namespace="team-red")
    assert (await teams.call("POST", f"/allocations/{id_of(found)}/forget", headers)).status_code == 403
    assert (
        await teams.call("POST", f"/allocations/{id_of(found)}/kill", headers, json={"force": True})
    ).status_code == 202
    killed = await teams.world.stored(CANARY["red"], namespace="team-red")
    assert killed.spec.desired == "Stopped"


async def test_a_right_on_a_deleted_object_reveals_no_other(teams: Teams) -> None:
    """A workspace that a token names and that does not exist is answered like any other missing workspace."""
    headers = await teams.token("ada", {"team-gone": "admin"})
    for workspace in ("team-gone", "team-red", "team-none"):
        answer = await teams.launch(headers, workspace=workspace)
        detail = f"there is no workspace '{workspace}'; GET /api/v1/workspaces lists what there is"
        assert (answer.status_code, answer.json()["detail"]) == (404, detail)
    root = await teams.launch(await teams.token("root", {"*": "admin"}), workspace="team-none")
    assert (root.status_code, "there are: " in root.json()["detail"]) == (422, True)


async def test_a_shared_queue_tells_places_and_no_names(teams: Teams) -> None:
    """A caller sees how much work is before its own work, and not whose work it is."""
    words = f"queue default has strict order, and team-red/{CANARY['red']} waits before it"
    await teams.world.explain(CANARY["blue"], "BehindQueueHead", words, namespace="team-blue")
    headers = await teams.token("ada", {"team-blue": "viewer"})
    told = (await teams.call("GET", f"/allocations/{teams.ids['blue']}/explain", headers)).json()
    assert (told["position"], told["ahead"], told["jobsAhead"]) == (2, 1, [])
    assert told["message"] == "queue default has strict order, and work of another workspace waits before it"
    assert CANARY["red"] not in (await teams.call("GET", f"/allocations/{teams.ids['blue']}", headers)).text
    queue = (await teams.call("GET", "/queues/default", headers)).json()
    assert (queue["pending"], [each["position"] for each in queue["waiting"]]) == (2, [2])
    root = await teams.token("root", {"*": "viewer"})
    told = (await teams.call("GET", f"/allocations/{teams.ids['blue']}/explain", root)).json()
    assert (told["jobsAhead"], CANARY["red"] in told["message"]) == ([teams.ids["red"]], True)


async def test_who_holds_the_room_is_counted_where_it_may_not_be_seen(teams: Teams) -> None:
    """Work of another workspace is counted, and not named."""
    red = await teams.world.stored(CANARY["red"], "team-red")
    admission = Admission(decision_id="d1", epoch=1, attempt=red.status.attempt)
    moved = record(red, Event.ASSIGNED, now=teams.world.clock.now(), admission=admission)
    await teams.world.kube.replace_status(ALLOCATIONS, moved)
    await teams.world.explain(CANARY["blue"], "NoFit", "no room", namespace="team-blue")
    path = f"/allocations/{teams.ids['blue']}/explain"
    told = (await teams.call("GET", path, await teams.token("ada", {"team-blue": "viewer"}))).json()
    assert (told["holders"], told["othersHolding"]) == ([], 1)
    told = (await teams.call("GET", path, await teams.token("root", {"*": "viewer"}))).json()
    assert ([each["id"] for each in told["holders"]], told["othersHolding"]) == ([teams.ids["red"]], 0)


async def test_the_same_name_in_two_workspaces_is_no_question(teams: Teams) -> None:
    """A caller who sees one of them finds only that one, by the name and by the beginning of its id."""
    root = await teams.token("root", {"*": "admin"})
    for workspace in ("team-red", "team-blue"):
        await teams.launch(root, name="twin", workspace=workspace)
    headers = await teams.token("ada", VIEW)
    found = await teams.call("GET", "/allocations/twin", headers)
    assert (found.status_code, found.json()["workspace"]) == (200, "team-red")
    assert (await teams.call("GET", "/allocations/canary", headers)).json()["name"] == CANARY["red"]
    assert (await teams.call("GET", "/allocations/twin", root)).status_code == 409


async def test_events_of_others_do_not_come(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    """The firehose has no events of other workspaces, and ends when the token is revoked."""
    monkeypatch.setattr(middleware, "CHECK_S", 0.05)
    headers, root = await teams.token("ada", VIEW), await teams.token("root", {"*": "admin"})
    cursor = await teams.world.streams.firehose.tail()
    told, news = list[bytes](), asyncio.Event()
    listening = asyncio.ensure_future(_listen(teams, f"after={cursor}".encode(), headers, told, news))
    for workspace in ("team-blue", "team-red"):
        await teams.launch(root, name=f"news-{workspace}", workspace=workspace)
        await teams.world.parts.announcer.flush()
    async with asyncio.timeout(20):
        while b"news-team-red" not in b"".join(told):
            await news.wait()
            news.clear()
        assert b"team-blue" not in b"".join(told)
        assert not listening.done()
        await _take_away(teams, headers)
        await listening


async def _listen(teams: Teams, query: bytes, headers: dict[str, str], told: list[bytes], news: asyncio.Event) -> None:
    """Collect the body of the firehose in `told`, until the server ends it."""

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        assert message.get("status", 200) == 200
        told.append(message.get("body", b""))
        news.set()

    raw = [(b"host", b"localhost"), *((name.lower().encode(), value.encode()) for name, value in headers.items())]
    scope = {"type": "http", "method": "GET", "path": "/api/v1/events", "query_string": query, "headers": raw}
    scope |= {"scheme": "http", "http_version": "1.1", "root_path": "", "raw_path": b"/api/v1/events"}
    await teams.world.app(scope, receive, send)


async def _take_away(teams: Teams, headers: dict[str, str]) -> None:
    assert teams.folder is not None
    (teams.folder / apitokens.file_of(apitokens.id_of(headers["Authorization"].removeprefix("Bearer ")))).unlink()
    await teams.look()


async def test_files_without_a_token_record_are_ignored(teams: Teams, tmp_path: Path) -> None:
    """A file that is no record does not affect other records. While the folder cannot be read, all calls get 503."""
    headers = await teams.token("ada", VIEW)
    (tmp_path / ("0" * 16 + ".json")).write_text("{", encoding="utf-8")
    (tmp_path / "..data").mkdir()
    token, record = apitokens.make(
        b"1" * 8, b"2" * 32, user="eve", roles={"*": Role.ADMIN}, created_at=TIME, expires_at="2999-01-01T00:00:00Z"
    )
    (tmp_path / ("f" * 16 + ".json")).write_bytes(apitokens.encode(record))  # under another's name
    await teams.look()
    assert (await teams.call("GET", "/me", headers)).status_code == 200
    assert (await teams.call("GET", "/me", bearer(token))).status_code == 401
    shutil.rmtree(tmp_path)
    with pytest.raises(UnavailableError, match="cannot be read"):
        await teams.look()
    answer = await teams.call("GET", "/me", headers)
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)


async def test_a_changed_record_takes_effect_at_the_next_read(teams: Teams, tmp_path: Path) -> None:
    """A changed record gives the same token more or fewer rights."""
    headers = await teams.token("ada", VIEW)
    path = tmp_path / apitokens.file_of(apitokens.id_of(headers["Authorization"].removeprefix("Bearer ")))
    record = apitokens.decode(path.name, path.read_bytes())
    assert (await teams.launch(headers, workspace="team-red")).status_code == 403
    write(tmp_path, msgspec.structs.replace(record, roles={"team-red": Role.EDITOR}))
    await teams.look()
    assert (await teams.launch(headers, workspace="team-red")).status_code == 201


async def test_a_role_in_a_workspace_that_is_gone_opens_nothing(teams: Teams) -> None:
    """Nodes, pools and queues are for callers who have a role in a workspace that exists."""
    gone = await teams.token("nob", {"team-green": "viewer"})
    here = await teams.token("vic", {"team-red": "viewer"})
    for path in ("/nodes", "/pools", "/queues", "/queue-stats"):
        assert (await teams.call("GET", path, gone)).status_code == 403
        assert (await teams.call("GET", path, here)).status_code == 200


@contextlib.contextmanager
def logged() -> Generator[io.StringIO]:
    """The log of the api, while the context is open."""
    root, stream = logging.getLogger(), io.StringIO()
    handler, level = logging.StreamHandler(stream), root.level
    handler.setFormatter(log.JsonFormatter("api", lambda: None))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def audit_lines(stream: io.StringIO) -> list[tuple[str, str, int]]:
    """The (method, route, status) of each audit line."""
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(each["method"], each["route"], each["status"]) for each in lines if each["msg"] == "audit"]


async def test_unauthenticated_calls_do_not_flood_the_log(teams: Teams) -> None:
    """Anonymous requests get few lines in the log and in the audit, for reads, changes and public pages; the number of
    lines that were not written is logged. Lines about users go on."""
    headers = await teams.token("ada", EDIT)
    flood, clock = 2 * ANONYMOUS_LINES_MAX, ShiftedClock()
    parts = await teams.replica(clock=clock)
    app = create_app(parts, HealthApp(ProcessHealth(clock)))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client:
        with logged() as stream:
            for _ in range(flood):
                await client.get("/api/v1/allocations")
                await client.post("/api/v1/jobs")
                await client.get("/login")
                await client.get(f"/{'x' * 4_000}")
            await client.get("/api/v1/allocations", headers=headers)
            clock.advance(WINDOW_S)
            await client.post("/api/v1/jobs")
    await parts.forwarder.aclose()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    requests = [line for line in lines if line["msg"] == "request"]
    of_users = [line for line in requests if line["status"] == 200 and line["path"] == "/api/v1/allocations"]
    statuses = {line["status"] for line in requests}
    assert len(of_users) == 1
    assert len(requests) <= len(statuses) * ANONYMOUS_LINES_MAX + 2
    assert max(len(line["path"]) for line in requests) <= 512
    withheld = {
        line["status"]: line["count"] for line in lines if line["msg"].startswith("further requests of unknown callers")
    }
    assert withheld[401] == 2 * flood - ANONYMOUS_LINES_MAX
    audited = [line for line in lines if line["msg"] == "audit"]
    assert len(audited) == STRANGERS_MAX + 1
    assert audited[-1]["withheld"] == flood - STRANGERS_MAX


async def test_every_change_is_in_the_audit_log(teams: Teams) -> None:
    """A line has the user, the object and the outcome of a change, also of a refused one. Reads have none, and no line
    has a token."""
    headers = await teams.token("ada", EDIT)
    with logged() as stream:
        await teams.call("GET", "/allocations", headers)
        # A route without a parameter `workspace` reads none: the caller cannot choose what the line says.
        await teams.call("POST", f"/allocations/{teams.ids['red']}/kill?workspace=team-blue", headers)
        await teams.call("POST", f"/allocations/{teams.ids['blue']}/kill?workspace=team-red", headers)
        await teams.call("POST", f"/allocations/{teams.ids['red']}/forget", headers)
        await teams.call("POST", "/jobs", {})
        launch = {"kind": "command", "image": "a", "command": ["x"], "name": "told", "workspace": "team-red"}
        await teams.world.http.post("/api/v1/allocations", json=launch, headers=headers)
        elsewhere = {**launch, "workspace": "team-blue"}
        await teams.world.http.post("/api/v1/allocations", json=elsewhere, headers=headers)
        await teams.call("POST", f"/allocations/{teams.ids['red']}/kill", headers, json={"workspace": "team-blue"})
        one = {"updates": [{"allocation": teams.ids["red"], "priority": 7}]}
        await teams.call("POST", "/jobs/batch", headers, json=one)
        link = (await teams.call("POST", "/login-links", headers, json={"path": "/"})).json()["url"]
        for _ in range(2):
            await teams.world.http.get(link.partition("localhost")[2])
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [each for each in lines if each["msg"] == "audit"]
    assert [(each["user"], each["route"].rpartition("/")[2], each["status"]) for each in told] == [
        ("ada", "kill", 202),
        ("ada", "kill", 404),
        ("ada", "forget", 403),
        ("", "jobs", 401),
        ("ada", "allocations", 201),
        ("ada", "allocations", 404),
        ("ada", "kill", 422),
        ("ada", "batch", 200),
        ("ada", "batch", 200),
        ("ada", "login-links", 201),
        ("ada", "link", 303),
        ("", "link", 401),
    ]
    assert told[6]["workspace"] == "team-red"
    assert (told[7]["object"], told[7]["verb"]) == ({"id": teams.ids["red"]}, "change")
    assert not any("code=" in str(each) for each in lines if each["logger"].startswith("slipway"))
    made, refused = told[4], told[5]
    assert (made["object"]["name"], made["workspace"]) == ("told", "team-red")
    assert made["object"]["id"].startswith("told-")
    assert (refused["object"], refused["workspace"]) == ({"name": "told", "kind": "command"}, "team-blue")
    assert (told[0]["object"], told[0]["workspace"]) == ({"id": teams.ids["red"]}, "team-red")
    assert [each["workspace"] for each in told[1:3]] == ["", "team-red"]
    assert headers["Authorization"].removeprefix("Bearer ") not in stream.getvalue()


async def test_the_proxy_checks_access_too(teams: Teams) -> None:
    """A viewer may not use the page of a workload, which could do anything; for other workspaces there is no page."""
    path = f"/proxy/{teams.ids['red']}/"
    for roles, status in ((VIEW, 403), ({"team-blue": "admin"}, 404)):
        answer = await teams.world.http.get(path, headers=await teams.token("ada", roles))
        assert answer.status_code == status
    assert (await teams.world.http.get(path)).status_code == 401
    assert (await teams.world.http.get(path, headers=await teams.token("ada", EDIT))).status_code in (404, 503)


@pytest.mark.parametrize(
    ("roles", "origin", "status"),
    [
        (None, "", 401),
        ({"team-blue": "admin"}, "", 404),
        (VIEW, "", 403),
        (EDIT, "http://evil.example", 403),
        (EDIT, "http://localhost", 503),
    ],
)
async def test_access_of_a_websocket_is_checked_at_its_handshake(
    teams: Teams, roles: dict[str, str] | None, origin: str, status: int
) -> None:
    """The handshake checks the caller and the page that it comes from, before anything is opened."""
    headers = await teams.token("ada", roles) if roles else {}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    raw += [(b"host", b"localhost"), *([(b"origin", origin.encode())] if origin else [])]
    path = f"/proxy/{teams.ids['red']}/"
    scope: Scope = {"type": "websocket", "path": path, "query_string": b"", "headers": raw}
    scope |= {"scheme": "ws", "http_version": "1.1", "root_path": "", "raw_path": path.encode()}
    scope |= {"subprotocols": [], "extensions": {"websocket.http.response": {}}}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await teams.world.app(scope, receive, send)
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", status)


async def test_tokens_are_listed_without_their_hashes(teams: Teams) -> None:
    """Only an administrator of all workspaces may list tokens."""
    root = await teams.token("root", {"*": "admin"})
    listed = await teams.call("GET", "/tokens", root)
    [item] = listed.json()["items"]
    assert (item["user"], item["roles"], item["expired"]) == ("root", {"*": "admin"}, False)
    assert "hash" not in item


def test_a_mode_needs_what_it_works_with() -> None:
    """Mode `token` needs a folder, mode `kubernetes` an audience of its own, and no authentication a loopback
    address."""
    for wrong, words in (
        ({"auth": "token"}, "SLIPWAY_TOKEN_DIR"),
        ({"token_dir": "/x"}, "SLIPWAY_AUTH=token"),
        ({"auth": "kubernetes", "auth_audience": "slipway"}, "SLIPWAY_TASK_AUDIENCE must differ"),
        ({"listen": "0.0.0.0:8080"}, "accepts every caller"),
        ({"listen": "[::]:8080"}, "accepts every caller"),
    ):
        with pytest.raises(ValueError, match=words):
            Settings(**wrong)  # pyright: ignore[reportArgumentType]
    Settings(auth="token", token_dir="/x", listen="0.0.0.0:8080")


async def test_metrics_need_the_operator_token(tmp_path: Path) -> None:
    """With authentication, metrics that have an address of their own are served at no other."""
    async with teams_world("token", tmp_path, health_listen="127.0.0.1:0") as teams:
        assert (await teams.world.http.get("/metrics")).status_code == 404
        assert (await teams.world.http.get("/livez")).status_code == 200


async def test_only_an_administrator_lets_it_run_beyond_its_queue(teams: Teams) -> None:
    """The owner may set a limit up to that of the queue, and the refusal states it. A limit that an administrator set
    binds the owner from then on."""
    await teams.world.kube.patch(QUEUES, "default", {"spec": {"maxRuntime": "1h"}})
    path, name = f"/allocations/{teams.ids['red']}", (CANARY["red"], "team-red")
    owner, admin = await teams.token("ada", EDIT), await teams.token("root", {"team-red": "admin"})

    async def limited(headers: dict[str, str], limit: str) -> httpx2.Response:
        return await teams.call("PATCH", path, headers, json={"maxRuntime": limit})

    assert (await limited(owner, "50m")).status_code == 200
    (error,) = (await limited(owner, "2h")).json()["errors"]
    assert (error["pointer"], error["detail"]) == (
        "/maxRuntime",
        "queue default permits at most 1h; ask for less, or ask an administrator for more",
    )
    assert (await teams.world.stored(*name)).spec.max_runtime_override is None
    assert (await limited(admin, "2h")).status_code == 200
    spec = (await teams.world.stored(*name)).spec
    assert (spec.max_runtime, spec.max_runtime_override) == ("2h", "2h")
    assert (await limited(owner, "90m")).status_code == 200
    assert "permits at most 2h" in (await limited(owner, "3h")).text
    forged = await teams.launch(owner, workspace="team-red", maxRuntimeOverride="9h")
    assert (forged.status_code, forged.json()["errors"][0]["pointer"]) == (422, "/maxRuntimeOverride")


async def test_the_limit_of_the_queue_is_that_of_the_admission(teams: Teams) -> None:
    """Admitted work is bound by the limit that its queue had at the admission."""
    admission = Admission(decision_id="d1", epoch=1, attempt=1, max_runtime="1800s")
    found = await teams.world.stored(CANARY["red"], "team-red")
    moved = record(found, Event.ASSIGNED, now=teams.world.clock.now(), admission=admission)
    await teams.world.kube.replace_status(ALLOCATIONS, moved)
    owner = await teams.token("ada", EDIT)
    answer = await teams.call("PATCH", f"/allocations/{teams.ids['red']}", owner, json={"maxRuntime": "1h"})
    assert (answer.status_code, "permits at most 1800s" in answer.text) == (422, True)
