"""Messages for Slack and Teams: their own models accept them, whatever an event has, and no text of an event is
markup."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from microsoft_teams.cards.core import AdaptiveCard, OpenUrlAction, RichTextBlock, TextRun
from pydantic import BaseModel
from slack_sdk.models.blocks import Block

from slipway.api.webhooks.formats import BodyFormat, content_type, event_body, trial_body
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from tests.support.redis import an_event

Json = dict[str, Any]
PAGE = "https://slipway.example.org/"
TEAMS_BYTES_MAX = 28_672
"""What a card of Teams may have."""
HOSTILE = "<!channel> <@U1> [free](https://evil.example) *bold* <https://evil.example|here>"


def slack(body: bytes) -> list[Block]:
    """The blocks, checked by Slack's own models; each raises what Slack would refuse."""
    message = cast("Json", json.loads(body))
    assert set(message) == {"text", "blocks"}
    assert message["text"]
    parse = cast("Callable[[Json], Block | None]", Block.parse)  # pyright: ignore[reportUnknownMemberType]
    blocks = [block for each in message["blocks"] if (block := parse(each)) is not None]
    assert len(blocks) == len(message["blocks"]) <= 50
    for block in blocks:
        block.validate_json()
    return blocks


def teams(body: bytes) -> Json:
    """The card, checked by Microsoft's own model: each of its properties is one that the model knows."""
    message = cast("Json", json.loads(body))
    [attachment] = message["attachments"]
    assert (message["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    card = attachment["content"]
    blocks, actions = card["body"], card.get("actions", [])
    # The model of a card accepts any element, so each element is checked by the model of its own type.
    parts: list[tuple[type[BaseModel], Json]] = [(AdaptiveCard, card)]
    parts += [(RichTextBlock, each) for each in blocks] + [(OpenUrlAction, each) for each in actions]
    parts += [(TextRun, run) for block in blocks for run in block["inlines"]]
    for model, each in parts:
        checked = model.model_validate(each)
        assert checked.model_dump()["type"] == each["type"]
        assert set(checked.model_extra or ()) <= {"$schema"}
    assert len(body) <= TEAMS_BYTES_MAX
    return cast("Json", card)


def texts(value: Any) -> list[str]:
    """All texts in a JSON value."""
    if isinstance(value, dict):
        return [text for each in cast("Json", value).values() for text in texts(each)]
    if isinstance(value, list):
        return [text for each in cast("list[Any]", value) for text in texts(each)]
    return [value] if isinstance(value, str) else []


def test_programs_get_the_event() -> None:
    """Without another format the body is a CloudEvent."""
    body = event_body(BodyFormat.CLOUDEVENTS, an_event(3), PAGE)
    assert json.loads(body)["specversion"] == "1.0"
    assert content_type(BodyFormat.CLOUDEVENTS).startswith("application/cloudevents+json")
    assert content_type(BodyFormat.SLACK).startswith("application/json")


@pytest.mark.parametrize("form", [BodyFormat.SLACK, BodyFormat.TEAMS])
def test_a_message_says_what_happened_and_leads_to_the_page(form: BodyFormat) -> None:
    """The name and the result as its title, the reason, and a link."""
    event = an_event(5, type=Event.TERMINATED, reason="OutOfMemory", data={"result": "Failed", "slots": 8})
    body = event_body(form, event, PAGE)
    said = texts(json.loads(body))
    assert any("train: Failed" in each for each in said)
    assert any("OutOfMemory" in each for each in said)
    assert any(f"https://slipway.example.org/w/{event.allocation_id}" in each for each in said)
    assert not any("evil" in each or "//w/" in each for each in said)
    bare = texts(json.loads(event_body(form, event, "")))
    assert not any(each.startswith("http") and "/w/" in each for each in bare)


def test_teams_colours_how_it_ended() -> None:
    """A failure has the colour Attention, a success the colour Good."""
    colours = {
        result: teams(event_body(BodyFormat.TEAMS, an_event(5, type=Event.TERMINATED, data={"result": result}), ""))[
            "body"
        ][0]["inlines"][0].get("color")
        for result in ("Failed", "Succeeded", "Canceled")
    }
    assert colours == {"Failed": "Attention", "Succeeded": "Good", "Canceled": None}


def test_no_text_of_an_event_is_markup() -> None:
    """Slack reads markup in `mrkdwn` and in `text`, Teams in a TextBlock and a FactSet: none of these has text of the
    event."""
    event = an_event(1, type=Event.REQUESTED, data={"user": HOSTILE, "pool": HOSTILE})
    message = json.loads(event_body(BodyFormat.SLACK, event, PAGE))
    marked = [each["text"]["text"] for each in message["blocks"] if each.get("text", {}).get("type") == "mrkdwn"]
    assert marked == [f"<https://slipway.example.org/w/{event.allocation_id}|Open>"]
    assert "<" not in message["text"]
    card = teams(event_body(BodyFormat.TEAMS, event, PAGE))
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert HOSTILE in texts(card)


@given(
    type_=st.sampled_from(Event),
    data=st.dictionaries(
        st.sampled_from(["user", "kind", "pool", "ranks", "slots", "nodes", "by", "deadline", "blocked", "result"]),
        st.one_of(st.text(max_size=3_000), st.integers(), st.lists(st.text(max_size=400)), st.sampled_from(Result)),
    ),
    page=st.sampled_from(["", PAGE, "http://127.0.0.1:8080/a/b"]),
    truncated=st.sampled_from([None, "3-7"]),
)
def test_the_chats_accept_every_event(type_: Event, data: Json, page: str, truncated: str | None) -> None:
    """Whatever an event holds, its message keeps the limits of both chats."""
    event = an_event(2, type=type_, data=data, truncated=truncated, attempt=3, reason="RankFailed")
    slack(event_body(BodyFormat.SLACK, event, page))
    teams(event_body(BodyFormat.TEAMS, event, page))


@pytest.mark.parametrize("form", [BodyFormat.SLACK, BodyFormat.TEAMS])
def test_a_trial_is_a_message_too(form: BodyFormat) -> None:
    """`slipway webhook test` shows what a chat will show."""
    body = trial_body(form, "pager", {"time": "2026-01-02T03:04:05Z"})
    (slack if form is BodyFormat.SLACK else teams)(body)
    assert any("pager" in each for each in texts(json.loads(body)))
