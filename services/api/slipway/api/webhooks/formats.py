"""The body of a message in the form that its receiver reads: CloudEvents for programs, a message for Slack or Teams.

Pure. Owns what people read of an event in a chat, and the limits of the chats. Must not know how anything is sent.

Invariant: no text of an event is read as markup by a chat: it mentions nobody, formats nothing and is no link. Both
messages hold it as plain text; in Slack's line for notifications, which cannot, what begins markup is escaped.

Source: Slack, "Sending messages using incoming webhooks", "Block Kit" and "Formatting text"; Microsoft, "Create
incoming webhooks with Workflows for Microsoft Teams" and the schema of Adaptive Cards 1.4 (`RichTextBlock`).
"""

from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

from slipway.api.cloudevents import cloud_event
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from slipway.model.standing import STANDINGS, Tone

Json = dict[str, Any]

CLOUDEVENTS_TYPE = "application/cloudevents+json; charset=utf-8"
JSON_TYPE = "application/json; charset=utf-8"
TITLE_CHARS_MAX = 150
"""Slack's limit for a header."""
TEXT_CHARS_MAX = 1_000
"""Of each fact; Slack takes 2,000 of a field."""
_CARD_TYPE = "application/vnd.microsoft.card.adaptive"
_CARD_SCHEMA = "http://adaptivecards.io/schemas/adaptive-card.json"
_CARD_VERSION = "1.4"
_COLOURS = {Tone.GOOD: "Good", Tone.BAD: "Attention", Tone.WAITS: "Warning"}
_SLACK_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_TONES = {str(each.word): each.tone for each in STANDINGS}
_FACTS = {
    "user": "user",
    "kind": "kind",
    "pool": "pool",
    "ranks": "ranks",
    "slots": "GPUs",
    "nodes": "nodes",
    "by": "makes room for",
    "deadline": "killed at the latest",
    "blocked": "cannot start",
}
"""{field of an event's `data`: what a chat calls it}"""


class BodyFormat(StrEnum):
    """What a webhook's receiver reads."""

    CLOUDEVENTS = "cloudevents"
    SLACK = "slack"
    TEAMS = "teams"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What people read of one event."""

    title: str
    facts: list[tuple[str, str]]
    """(what, value)"""
    tone: Tone = Tone.NEUTRAL
    link: str = ""
    """address of the allocation's page; empty: not known"""


def content_type(form: BodyFormat) -> str:
    """Of a body in this form."""
    return CLOUDEVENTS_TYPE if form is BodyFormat.CLOUDEVENTS else JSON_TYPE


def event_body(form: BodyFormat, event: AllocationEvent, page_url: str) -> bytes:
    """The body that tells of an event; `page_url` is where people open the pages (empty: no link)."""
    if form is BodyFormat.CLOUDEVENTS:
        return cloud_event(event)
    return _chat_body(form, _message_of(event, page_url))


def trial_body(form: BodyFormat, webhook: str, event: Json) -> bytes:
    """The body of a trial message to this webhook, which is `event` for programs."""
    if form is BodyFormat.CLOUDEVENTS:
        return msgspec.json.encode(event)
    facts = [("webhook", webhook), ("time", str(event["time"]))]
    return _chat_body(form, ChatMessage(title="Slipway: this webhook works", facts=facts, tone=Tone.GOOD))


def _message_of(event: AllocationEvent, page_url: str) -> ChatMessage:
    result = event.data.get("result")
    is_end = event.type is Event.TERMINATED and result in [each.value for each in Result]
    word = str(result) if is_end else event.type.value
    facts = [("workspace", event.namespace), ("allocation", event.allocation_id)]
    facts += [("reason", event.reason)] if event.reason else []
    facts += [("attempt", str(event.attempt))] if event.attempt > 1 else []
    facts += [(name, _text(event.data[field])) for field, name in _FACTS.items() if event.data.get(field)]
    facts += [("events lost before it", event.truncated)] if event.truncated else []
    facts.append(("time", event.time))
    link = f"{page_url.rstrip('/')}/w/{quote(event.allocation_id, safe='')}" if page_url else ""
    tone = _TONES.get(word if is_end else event.phase.value, Tone.NEUTRAL)
    return ChatMessage(title=f"{event.name}: {word}", facts=facts, tone=tone, link=link)


def _text(value: Any) -> str:
    """A value as people read it: a list as its parts, a map as its keys with theirs."""
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, dict):
        return ", ".join(f"{key} ({each})" for key, each in value.items())  # pyright: ignore[reportUnknownVariableType]
    return str(value)


def _chat_body(form: BodyFormat, message: ChatMessage) -> bytes:
    facts = [(name, _cut(value, TEXT_CHARS_MAX)) for name, value in message.facts]
    short = msgspec.structs.replace(message, title=_cut(message.title, TITLE_CHARS_MAX), facts=facts)
    return msgspec.json.encode(_slack(short) if form is BodyFormat.SLACK else _teams(short))


def _slack(message: ChatMessage) -> Json:
    def plain(text: str) -> Json:
        return {"type": "plain_text", "text": text, "emoji": False}

    fields = [plain(f"{name}: {value}") for name, value in message.facts]
    blocks: list[Json] = [{"type": "header", "text": plain(message.title)}]
    # A section has at most ten fields.
    blocks += [{"type": "section", "fields": fields[at : at + 10]} for at in range(0, len(fields), 10)]
    if message.link:
        # A button would ask for an app that answers when it is pressed. The address is ours, and holds no markup.
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{message.link}|Open>"}})
    return {"text": message.title.translate(_SLACK_ESCAPES), "blocks": blocks}


def _teams(message: ChatMessage) -> Json:
    def rich(*runs: Json, spacing: str) -> Json:
        return {
            "type": "RichTextBlock",
            "spacing": spacing,
            "inlines": [{"type": "TextRun", **each} for each in runs],
        }

    title: Json = {"text": message.title, "weight": "Bolder", "size": "Medium"}
    if message.tone in _COLOURS:
        title["color"] = _COLOURS[message.tone]
    card: Json = {
        "$schema": _CARD_SCHEMA,
        "type": "AdaptiveCard",
        "version": _CARD_VERSION,
        "body": [
            rich(title, spacing="Default"),
            *(
                rich({"text": f"{name}: ", "weight": "Bolder"}, {"text": value}, spacing="Small")
                for name, value in message.facts
            ),
        ],
    }
    if message.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open", "url": message.link}]
    return {"type": "message", "attachments": [{"contentType": _CARD_TYPE, "contentUrl": None, "content": card}]}


def _cut(text: str, chars_max: int) -> str:
    """At most so many characters; what is left out is said by an ellipsis. A chat refuses an empty text."""
    return (text if len(text) <= chars_max else f"{text[: chars_max - 1]}…") or "-"
