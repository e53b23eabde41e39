"""Links to other tools of a cluster: which templates are accepted, and how an allocation fills them in."""

import re
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from slipway.api.allocations.outside_links import LINKS_MAX, PLACEHOLDERS, check_url_template, link_to
from slipway.api.settings import Settings
from slipway.errors import InvalidError
from slipway.runtime.settings import load
from tests.support.allocations import an_allocation
from tests.support.api_world import api_world
from tests.support.cli import CliUser
from tests.support.http_stub import serve_app

GRAFANA = (
    "https://grafana.example/explore?left=%7B%22queries%22%3A%5B%7B%22expr%22%3A%22%7Bnamespace%3D%5C%22{workspace}"
    "%5C%22%2Cpod%3D~%5C%22{id}-.*%5C%22%7D%22%7D%5D%2C%22range%22%3A%7B%22from%22%3A%22{from_ms}%22%2C%22to%22%3A%22{to_ms}%22%7D%7D"
)


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("grafana.example/{id}", "http:// or https://"),
        ("javascript:alert({id})", "http:// or https://"),
        ("https://user:secret@grafana.example/{id}", "without a user"),
        ("https://grafana.example/{pod}", "{workspace}, {id}"),
        ("https://{workspace}.example/{id}", "host without a placeholder"),
        ('https://grafana.example/?q={"a":"{id}"}', "%7B"),
        ("https://grafana.example/?q={id} now", "%20"),
    ],
)
def test_a_template_that_cannot_work_is_refused_at_the_start(template: str, word: str) -> None:
    """The error names the setting and what to write instead."""
    with pytest.raises(InvalidError, match="SLIPWAY_LOGS_URL_TEMPLATE") as refused:
        load(Settings, {"SLIPWAY_LOGS_URL_TEMPLATE": template})
    assert word in str(refused.value)


def test_every_placeholder_may_be_used() -> None:
    """A template without a placeholder is accepted too."""
    check_url_template("https://logs.example/" + "/".join(f"{{{name}}}" for name in PLACEHOLDERS))
    check_url_template("https://logs.example/")
    check_url_template(GRAFANA)


async def test_the_link_is_in_every_view_of_an_allocation() -> None:
    """The link is in the answers of a launch, a read, a list and a change; without a template there is none."""
    async with api_world(Settings(logs_url_template=GRAFANA)) as world:
        launched = await world.launch(name="llm")
        views = [
            launched,
            (await world.get(f"/allocations/{launched['id']}")).json(),
            (await world.get("/allocations")).json()["items"][0],
            (await world.post(f"/allocations/{launched['id']}/hold")).json(),
        ]
        for view in views:
            (left,) = parse_qs(urlsplit(str(view["links"]["outsideLogs"])).query)["left"]
            assert f'pod=~\\"{launched["id"]}-.*' in left
            assert '"to":"now"' in left
    async with api_world() as world:
        assert (await world.launch(name="llm"))["links"].get("outsideLogs") is None


def test_text_of_an_allocation_cannot_change_the_address() -> None:
    """Names are quoted, so that none is more than a part of the path or the query."""
    allocation = an_allocation()
    found = link_to("https://logs.example/x/{workspace}/{id}?to={to_ms}", allocation)
    parts = urlsplit(found)
    assert (parts.netloc, len(parts.path.split("/"))) == ("logs.example", 4)


DASHBOARD = {"title": "Dashboard", "url": "https://grafana.example/d/1?var-id={id}&from={from_ms}", "icon": "dashboard"}


def set_to(*links: object) -> str:
    return msgspec.json.encode(links).decode()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("https://grafana.example", "must be a JSON list such as"),
        (set_to({"url": "https://x.example"}), "title"),
        (set_to({**DASHBOARD, "title": ""}), "title"),
        (set_to({**DASHBOARD, "title": "a\u202eb"}), "[0].title has characters that cannot be shown"),
        (set_to({**DASHBOARD, "href": "https://x.example"}), "href"),
        (set_to(DASHBOARD, {**DASHBOARD, "url": "javascript:alert(1)"}), "[1].url must be an http:// or https://"),
        (set_to({**DASHBOARD, "url": "https://x.example/{pod}"}), "[0].url has {pod}; it may have {workspace}, {id}"),
        (set_to({**DASHBOARD, "url": ""}), "[0].url is empty"),
        (set_to({**DASHBOARD, "icon": "a b"}), "icon"),
        (set_to(*[DASHBOARD] * (LINKS_MAX + 1)), "length <= 16"),
    ],
)
def test_links_that_cannot_work_are_refused_at_the_start(text: str, word: str) -> None:
    """The error names the setting, which link it is, and what is wrong with it."""
    with pytest.raises(InvalidError, match=f"SLIPWAY_OUTSIDE_LINKS.*{re.escape(word)}"):
        load(Settings, {"SLIPWAY_OUTSIDE_LINKS": text})


async def test_links_are_in_every_view_and_in_what_describe_prints() -> None:
    """The links are in the order of the setting, with the values of the allocation; without the setting there are
    none."""
    runbook = {"title": "Runbook", "url": "https://wiki.example/gpu"}
    settings = load(Settings, {"SLIPWAY_OUTSIDE_LINKS": set_to(DASHBOARD, runbook)})
    async with api_world(settings) as world, serve_app(world.app, before_stop=world.stop.set) as url:
        launched = await world.launch(name="llm")
        shown = (await world.get(f"/allocations/{launched['id']}")).json()["links"]["outside"]
        assert shown == launched["links"]["outside"]
        assert [(link["title"], link.get("icon")) for link in shown] == [("Dashboard", "dashboard"), ("Runbook", None)]
        assert shown[0]["url"].startswith(f"https://grafana.example/d/1?var-id={launched['id']}&from=1")
        described = await CliUser(url).run("describe", launched["id"])
        assert re.search(r"^Dashboard: +https://grafana\.example/d/1\?", described.out, re.MULTILINE), described
    async with api_world() as world:
        assert "outside" not in (await world.launch(name="llm"))["links"]
