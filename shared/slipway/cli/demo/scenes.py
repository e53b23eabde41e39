"""The launches of the demo, one function each: what is launched, and the expected result.

Knows the REST API only. Each scene adds its launch to the stage, where later scenes find it.
"""

import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from importlib import resources
from typing import Any, cast

from slipway.cli import labels
from slipway.cli.demo import allreduce
from slipway.cli.demo.stage import DemoLaunch, DemoStage
from slipway.cli.launch import GPU
from slipway.cli.verbs.show import explain_text
from slipway.sdk.credentials import Credential

Json = dict[str, Any]
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
