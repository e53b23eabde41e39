"""Pictures of every page in both themes: `make pictures FOLDER=...` (also on a phone) and `make docs-pictures`.

Owns a cluster with realistic allocations (long names, many queues, failed, waiting and held allocations of several
users), the list of pages, and the states in which a page has little to show. It judges nothing: a person looks at the
pictures.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2

from slipway.runtime.clock import SystemClock
from tests.browser.chromium import Page, find, running_browser
from tests.support.access import a_token
from tests.support.local_stack import RunningStack, running_stack
from tests.support.wait import wait_until

Json = dict[str, Any]
QUEUES = "/apis/slipway.dev/v1alpha1/queues"
WIDTHS = {"wide": 1280, "phone": 390}
DOCS_HEIGHTS = (320, 960)
USERS = ("ada.lovelace@research.example", "grace", "lin")
LONG = "continued-pretraining-web-2026"
TALK = "import time\nfor i in range(100000): print(f'step {i} loss {9 / (i + 1):.4f}', flush=True); time.sleep(1)"
FAIL = (
    "print('loading shard 17 of 512'); print('Traceback (most recent call last):');"
    "print('RuntimeError: CUDA error: an illegal memory access was encountered'); raise SystemExit(3)"
)
TREE: Mapping[str, Json] = {
    "research": {"nominal": {"nvidia.com/gpu": "16"}, "weight": 3},
    "language": {"parent": "research", "nominal": {"nvidia.com/gpu": "8"}, "weight": 2},
    "vision-and-robotics-perception": {"parent": "research", "nominal": {"nvidia.com/gpu": "8"}},
    "platform": {"nominal": {"nvidia.com/gpu": "8"}, "weight": 1},
    "nightly-evaluation": {"parent": "platform"},
}
"""{name of a queue: its spec, without the pool}"""
TEMPLATE: Json = {
    "image": "local",
    "ranks": [{"name": "worker", "count": 2, "resources": {"cpu": "1", "nvidia.com/gpu": 4}}],
    "env": {"NCCL_DEBUG": "INFO"},
}
WEBHOOK: Json = {
    "name": "failed-to-chat",
    "url": "http://127.0.0.1:9/hook?token=secret",
    "events": ["terminated"],
    "results": ["Failed"],
    "description": "Failed work, to the channel of the team",
}
SETTLE_S = 1.0


def pages(ids: Mapping[str, str]) -> dict[str, str]:
    """{name of the picture: address of the page}"""
    return {
        "home": "/?of=everyone",
        "queues": "/queues",
        "queue": f"/queues/language?why={ids['big']}",
        "cluster": "/cluster?by=user",
        "cluster-then": f"/cluster?at={datetime.now(UTC) - timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}",
        "nodes": "/nodes",
        "node": "/nodes/node-0",
        "jobs": "/jobs",
        "job": "/jobs/lr-sweep",
        "launch": f"/launch?from={ids['gang']}",
        "launch-yaml": "/launch?as=yaml&template=a100-large",
        "templates": "/templates",
        "template": "/templates/a100-large",
        "webhooks": "/webhooks",
        "webhook-new": "/webhooks?new=1",
        "dead-letters": "/dead",
        "tokens": "/tokens",
        "more": "/more",
        "usage": "/usage",
        "usage-of-one": "/usage?by=day&user=grace",
        "history": f"/history?at={datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "log": f"/w/{ids['gang']}",
        "ranks": f"/w/{ids['gang']}?tab=ranks",
        "events": f"/w/{ids['gang']}?tab=events",
        "yaml": f"/w/{ids['gang']}?tab=yaml",
        "terminal": f"/w/{ids['gang']}?tab=terminal",
        "failed": f"/w/{ids['failed']}",
        "waiting": f"/w/{ids['big']}",
        "held": f"/w/{ids['held']}",
        "not-found": "/w/nothing-of-this-name",
    }


def populate(stack: RunningStack) -> dict[str, str]:
    """Create queues, and allocations of several users in every state; return {what it shows: id}."""
    for name, spec in TREE.items():
        body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
        stack.kubernetes("POST", QUEUES, {**body, "spec": {"pool": "default", **spec}})
    wait_until(lambda: len(stack.ask(lambda api: api.get("/queues")["items"])) > len(TREE), "the queues are known")
    callers = [Caller(stack, user) for user in USERS]
    ada, grace, lin = callers
    stack.ask(lambda api: api.post("/jobs", {"name": "lr-sweep", "maxSlots": 16, "priority": 60}))
    stack.ask(lambda api: api.post("/templates", {"name": "a100-large", "body": TEMPLATE}))
    stack.ask(lambda api: api.post("/webhooks", WEBHOOK))
    for rate in ("1e-4", "3e-4"):
        lin.launch(TALK, f"lr-{rate}", gpus=2, queue="nightly-evaluation", kind="training", job="lr-sweep")
    ids = {
        "gang": ada.launch(TALK, "llama70b-" + LONG, gpus=4, ranks=2, queue="language", kind="training"),
        "small": grace.launch(TALK, "yolo-baseline", gpus=2, queue="vision-and-robotics-perception", kind="training"),
        "plain": lin.launch(TALK, "tokenizer-corpus-clean-up", queue="platform"),
        "failed": ada.launch(FAIL, "sweep-lr-3e-4-warmup-2000", queue="language"),
        "killed": grace.launch(TALK, "wrong-branch", queue="platform"),
        "done": lin.launch("print('ok')", "nightly-mmlu", queue="nightly-evaluation"),
    }
    for name, phase in {"gang": "Running", "small": "Running", "failed": "Terminated", "done": "Terminated"}.items():
        stack.wait_for(ids[name], phase)
    stack.ask(lambda api: api.post(f"/allocations/{ids['killed']}/kill"))
    ids["big"] = ada.launch(TALK, "mixtral-" + LONG, gpus=8, ranks=8, queue="language", kind="training")
    ids["held"] = grace.launch("pass", "after-the-review", queue="language", hold=True)
    for number in range(9):
        caller = callers[number % len(callers)]
        caller.launch(TALK, f"ablation-{number:02}-attention-heads", gpus=4, ranks=2, queue="language", kind="training")
    lin.launch(TALK, "policy-distillation", gpus=8, ranks=4, queue="vision-and-robotics-perception", kind="training")
    wait_until(lambda: stack.view(ids["big"])["status"].get("conditions"), "why it waits is known")
    return ids


class Caller:
    """A user with a token."""

    def __init__(self, stack: RunningStack, user: str) -> None:
        self._stack = stack
        token = a_token(stack.folder / "tokens", user, SystemClock().now(), {"*": "admin"})
        self._headers = {"Authorization": f"Bearer {token}"}
        wait_until(lambda: self._call("GET", "/me").status_code == 200, f"the token of {user} is known")

    def launch(self, program: str, name: str, *, gpus: int = 0, ranks: int = 1, **more: Any) -> str:
        asked = {"cpu": "100m", "memory": "64Mi", **({"nvidia.com/gpu": gpus} if gpus else {})}
        roles = [{"name": "worker", "count": ranks, "resources": asked}]
        body = {"kind": "command", "image": "local", "name": name, "command": ["python3", "-c", program], **more}
        answer = self._call("POST", "/allocations", json={**body, "ranks": roles})
        assert answer.status_code < 300, answer.text
        return str(answer.json()["id"])

    def link(self) -> str:
        """A one-time link that logs a browser in."""
        return str(self._call("POST", "/login-links", json={"path": "/", "allocation": ""}).json()["url"])

    def _call(self, method: str, path: str, **more: Any) -> httpx2.Response:
        url = f"{self._stack.url}/api/v1{path}"
        return httpx2.request(method, url, headers=self._headers, trust_env=False, timeout=30, **more)


def show(page: Page, address: str) -> None:
    """Open an address of the page, and wait until its content is shown."""
    here = address.partition("?")[0]
    page.goto(address)
    path = here[here.index("/", len("https://")) :]
    page.wait_for(f"location.pathname === {path!r} && !!document.querySelector('main')")
    page.wait_for("!document.querySelector('.loading')")
    time.sleep(SETTLE_S)


def log_in(page: Page, stack: RunningStack) -> str:
    """Open the page with a one-time link, as the first of the users; return its origin."""
    page.goto(Caller(stack, USERS[0]).link())
    page.wait_for("location.pathname === '/' && !!document.querySelector('main h1')")
    return str(page.run("location.origin"))


def photograph(page: Page, path: Path, *, width: int, is_dark: bool) -> None:
    """Take a picture of the whole page, whatever its length, as a PNG."""
    page.look(width=width, height=900, is_dark=is_dark)
    time.sleep(SETTLE_S / 4)
    height = int(page.run("document.documentElement.scrollHeight"))
    page.look(width=width, height=min(max(900, height), 6000), is_dark=is_dark)
    time.sleep(SETTLE_S / 4)
    page.picture(path)


def photograph_for_docs(page: Page, folder: Path, name: str) -> None:
    """Take pictures of the upper part of the page in both themes, as small files."""
    for is_dark in (False, True):
        page.look(width=WIDTHS["wide"], height=DOCS_HEIGHTS[0], is_dark=is_dark)
        time.sleep(SETTLE_S / 4)
        height = int(page.run("Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)"))
        page.look(width=WIDTHS["wide"], height=min(max(height, DOCS_HEIGHTS[0]), DOCS_HEIGHTS[1]), is_dark=is_dark)
        time.sleep(SETTLE_S / 4)
        page.picture(folder / docs_file(name, is_dark=is_dark))


def docs_file(name: str, *, is_dark: bool) -> str:
    """The file of a picture in the docs."""
    return f"{name}-{'dark' if is_dark else 'light'}.webp"


def take(page: Page, folder: Path, name: str) -> None:
    """Take pictures of the present page, in each width and theme."""
    for width_name, width in WIDTHS.items():
        for is_dark in (False, True):
            path = folder / f"{name}-{width_name}-{'dark' if is_dark else 'light'}.png"
            photograph(page, path, width=width, is_dark=is_dark)


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="make pictures", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true", help="what the docs show: wide, small files, no other states")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    program = find()
    if not program:
        print("make pictures: there is no Chromium on the PATH; install it first", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="slipway-pictures-") as data,
        running_stack(Path(data) / "data", cpus=32, memory="64Gi", nodes=4) as stack,
        running_browser(program) as browser,
        browser.page() as page,
    ):
        page.look(width=WIDTHS["wide"])
        origin = log_in(page, stack)
        if not arguments.docs:
            show(page, f"{origin}/")
            take(page, folder, "empty-home")
            show(page, f"{origin}/queues")
            take(page, folder, "empty-queues")
        for name, path in pages(populate(stack)).items():
            page.look(width=WIDTHS["wide"])
            show(page, f"{origin}{path}")
            (photograph_for_docs if arguments.docs else take)(page, folder, name)
        if arguments.docs:
            print(f"make docs-pictures: {len(list(folder.glob('*.webp')))} pictures in {folder}")
            return 0
        page.look(width=WIDTHS["wide"])
        show(page, f"{origin}/queues")
        stack.halt("api")
        page.wait_for("document.querySelector('.connection').textContent === 'No answer'")
        take(page, folder, "offline")
        stack.resume("api")
        page.goto(f"{stack.url}/cluster")
        page.wait_for("document.body.innerText.includes('You are not logged in')")
        take(page, folder, "not-logged-in")
    print(f"make pictures: {len(list(folder.glob('*.png')))} pictures in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
