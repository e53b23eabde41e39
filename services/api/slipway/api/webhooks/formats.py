"""The body of a webhook message in the format of its receiver: CloudEvents for programs, a message for Slack or Teams.

Pure. Owns the text that people read in a chat, and the limits of the chats. Must not know how a message is sent.

Invariant: a chat interprets no text of an event as markup: the text mentions no user, has no formatting and makes no
link. Both messages contain it as plain text. Slack's line for notifications cannot contain plain text; there the
characters that begin markup are escaped.

Source: Slack, "Sending messages using incoming webhooks", "Block Kit" and "Formatting text"; Microsoft, "Create
incoming webhooks with Workflows for Microsoft Teams" and the schema of Adaptive Cards 1.4 (`RichTextBlock`).
"""

from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

from slipway.api.http.cloudevents import cloud_event
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from slipway.model.state_words import STATE_WORDS, Tone

Json = dict[str, Any]

CLOUDEVENTS_TYPE = "application/cloudevents+json; charset=utf-8"
JSON_TYPE = "application/json; charset=utf-8"
TITLE_CHARS_MAX = 150
"""Slack's limit for a header."""
TEXT_CHARS_MAX = 1_000
"""Our limit for each fact; Slack accepts 2,000 characters in a field."""
_CARD_TYPE = "application/vnd.microsoft.card.adaptive"
_CARD_SCHEMA = "http://adaptivecards.io/schemas/adaptive-card.json"
_CARD_VERSION = "1.4"
_COLOURS = {Tone.GOOD: "Good", Tone.BAD: "Attention", Tone.WAITS: "Warning"}
_SLACK_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_TONES = {str(each.word): each.tone for each in STATE_WORDS}
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
"""{field of an event's `data`: its name in a chat message}"""


class BodyFormat(StrEnum):
    """The format that a webhook's receiver reads."""

    CLOUDEVENTS = "cloudevents"
    SLACK = "slack"
    TEAMS = "teams"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The text of one event for people."""

    title: str
    facts: list[tuple[str, str]]
    """(name, value)"""
    tone: Tone = Tone.NEUTRAL
    link: str = ""
    """address of the allocation's page; empty: not known"""


def content_type(form: BodyFormat) -> str:
    """Return the Content-Type of a body in this format."""
    return CLOUDEVENTS_TYPE if form is BodyFormat.CLOUDEVENTS else JSON_TYPE


def event_body(form: BodyFormat, event: AllocationEvent, page_url: str) -> bytes:
    """Return the body for an event; `page_url` is the address of our pages for people (empty: no link)."""
    if form is BodyFormat.CLOUDEVENTS:
        return cloud_event(event)
    return _chat_body(form, _message_of(event, page_url))


def trial_body(form: BodyFormat, webhook: str, event: Json) -> bytes:
    """Return the body of a test message to this webhook; in the format for programs it is `event`."""
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
    """Return a value as text for people: a list as its items, a map as `key (value)` pairs."""
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
        # A link and no button, because a button needs an app that answers it. The address is ours and has no markup.
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
    """Cut the text to `chars_max` characters, with an ellipsis; an empty text becomes `-`, because chats refuse it."""
    return (text if len(text) <= chars_max else f"{text[: chars_max - 1]}…") or "-"
