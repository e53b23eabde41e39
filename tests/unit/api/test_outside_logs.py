"""Links to a cluster's own logs: what a template may say, and what becomes of an allocation in it."""

from urllib.parse import parse_qs, urlsplit

import pytest

from slipway.api.outside_logs import PLACEHOLDERS, check_logs_url_template, outside_logs_url
from slipway.api.settings import Settings
from slipway.errors import InvalidError
from slipway.runtime.settings import load
from tests.support.allocations import an_allocation
from tests.support.api_world import api_world

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
    """The answer names the setting and what to write instead."""
    with pytest.raises(InvalidError, match="SLIPWAY_LOGS_URL_TEMPLATE") as refused:
        load(Settings, {"SLIPWAY_LOGS_URL_TEMPLATE": template})
    assert word in str(refused.value)


def test_every_placeholder_may_be_used() -> None:
    """And text without one, too."""
    check_logs_url_template("https://logs.example/" + "/".join(f"{{{name}}}" for name in PLACEHOLDERS))
    check_logs_url_template("https://logs.example/")
    check_logs_url_template(GRAFANA)


async def test_the_link_is_in_every_view_of_an_allocation() -> None:
    """In a launch's answer, in one, in a list and in what a change answers; without a template there is none."""
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
    found = outside_logs_url("https://logs.example/x/{workspace}/{id}?to={to_ms}", allocation)
    assert found is not None
    parts = urlsplit(found)
    assert (parts.netloc, len(parts.path.split("/"))) == ("logs.example", 4)
