"""The bodies of the routes of webhooks."""

from typing import Annotated

import msgspec
from msgspec import Meta

from slipway.api.schemas import Request
from slipway.api.webhooks.formats import BodyFormat
from slipway.crd.v1alpha1 import Name

Events = Annotated[list[str], Meta(max_length=16, description="transitions that are sent, such as running; empty: all")]
Workspaces = Annotated[list[Name], Meta(max_length=100, description="workspaces whose events are sent; empty: all")]
Results = Annotated[
    list[str], Meta(max_length=16, description="results, such as Failed: then only ends with these results are sent")
]
Url = Annotated[str, Meta(description="address that events are posted to: https://... or http://...")]
Description = Annotated[str, Meta(max_length=256)]
Format = Annotated[
    BodyFormat, Meta(description="format of the body: cloudevents for programs, or a message for slack or teams")
]
PageUrl = Annotated[
    str, Meta(description="address of the pages for people, https://...: messages for slack and teams link to it")
]
WebhookName = Annotated[str, Meta(max_length=40, pattern=r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class WebhookBody(Request, kw_only=True, frozen=True):
    """A new webhook; only `url` is required."""

    url: Url
    name: Annotated[WebhookName, Meta(description="readable name; generated when absent")] = ""
    events: Events = []
    workspaces: Workspaces = []
    results: Results = []
    description: Description = ""
    enabled: bool = True
    format: Format = BodyFormat.CLOUDEVENTS
    page_url: PageUrl = ""
    secret: Annotated[str, Meta(max_length=128, description="signing key, whsec_...; generated when absent")] = ""


class WebhookChange(Request, kw_only=True, frozen=True):
    """The fields to change; absent fields keep their values."""

    url: Url | msgspec.UnsetType = msgspec.UNSET
    events: Events | msgspec.UnsetType = msgspec.UNSET
    workspaces: Workspaces | msgspec.UnsetType = msgspec.UNSET
    results: Results | msgspec.UnsetType = msgspec.UNSET
    description: Description | msgspec.UnsetType = msgspec.UNSET
    enabled: bool | msgspec.UnsetType = msgspec.UNSET
    format: Format | msgspec.UnsetType = msgspec.UNSET
    page_url: PageUrl | msgspec.UnsetType = msgspec.UNSET
    secret: Annotated[str, Meta(max_length=128, description="another signing key")] | msgspec.UnsetType = msgspec.UNSET
    rotate_secret: Annotated[bool, Meta(description="true: generate another signing key and return it once")] = False


class WebhookView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One webhook. Of the URL only the scheme and the host are shown; `secret` is shown once, when it is created."""

    name: str
    url: str
    events: list[str]
    workspaces: list[str]
    results: list[str]
    description: str
    enabled: bool
    format: BodyFormat
    """the format of its bodies"""
    page_url: str
    """address of the pages for people, for the links in messages; empty: no link"""
    created_at: str
    resource_version: str
    backlog: int | None
    """number of deliveries that wait or are being tried; null while Redis cannot be reached"""
    warnings: list[str]
    secret: str | msgspec.UnsetType = msgspec.UNSET


class WebhookTest(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The result of a test message to a receiver."""

    delivered: bool
    status: int
    detail: str
    duration_ms: float
