"""The demo: all the main features end to end, on a running stack.

The scenes follow one another, one function each: what is launched, and the expected result. They know the REST API
only. Each scene adds its launch to the stage, where later scenes find it. What is shown of a launch: its entries in
Redis, its placement, its trace, and the summary.

The demo ends by itself; the exit code is 0 when all checks passed. Every check is an assertion on an answer of the API.
A failed check makes the demo fail, but the demo continues, so that all of it can be seen.
"""

import http.client
import re
import socket
import textwrap
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection
from datetime import datetime
from importlib import resources
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from slipway.cli import labels, main, table, waterfall
from slipway.cli.background import BackgroundStreams, events_of
from slipway.cli.demo import allreduce
from slipway.cli.launch import GPU, made_up_name
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession
from slipway.cli.verbs.show import explain_text
from slipway.cli.verbs.streams import event_text
from slipway.errors import ControlPlaneError
from slipway.sdk.credentials import Credential

Json = dict[str, Any]
WATCH_S = 30.0
INDENT = "   "
LOOK_S = 0.05


class Expectation(NamedTuple):
    """One check and its result."""

    name: str
    is_ok: bool
    found: str


class DemoLaunch(NamedTuple):
    """One launch of the demo, and its start time."""

    id: str
    what: str
    at: datetime


class DemoStage:
    """The output and the state of one run of the demo."""

    def __init__(self, terminal: Terminal, url: str) -> None:
        self.terminal = terminal
        self.session = CliSession(terminal, server=url)
        self.api = self.session.api
        self.checks: list[Expectation] = []
        self.launches: list[DemoLaunch] = []
        self._cursors: dict[str, str] = {}

    def title(self, text: str) -> None:
        """Begin a scene with a title; a long title is wrapped."""
        self.terminal.line()
        wrapped = textwrap.wrap(text, self.terminal.width, initial_indent="── ", subsequent_indent=INDENT)
        for part in wrapped:
            self.terminal.line(self.terminal.paint(part, "bold", to_err=False))

    def say(self, text: str) -> None:
        """Print the text of a scene; long lines are wrapped."""
        for line in text.splitlines():
            own = " " * (len(line) - len(line.lstrip()))
            wrapped = textwrap.wrap(
                line.strip(), self.terminal.width, initial_indent=INDENT + own, subsequent_indent=INDENT + own + "  "
            )
            for part in wrapped or [""]:
                self.terminal.line(part)

    def show(self, text: str) -> None:
        """Print preformatted lines, such as tables and events; long lines are cut."""
        for line in text.splitlines():
            self.terminal.line(table.cut(f"{INDENT}{line}".rstrip(), self.terminal.width))

    def check(self, name: str, is_ok: bool, found: object = "") -> bool:
        """Record and print the result of a check."""
        self.checks.append(Expectation(name, is_ok, str(found)))
        mark = self.terminal.paint("ok", "green", to_err=False) if is_ok else self.paint_bad("NO")
        text = name if is_ok else f"{name} (found: {found})"
        first, *rest = textwrap.wrap(text, self.terminal.width - 2 * len(INDENT)) or [""]
        self.terminal.line(f"{INDENT}{mark} {first}")
        for part in rest:
            self.terminal.line(f"{INDENT}{INDENT}{part}")
        return is_ok

    def paint_bad(self, text: str) -> str:
        """Return `text` in the colour of a failure."""
        return self.terminal.paint(text, "red", to_err=False)

    def launch(self, body: Json, what: str) -> DemoLaunch:
        """Send a launch with POST."""
        at, begin = table.now(), time.monotonic()
        view = self.api.launch({"name": made_up_name(str(body["kind"])), **body})
        took_ms = (time.monotonic() - begin) * 1000
        launched = DemoLaunch(str(view["id"]), what, at)
        self.launches.append(launched)
        self.say(f"POST /api/v1/allocations: {view['id']} after {took_ms:.0f} ms")
        for warning in cast("list[str]", view["warnings"]):
            self.say(f"warning: {warning}")
        return launched

    def view(self, launched: DemoLaunch) -> Json:
        """Return the current allocation."""
        view: Json = self.api.get(f"/allocations/{launched.id}")
        return view

    def look(self, launched: DemoLaunch, part: str) -> Any:
        """Return a subresource of the allocation, with GET."""
        return self.api.get(f"/allocations/{launched.id}/{part}")

    def watch(self, launched: DemoLaunch, goals: Collection[str]) -> Json:
        """Show the new events until one of `goals` or the end of the launch; return the allocation."""
        after = self._cursors.get(launched.id, "")
        with BackgroundStreams(self.session.connect) as background:
            background.read("events", lambda api: events_of(api, launched.id, after=after))
            self._show_until(launched, goals, background)
        return self.view(launched)

    def _show_until(self, launched: DemoLaunch, goals: Collection[str], background: BackgroundStreams) -> None:
        until = time.monotonic() + WATCH_S
        while (left_s := until - time.monotonic()) > 0:
            news = background.next(left_s)
            if news is None or news.kind != "events":
                return
            event = news.value.data
            self._cursors[launched.id] = news.value.id
            kind = str(event["type"]).rpartition(".")[2]
            after_s = max(0.0, (table.moment_of(str(event["time"])) - launched.at).total_seconds())
            self.show(f"{after_s:6.2f} s {event_text(event)[12:]}")
            if kind in goals or kind == "terminated":
                return

    def until(self, probe: Callable[[], Any], limit_s: float = 10.0) -> Any:
        """Call `probe` until its answer is true or the time is over; return the last answer."""
        deadline = time.monotonic() + limit_s
        while True:
            found = probe()
            if found or time.monotonic() > deadline:
                return found
            time.sleep(LOOK_S)


READ_S = 5.0
SERVICES = {"api", "scheduler", "podworker", "watcher"}


def streams(stage: DemoStage, launched: DemoLaunch, redis_url: str) -> None:
    """Show every transition of a launch, as any Redis client can read it."""
    key = f"slipway:alloc:{{{launched.id}}}"
    items = cast("list[Json]", stage.look(launched, "events")["items"])
    entries = xrange(redis_url, key)
    stage.show(f"XRANGE {key} - +")
    for id_, fields in entries:
        kind = fields["type"].removeprefix("dev.slipway.allocation.")
        stage.show(f"{id_:<16}  {kind:<11}  {fields['data']}")
    sequence = [int(id_.partition("-")[2]) for id_, _ in entries]
    stage.check("the entries count 1, 2, 3... without a gap", sequence == list(range(1, len(items) + 1)), sequence)
    stage.check("they are CloudEvents of this launch", all(fields["subject"] == launched.id for _, fields in entries))
    same = [fields["id"] for _, fields in entries] == [str(item["id"]) for item in items]
    stage.check("the API says the same", same, len(items))
    if len(entries) > 2:
        rest = stage.api.get(f"/allocations/{launched.id}/events", {"after": entries[1][0]})["items"]
        ids = [str(item["id"]) for item in rest]
        stage.check("a reader that reconnects gets the rest", ids == [fields["id"] for _, fields in entries[2:]], ids)


def xrange(url: str, key: str) -> list[tuple[str, dict[str, str]]]:
    """Return (id, fields) of every entry of a stream, with the small part of the Redis protocol that this needs.

    Source: redis.io/docs/latest/develop/reference/protocol-spec (RESP2).
    """
    parts = urlsplit(url)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(READ_S)
            connection.connect(parts.path)
            return _entries(connection, key)
    with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout=READ_S) as connection:
        return _entries(connection, key)


def _entries(connection: socket.socket, key: str) -> list[tuple[str, dict[str, str]]]:
    command = ["XRANGE", key, "-", "+"]
    text = f"*{len(command)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in command)
    connection.sendall(text.encode())
    with connection.makefile("rb") as answer:
        found = cast("list[list[Any]]", _value(answer))
    return [(str(id_), dict(zip(flat[::2], flat[1::2], strict=True))) for id_, flat in found]


def _value(answer: Any) -> Any:
    """Read one value of the answer."""
    line: bytes = answer.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:]
    match kind:
        case b"*":
            return [_value(answer) for _ in range(int(rest))]
        case b"$":
            return answer.read(int(rest) + 2)[:-2].decode()
        case b"-":
            raise ConnectionError(rest.decode())
        case _:
            return rest.decode()


def placement(stage: DemoStage, launched: DemoLaunch) -> None:
    """Show which rank ran on which node."""
    ranks = labels.ranks_of(stage.view(launched))
    nodes = sorted({str(rank.get("node", "")) for rank in ranks})
    rows = [
        [node, *("█" if rank.get("node") == node else "·" for rank in ranks), str(_on(node, ranks))] for node in nodes
    ]
    stage.show(table.render(["NODE", *(f"rank {number}" for number in range(len(ranks))), "RANKS"], rows))
    stage.check("every rank has a node", all(rank.get("node") for rank in ranks), nodes)
    uids = {str(rank.get("podUID", "")) for rank in ranks}
    stage.check("and a pod of its own", len(uids) == len(ranks) and "" not in uids, uids)


def _on(node: str, ranks: list[Json]) -> int:
    return sum(rank.get("node") == node for rank in ranks)


def trace(stage: DemoStage, launched: DemoLaunch) -> None:
    """Show how long each part of the launch took."""

    def spans() -> list[waterfall.WorkSpan] | None:
        found = waterfall.spans_of(stage.look(launched, "trace"))
        names = {span.name for span in found}
        return found if {"podworker.bind", "scheduler.admit"} <= names and _services(found) >= SERVICES else None

    found = stage.until(spans) or waterfall.spans_of(stage.look(launched, "trace"))
    stage.show(waterfall.render(found, width=stage.terminal.width - 3))
    services = _services(found)
    stage.check("one trace goes through all four services", services >= SERVICES, services)


def _services(spans: list[waterfall.WorkSpan]) -> set[str]:
    return {span.service for span in spans}


def summary(stage: DemoStage) -> bool:
    """Show a table of the launches; return whether all checks passed."""
    rows: list[list[str]] = []
    for launched in stage.launches:
        view = stage.view(launched)
        codes = [str(rank["exitCode"]) for rank in labels.ranks_of(view) if "exitCode" in rank]
        rows.append([launched.id, launched.what, labels.state_of(view), ",".join(codes), str(view["status"]["seq"])])
    stage.show(table.render(["LAUNCH", "WHAT", "RESULT", "EXITS", "EVENTS"], rows))
    wrong = [check for check in stage.checks if not check.is_ok]
    for check in wrong:
        stage.say(stage.paint_bad(f"NO {check.name} (found: {check.found})"))
    count = len(stage.checks)
    said = f"{count} checks, all ok" if not wrong else f"{count} checks, {len(wrong)} failed"
    stage.say(stage.terminal.paint(said, "red" if wrong else "green", to_err=False))
    return not wrong


RANKS = 4
PAGE_S = 15.0
SMALL = {"cpu": "100m", "memory": "128Mi"}


def notebook(stage: DemoStage) -> DemoLaunch:
    """Launch a notebook that serves a page, and fetch the page through the proxy of the API."""
    body = {"kind": "notebook", "ranks": [{"resources": {"cpu": "500m", "memory": "512Mi", GPU: 1}}]}
    launched = stage.launch(body, "a notebook")
    view = stage.watch(launched, {"ready"})
    stage.check("the notebook is ready", bool(view["ready"]), labels.state_of(view))
    url = f"{stage.api.server.url}{view['links']['proxy']}"
    status, page = stage.until(lambda: _page(url, stage.api.server.credential), PAGE_S) or (0, "")
    title = re.search(r"<title>(.*?)</title>", page, re.DOTALL)
    stage.say(f"GET {view['links']['proxy']}: {status}, {len(page.encode()):,} bytes, title {title and title[1]!r}")
    stage.check("its page comes through the proxy of the API", status == 200 and title is not None, status)
    return launched


class _SameServerRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the same server only, because urllib would send the token to any other one too."""

    def redirect_request(self, req: urllib.request.Request, *rest: Any, **named: Any) -> Any:
        """Return the next request; None for another server. The last argument is the new URL."""
        if urllib.parse.urlsplit(rest[-1])[:2] != urllib.parse.urlsplit(req.full_url)[:2]:
            return None
        return super().redirect_request(req, *rest, **named)


def _page(url: str, credential: Credential | None) -> tuple[int, str] | None:
    """Return (status, text) of the page; None until the notebook serves it."""
    headers = {"Authorization": f"Bearer {credential.token()}"} if credential is not None else {}
    asked = urllib.request.Request(url, headers=headers)  # noqa: S310 - the address of our own API
    try:
        with urllib.request.build_opener(_SameServerRedirects()).open(asked, timeout=5) as answer:
            return int(answer.status), answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except (OSError, http.client.HTTPException):
        return None


def gang(stage: DemoStage) -> DemoLaunch:
    """Launch four ranks that find each other and sum a vector over a ring of sockets."""
    program = resources.files("slipway.cli.demo").joinpath("allreduce.py").read_text(encoding="utf-8")
    body = {
        "kind": "training",
        "command": ["python", "allreduce.py"],
        "files": [{"path": "allreduce.py", "content": program}],
        "ranks": [{"name": "worker", "count": RANKS, "resources": {**SMALL, GPU: 2}}],
    }
    launched = stage.launch(body, f"a gang of {RANKS}")
    view = stage.watch(launched, set())
    stage.check("the gang succeeded", labels.has_succeeded(view), labels.summary_of(view))
    codes = [rank.get("exitCode") for rank in labels.ranks_of(view)]
    stage.check(f"{RANKS} ranks exited with 0", codes == [0] * RANKS, codes)
    wanted = f"sum {allreduce.expected(RANKS) * allreduce.ROUNDS:.0f} ok"
    summed = f"round {allreduce.ROUNDS}: {wanted}"
    lines = stage.until(lambda: _complete(_lines(stage, launched), summed)) or _lines(stage, launched)
    for rank, text in sorted(lines):
        if text.startswith(("rank ", f"round {allreduce.ROUNDS}")):
            stage.say(f"[{rank}] {text}")
    right = sorted({rank for rank, text in lines if text.startswith(summed)})
    stage.check(f"every rank has the sum over all {RANKS}", right == list(range(RANKS)), right)
    return launched


def _complete(lines: list[tuple[int, str]], last: str) -> list[tuple[int, str]] | None:
    """Return the lines when the last line of every rank is among them, else None."""
    return lines if len({rank for rank, text in lines if text.startswith(last)}) == RANKS else None


def _lines(stage: DemoStage, launched: DemoLaunch) -> list[tuple[int, str]]:
    """Return (rank, text) of each line of the log."""
    items = cast("list[Json]", stage.look(launched, "logs")["items"])
    return [(int(item["rank"]), str(item["text"])) for item in items if item["stream"] == "stdout"]


def failing(stage: DemoStage) -> DemoLaunch:
    """Launch a command that ends with exit code 3."""
    said = "no such data set: imagenet-22k"
    body = {
        "kind": "command",
        "command": ["python", "-c", f"import sys; print({said!r}); sys.exit(3)"],
        "ranks": [{"resources": SMALL}],
    }
    launched = stage.launch(body, "a command that fails")
    view = stage.watch(launched, set())
    codes = [rank.get("exitCode") for rank in labels.ranks_of(view)]
    stage.check("it Failed", view.get("result") == "Failed", labels.summary_of(view))
    stage.check("with exit code 3", codes == [3], codes)
    lines = stage.until(lambda: _lines(stage, launched))
    stage.check(f"its last output is stored: {said}", lines == [(0, said)], lines)
    return launched


def too_large(stage: DemoStage) -> DemoLaunch:
    """Launch a command that can never fit; its explanation says why."""
    body = {"kind": "command", "command": ["true"], "ranks": [{"resources": {**SMALL, GPU: 64}}]}
    launched = stage.launch(body, "a command too large")
    why = _waiting(stage, launched)
    stage.say(explain_text(why))
    stage.check("it waits, and nothing was made for it", not stage.look(launched, "pods")["items"], why["phase"])
    stage.check("the explanation names the gate NoFit", why["code"] == "NoFit", why["code"])
    stage.check("and the numbers", "64" in why["message"] and "16" in why["message"], why["message"])
    _kill(stage, launched)
    return launched


def killed(stage: DemoStage) -> DemoLaunch:
    """Launch a gang of sixteen of which only fifteen ranks fit, and kill it while it waits."""
    body = {
        "kind": "training",
        "command": ["python", "-c", "print('this never runs')"],
        "ranks": [{"name": "worker", "count": 16, "resources": {**SMALL, GPU: 1}}],
    }
    launched = stage.launch(body, "a gang that waits")
    why = _waiting(stage, launched)
    stage.say(explain_text(why))
    stage.check("15 of 16 ranks would fit, so none starts", "15 of 16" in why["message"], why["message"])
    view = _kill(stage, launched)
    events = cast("list[Json]", stage.look(launched, "events")["items"])
    kinds = [str(event["type"]).rpartition(".")[2] for event in events]
    stage.check("its events were: requested, terminated", kinds == ["requested", "terminated"], kinds)
    stage.check("no pod was ever made for it", "release" not in view["status"] and not _pods(stage, launched), view)
    return launched


def _waiting(stage: DemoStage, launched: DemoLaunch) -> Json:
    """Return the explanation of a launch after the scheduler has considered it."""
    path = f"/allocations/{launched.id}/explain"

    def looked_at() -> Json | None:
        why: Json = stage.api.get(path)
        return why if why["code"] not in ("", "NotYetConsidered") else None

    return stage.until(looked_at) or stage.api.get(path)


def _kill(stage: DemoStage, launched: DemoLaunch) -> Json:
    """Kill a launch; return the allocation after it has ended."""
    stage.api.post(f"/allocations/{launched.id}/kill")
    view = stage.watch(launched, set())
    stage.check("killed, it is Canceled", view.get("result") == "Canceled", labels.summary_of(view))
    return view


def farewell(stage: DemoStage, running: DemoLaunch) -> None:
    """Kill the running launch, and check that no pod and no rank is left."""
    _kill(stage, running)
    left = stage.until(lambda: not [pod for each in stage.launches for pod in _pods(stage, each)])
    stage.check("no pod is left", bool(left), [_pods(stage, each) for each in stage.launches])

    def is_free() -> bool:
        nodes = cast("list[Json]", stage.api.get("/nodes")["items"])
        return not [node for node in nodes if node["ranks"]]

    stage.check("every node is free", bool(stage.until(is_free)))


def _pods(stage: DemoStage, launched: DemoLaunch) -> list[Json]:
    return cast("list[Json]", stage.look(launched, "pods")["items"])


def tell(terminal: Terminal, url: str, redis_url: str) -> int:
    """Run every scene against the API at `url`; return the exit code."""
    stage = DemoStage(terminal, url)
    try:
        _play(stage, redis_url)
    except ControlPlaneError as error:
        stage.check("every call is answered", is_ok=False, found=error)
        return main.FAILED
    return main.OK if summary(stage) else main.FAILED


def _play(stage: DemoStage, redis_url: str) -> None:
    stage.title("a. a notebook that serves a page")
    page = notebook(stage)
    stage.title("b. a gang of four: all start or none; they sum a vector over sockets")
    trained = gang(stage)
    stage.title("c. a command that fails with exit code 3")
    failing(stage)
    stage.title("d. a command that cannot fit, with the reason")
    too_large(stage)
    stage.title("e. a gang that waits as a whole, killed while it waits")
    killed(stage)
    if redis_url:
        stage.title("the stream of the gang: every transition, in order, resumable")
        streams(stage, trained, redis_url)
    stage.title("the placement of the gang")
    placement(stage, trained)
    stage.title("the trace of its launch")
    trace(stage, trained)
    stage.title("the end: the notebook is killed, all resources are released")
    farewell(stage, page)
    stage.title("summary")
