"""The web page: its frame, the files that it is made of, and who may have them."""

import base64
import gzip
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipway.api.auth.route_rules import OTHERS, PAGES, PermissionScope
from slipway.api.web import assets, web_page
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.model.state_words import STATE_WORDS, word_for
from tests.support.access import teams_world
from tests.support.api_world import ApiWorld

FOLDER = Path(assets.__file__).parents[1] / "pages"
PAGE_TYPES = Path(__file__).parents[4] / "tools" / "pages"
FIRST_BYTES_MAX = 80 * 1024
"""The part of the 120 KiB on the wire for the files of the first page; heads of answers and data have the rest."""
ALL_BYTES_MAX = 350 * 1024
"""The limit for all files that a browser may load, compressed."""
BARE = re.compile(r'\b(?:from ?|import ?\(?)"([^"\s]+)"')


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.found.append((tag, told))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append((told, ""))

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False

    def addresses(self) -> list[str]:
        """The addresses that the browser loads by itself."""
        named = [told.get("src") or told.get("href", "") for tag, told in self.found if tag in ("script", "link")]
        return [address for address in named if address and not address.startswith("data:")]


async def page_of(world: ApiWorld, path: str = "/") -> tuple[str, dict[str, str]]:
    answer = await world.http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    return answer.text, dict(answer.headers)


async def test_every_address_of_the_page_has_its_frame(world: ApiWorld) -> None:
    """The frame is the same for each of them, whatever the path names, and has nothing of the path in it. HEAD gets the
    same headers; other methods are refused."""
    first, headers = await page_of(world)
    del headers["x-request-id"]
    for path in ("/w/run-a-12345678", "/queues", "/queues/%3Cscript%3E", "/cluster", "/launch?from=x"):
        assert (await page_of(world, path))[0] == first
        head = await world.http.head(path)
        assert head.status_code == 200
        assert headers.items() <= dict(head.headers).items()
    refused = await world.http.post("/launch")
    assert (refused.status_code, set(refused.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert (await world.http.get("/w/a/b")).status_code == 404


async def test_nothing_inline_runs_but_the_import_map(world: ApiWorld) -> None:
    """The policy names the hash of the import map; no other inline script, no inline style, no other origin."""
    text, headers = await page_of(world)
    policy = headers["content-security-policy"]
    named = [part.strip().partition(" ") for part in policy.split(";")]
    rules = {name: sources for name, _, sources in named}
    assert rules["default-src"] == "'none'"
    assert (rules["style-src"], rules["connect-src"]) == ("'self'", "'self'")
    assert "unsafe" not in policy
    assert "http" not in policy
    inline = [(told, body) for told, body in Elements(text).scripts if "src" not in told]
    assert [told["type"] for told, _ in inline] == ["importmap", "application/json"]
    digest = base64.b64encode(hashlib.sha256(inline[0][1].encode()).digest()).decode()
    assert rules["script-src"] == f"'self' 'sha256-{digest}'"
    assert not any("style" in told or any(name.startswith("on") for name in told) for _, told in Elements(text).found)


async def test_the_docs_page_has_no_inline_style(world: ApiWorld) -> None:
    """The style of the page is a file as well."""
    text, headers = await page_of(world, "/docs")
    assert "unsafe-inline" not in headers["content-security-policy"]
    assert "<style" not in text
    assert (await world.http.get("/assets/docs/docs.css")).status_code == 200


async def test_the_frame_is_asked_for_again_and_not_sent_again(world: ApiWorld) -> None:
    """The frame has a tag, and a browser asks each time whether there is a newer one."""
    _, headers = await page_of(world)
    assert headers["cache-control"] == "no-cache"
    again = await world.http.get("/cluster", headers={"if-none-match": headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == headers["content-security-policy"]


async def test_files_that_the_page_shell_names_are_immutable(world: ApiWorld) -> None:
    """Each address has the digest of all files in it, so it may be cached for ever."""
    text, _ = await page_of(world)
    mapped = msgspec.json.decode(Elements(text).scripts[1][1])["imports"]
    addresses = {*Elements(text).addresses(), *mapped.values()}
    assert len(addresses) > 15
    for address in addresses:
        answer = await world.http.get(address)
        assert answer.status_code == 200, address
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable", address
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["content-type"].partition(";")[0] in ("text/javascript", "text/css")


async def test_a_file_of_another_version_is_not_kept(world: ApiWorld) -> None:
    """While two versions answer, a page gets the file of this one, and asks again the next time."""
    known = f"/assets/pages/{assets.pages_digest()}/main.js"
    other = await world.http.get("/assets/pages/0123456789abcdef/main.js")
    assert other.content == (await world.http.get(known)).content
    assert other.headers["cache-control"] == "no-cache"
    same = await world.http.get(known, headers={"if-none-match": other.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")


async def test_nothing_else_of_the_folder_is_served(world: ApiWorld) -> None:
    """Neither the README nor a file beside the folder is served, by whatever spelling."""
    digest = assets.pages_digest()
    for path in ("README.md", "vendor/README.md", "vendor/preact-LICENSE", "../app.py", "%2e%2e/app.py", "", "vendor"):
        assert (await world.http.get(f"/assets/pages/{digest}/{path}")).status_code == 404, path
    for path in ("main.js", "pages/main.js", f"pages/{digest}"):
        assert (await world.http.get(f"/assets/{path}")).status_code == 404, path


async def test_the_page_shell_is_public_and_the_data_are_not(tmp_path: Path) -> None:
    """The frame tells nothing of the cluster, so it needs no token; the data have the rights of the caller."""
    async with teams_world("token", tmp_path) as teams:
        for path in (each.replace("{id}", "anything").replace("{name}", "x") for each in PAGES):
            answer = await teams.world.http.get(path)
            assert answer.status_code == 200
            assert not any(name in answer.text for name in (*teams.ids.values(), "canaryred", "canaryblue"))
        for path in ("/allocations", "/nodes", "/queues", "/me", "/events"):
            assert (await teams.world.http.get(f"/api/v1{path}")).status_code == 401
    assert all(OTHERS[path].where is PermissionScope.PUBLIC for path in PAGES)


def test_the_first_content_needs_little() -> None:
    """Frame, style and the modules of the first page are small, compressed; the other pages are loaded later, by
    themselves."""
    text = web_page._made()[0]  # pyright: ignore[reportPrivateUsage]
    frame = len(gzip.compress(text.encode()))
    root = f"/assets/pages/{assets.pages_digest()}/"
    first = [f"pages/{address.removeprefix(root)}" for address in Elements(text).addresses()]
    assert not any("yaml-5" in path or "uplot" in path or "virtual-core" in path for path in first)
    assert {"pages/workload.js", "pages/queues.js", "pages/launch.js"}.isdisjoint(first)
    assert {"pages/main.js", "pages/home.js", "pages/store.js"} <= set(first)
    files = {path: len(assets.load(path).compressed) for path in first}
    assert frame + sum(files.values()) < FIRST_BYTES_MAX, files


def test_all_that_a_browser_can_load_is_small() -> None:
    """The page with all that loads late (the terminal, the reference of the REST API, the trace) needs less than 350
    KiB."""
    files = {path: len(assets.load(path).compressed) for path in assets.files()}
    assert set(assets.page_files()) < set(files)
    assert sum(files.values()) < ALL_BYTES_MAX, files


def test_vendored_modules_are_what_they_say() -> None:
    """The README of the folder has each file with its hash, and each file is as it was published; each has its
    licence."""
    vendor = FOLDER / "vendor"
    rows = dict(re.findall(r"^\| `([^`]+)` .*`([0-9a-f]{64})` \|$", (vendor / "README.md").read_text(), re.MULTILINE))
    paths = [path for path in vendor.rglob("*") if path.is_file()]
    found = {str(path.relative_to(vendor)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    del found["README.md"]
    assert rows == found
    for name in ("preact", "signals", "signals-core", "htm", "js-yaml", "uplot", "virtual-core"):
        assert f"{name}-LICENSE" in found


def test_types_are_checked_against_what_is_vendored() -> None:
    """The packages whose types the check reads have the versions of the files that browsers load."""
    vendor = (FOLDER / "vendor" / "README.md").read_text()
    vendor += (FOLDER.parent / "assets" / "terminal" / "vendor" / "README.md").read_text()
    vendored = dict(found.rsplit(" ", 1) for found in re.findall(r"^\| `[^`]+` \| `([^`]+)`", vendor, re.MULTILINE))
    named: dict[str, str] = msgspec.json.decode((PAGE_TYPES / "package.json").read_bytes())["devDependencies"]
    assert vendored == {name: version for name, version in named.items() if name != "typescript"}


def test_every_import_leads_somewhere() -> None:
    """A relative import leads to a file that is served; a name leads to a row of the import map, and each row to a
    file."""
    served = assets.page_files()
    names: set[str] = set()
    for path in FOLDER.rglob("*.*js"):
        for named in BARE.findall(path.read_text("utf-8")):
            if named.startswith("."):
                target = (path.parent / named).resolve().relative_to(FOLDER.parent.resolve()).as_posix()
                assert target in served, f"{path.name} imports {named}"
            else:
                names.add(named)
    imports: dict[str, str] = web_page._IMPORTS  # pyright: ignore[reportPrivateUsage]
    shared: dict[str, str] = web_page._SHARED  # pyright: ignore[reportPrivateUsage]
    assert names == {*imports, *shared}
    assert all(f"pages/vendor/{file}" in served for file in imports.values())
    assert all(address.removeprefix("/assets/") in assets.files() for address in shared.values())


def test_both_sides_know_the_same_addresses() -> None:
    """The pages of the router are the addresses at which the API serves the frame."""
    listed = re.search(r"const PAGES = \{(.*?)\n\};", (FOLDER / "main.js").read_text("utf-8"), re.DOTALL)
    assert listed is not None
    assert tuple(re.findall(r'^  "([^"]+)": \[', listed[1], re.MULTILINE)) == PAGES


def test_no_module_builds_markup_from_strings() -> None:
    """No module turns text into elements, or loads anything from elsewhere."""
    for path in FOLDER.glob("*.js"):
        text = path.read_text("utf-8")
        for word in (
            "innerHTML",
            "outerHTML",
            "dangerouslySetInnerHTML",
            "insertAdjacentHTML",
            "eval(",
            "new Function",
            "https://",
        ):
            assert word not in text, f"{path.name} has {word}"


async def test_the_labels_are_part_of_the_page_shell(world: ApiWorld) -> None:
    """Every phase and every result is explained once, by the API; the modules have them from the frame."""
    text, _ = await page_of(world)
    (told,) = [body for given, body in Elements(text).scripts if given.get("id") == "facts"]
    facts: dict[str, Any] = msgspec.json.decode(told)
    assert facts["phases"] == [phase.value for phase in Phase]
    assert {*Phase, *Result, "Held", "Ready", "Waiting"} == set(facts["states"])
    assert len({each.word for each in STATE_WORDS}) == len(STATE_WORDS)
    assert all(each["tone"] and each["meaning"].endswith(".") for each in facts["states"].values())
    assert facts["flagWords"] == {"Pending": {"hold": "Held"}, "Running": {"waiting": "Waiting", "ready": "Ready"}}


@pytest.mark.parametrize(
    ("phase", "result", "flags", "word"),
    [
        ("Pending", None, {}, "Pending"),
        ("Pending", None, {"hold": True}, "Held"),
        ("Assigned", None, {"hold": True}, "Assigned"),
        ("Running", None, {"ready": True}, "Ready"),
        ("Running", None, {"ready": True, "waiting": True}, "Waiting"),
        ("Terminated", "Failed", {"ready": True}, "Failed"),
        ("Terminated", None, {}, "Terminated"),
    ],
)
def test_each_state_has_one_label(phase: str, result: str | None, flags: dict[str, bool], word: str) -> None:
    """The word is the result of ended work; Held, Ready or Waiting by the flags; else the phase."""
    given = {"hold": False, "ready": False, "waiting": False, **flags}
    assert word_for(phase, result, **given) == word


async def test_an_allocation_has_its_state_label(world: ApiWorld) -> None:
    """`state` of an answer is the word that the command line has for it as well."""
    held = await world.launch(hold=True)
    assert held["state"] == "Held"
    running = await world.launch()
    await world.run(running["name"])
    assert (await world.get(f"/allocations/{running['id']}")).json()["state"] == "Running"


async def test_a_name_that_is_not_served_gets_no_frame(world: ApiWorld) -> None:
    """Otherwise a page of another site could point its own name at the api."""
    assert (await world.http.get("/", headers={"host": "elsewhere.example"})).status_code == 421
