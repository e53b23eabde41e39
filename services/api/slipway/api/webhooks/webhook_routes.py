"""Webhooks: events of allocations, posted to receivers outside."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.api.http.errors import ConflictError
from slipway.api.http.etags import held_to, required_version, tag_of
from slipway.api.http.networks import parse_networks
from slipway.api.schemas import Items
from slipway.api.webhooks import formats
from slipway.api.webhooks.addresses import ForbiddenTargetError, check_literal, parse_target
from slipway.api.webhooks.hook import KEY_BYTES, Config, Webhook, key_text, parse_key
from slipway.api.webhooks.schemas import WebhookBody, WebhookChange, WebhookTest, WebhookView
from slipway.api.webhooks.sender import Message
from slipway.crd.fielderrors import Findings
from slipway.errors import InvalidError, TransientError
from slipway.model.events import TYPE_PREFIX
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from slipway.model.times import format_time

TAG = "webhooks"
ROOT = "/api/v1/webhooks"
WEBHOOKS_MAX = 100
"""Limit of webhooks, because each event is compared with every webhook."""
TEST_TYPE = "dev.slipway.webhook.test"
NEEDS_REDIS = (
    "webhooks are delivered from streams in Redis, and this installation has none (SLIPWAY_REDIS_URL is not set)"
)


async def list_webhooks(request: Request) -> Response:
    """Return all webhooks."""
    parts = parts_of(request)
    found = [webhook for _, webhook in sorted((await parts.webhooks.listed()).items())]
    return json_response(Items(items=await _views(parts, found)))


async def create(request: Request) -> Response:
    """Create a webhook. Only this answer contains its signing key."""
    parts = parts_of(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), WebhookBody)
    config = Config(
        url=body.url,
        events=_short(body.events),
        workspaces=body.workspaces,
        results=body.results,
        description=body.description,
        enabled=body.enabled,
        format=body.format,
        page_url=body.page_url,
    )
    _check(parts, config, body.secret)
    if not parts.settings.redis_url:
        raise ConflictError(NEEDS_REDIS)
    known = await parts.webhooks.listed()
    if len(known) >= WEBHOOKS_MAX:
        raise ConflictError(f"there are {WEBHOOKS_MAX} webhooks already; remove one first")
    name = body.name or f"hook-{parts.random.token_hex(3)}"
    if name not in known:
        # The delivery queue of a deleted webhook with this name may still exist.
        await _forget_quietly(parts, name)
    key = parse_key(body.secret) if body.secret else _new_key(parts)
    created = await parts.webhooks.create(Webhook(name=name, config=config, key=key))
    [view] = await _views(parts, [created])
    shown = msgspec.structs.replace(view, secret=key_text(key))
    headers = {"Location": f"{ROOT}/{name}", "ETag": tag_of(view.resource_version)}
    return json_response(shown, status=201, headers=headers)


async def get(request: Request) -> Response:
    """Return one webhook."""
    parts = parts_of(request)
    [view] = await _views(parts, [await parts.webhooks.get(request.path_params["name"])])
    return json_response(view, headers={"ETag": tag_of(view.resource_version)})


async def patch(request: Request) -> Response:
    """Change some fields of a webhook. The answer contains a new signing key, once."""
    parts = parts_of(request)
    found = await parts.webhooks.get(request.path_params["name"])
    change = checked(await read_object(request, parts.settings.body_bytes_max), WebhookChange)
    version = required_version(request, found.resource_version, "webhook")
    if change.rotate_secret and change.secret:
        raise _refused("/rotateSecret", "set either secret or rotateSecret, not both")
    wanted = {
        name: getattr(change, name)
        for name in (
            "url",
            "events",
            "workspaces",
            "results",
            "description",
            "enabled",
            "format",
            "page_url",
        )
        if getattr(change, name) is not msgspec.UNSET
    }
    if "events" in wanted:
        wanted["events"] = _short(wanted["events"])
    config = msgspec.structs.replace(found.config, **wanted)
    secret = change.secret if isinstance(change.secret, str) else ""
    _check(parts, config, secret)
    key = parse_key(secret) if secret else _new_key(parts) if change.rotate_secret else found.key
    with held_to(version, f"webhook {found.name}"):
        stored = await parts.webhooks.replace(msgspec.structs.replace(found, config=config, key=key))
    [view] = await _views(parts, [stored])
    shown = view if key == found.key else msgspec.structs.replace(view, secret=key_text(key))
    return json_response(shown, headers={"ETag": tag_of(view.resource_version)})


async def delete(request: Request) -> Response:
    """Delete a webhook and its queued deliveries."""
    parts = parts_of(request)
    found = await parts.webhooks.get(request.path_params["name"])
    version = required_version(request, found.resource_version, "webhook")
    with held_to(version, f"webhook {found.name}"):
        await parts.webhooks.delete(found, resource_version=version)
    await _forget_quietly(parts, found.name)
    return Response(status_code=204)


async def test(request: Request) -> Response:
    """Send one test message now, and return the result. It is sent once, without a retry and regardless of filters."""
    parts = parts_of(request)
    found = await parts.webhooks.get(request.path_params["name"])
    checked(await read_object(request, parts.settings.body_bytes_max), _Nothing)
    message_id = f"test/{found.name}/{parts.random.token_hex(8)}"
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": message_id,
        "source": f"/slipway/webhooks/{found.name}",
        "type": TEST_TYPE,
        "subject": found.name,
        "time": format_time(parts.clock.now()),
        "datacontenttype": "application/json",
        "data": {"webhook": found.name},
    }
    form = found.config.format
    body = formats.trial_body(form, found.name, event)
    message = Message(id=message_id, body=body, content_type=formats.content_type(form))
    answer = await parts.sender.send(found, message)
    view = WebhookTest(
        delivered=answer.delivered,
        status=answer.status,
        detail=answer.detail,
        duration_ms=round(answer.duration_s * 1_000, 1),
    )
    return json_response(view)


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body without fields."""


def _check(parts: ApiDeps, config: Config, secret: str) -> None:
    """Make all checks of a webhook that need no delivery. Raises InvalidError."""
    findings = Findings()
    try:
        check_literal(parse_target(config.url), parse_networks(parts.settings.webhook_networks))
    except (InvalidError, ForbiddenTargetError) as error:
        findings.refuse("/url", str(error))
    if config.page_url:
        try:
            parse_target(config.page_url)
        except InvalidError as error:
            findings.refuse("/pageUrl", str(error))
        if any(char in config.page_url for char in "?<>|"):
            findings.refuse("/pageUrl", "must have no query and none of < > |, such as https://slipway.example.org")
    for field, given, known in (
        ("events", config.events, [event.value for event in Event]),
        ("results", config.results, [result.value for result in Result]),
    ):
        for index, word in enumerate(given):
            if word not in known:
                findings.refuse(f"/{field}/{index}", f"{word[:64]!r} is not known; known are {', '.join(known)}")
    if config.results and config.events and Event.TERMINATED.value not in config.events:
        findings.refuse(
            "/results", "only terminated events have a result: add terminated to events, or leave out results"
        )
    if secret:
        try:
            parse_key(secret)
        except InvalidError as error:
            findings.refuse("/secret", str(error))
    if findings.errors:
        first = findings.errors[0]
        text = f"{first.pointer.removeprefix('/').replace('/', '.')}: {first.detail}"
        raise InvalidError(text if len(findings.errors) == 1 else "see errors", fields=findings.errors)


def _refused(pointer: str, detail: str) -> InvalidError:
    findings = Findings()
    findings.refuse(pointer, detail)
    return InvalidError(detail, fields=findings.errors)


def _short(events: Sequence[str]) -> list[str]:
    """Return the short names of event types; a full CloudEvents type is also accepted."""
    return [event.removeprefix(TYPE_PREFIX) for event in events]


def _new_key(parts: ApiDeps) -> bytes:
    return bytes.fromhex(parts.random.token_hex(KEY_BYTES))


async def _forget_quietly(parts: ApiDeps, name: str) -> None:
    """Remove the delivery queue. Errors of Redis are ignored: the next webhook with the name removes the queue."""
    try:
        await parts.deliveries.forget(name)
    except TransientError:
        return


async def _views(parts: ApiDeps, webhooks: Sequence[Webhook]) -> list[WebhookView]:
    backlogs: Sequence[int | None]
    try:
        backlogs = await parts.deliveries.backlog([webhook.name for webhook in webhooks])
    except TransientError:
        backlogs = [None] * len(webhooks)
    warnings = [] if parts.settings.redis_url else [NEEDS_REDIS]
    return [_view(webhook, backlog, warnings) for webhook, backlog in zip(webhooks, backlogs, strict=True)]


def _view(webhook: Webhook, backlog: int | None, warnings: list[str]) -> WebhookView:
    config = webhook.config
    return WebhookView(
        name=webhook.name,
        url=_shown(config.url),
        events=config.events,
        workspaces=config.workspaces,
        results=config.results,
        description=config.description,
        enabled=config.enabled,
        format=config.format,
        page_url=config.page_url,
        created_at=webhook.created,
        resource_version=webhook.resource_version,
        backlog=backlog,
        warnings=warnings,
    )


def _shown(url: str) -> str:
    """Return the scheme and the host only. The rest is often a secret: the full address of a chat permits posting."""
    scheme, host, path, query, _ = urlsplit(url)
    return f"{scheme}://{host}" + ("/***" if path.strip("/") or query else "")


ENDPOINTS = (
    Endpoint(
        method="GET", path=ROOT, handler=list_webhooks, summary="List the webhooks", tag=TAG, answer=Items[WebhookView]
    ),
    Endpoint(
        method="POST",
        path=ROOT,
        handler=create,
        summary="Add a webhook; only this answer contains its signing key",
        tag=TAG,
        body=WebhookBody,
        answer=WebhookView,
        status=201,
    ),
    Endpoint(method="GET", path=f"{ROOT}/{{name}}", handler=get, summary="Show a webhook", tag=TAG, answer=WebhookView),
    Endpoint(
        method="PATCH",
        path=f"{ROOT}/{{name}}",
        handler=patch,
        summary="Change a webhook",
        tag=TAG,
        body=WebhookChange,
        answer=WebhookView,
        has_condition=True,
    ),
    Endpoint(
        method="DELETE",
        path=f"{ROOT}/{{name}}",
        handler=delete,
        summary="Delete a webhook",
        tag=TAG,
        status=204,
        has_condition=True,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/{{name}}/test",
        handler=test,
        summary="Send one test message now and return the result",
        tag=TAG,
        answer=WebhookTest,
    ),
)
