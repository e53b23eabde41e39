"""Links from a workload to other systems of the cluster: its logs in Loki, a dashboard, a portal, a runbook.

Owns the templates that an operator writes and their placeholders. Pure: no IO. A link contains no credentials: the user
logs in at the other system. Title, address and icon have the form of `metadata.links` of an entity in Backstage.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Meta

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.times import parse_time

PLACEHOLDERS: Final[Mapping[str, str]] = {
    "workspace": "its namespace",
    "id": "its AllocationID; its pods are named <id>-<attempt>-<rank>",
    "name": "its name",
    "uid": "the uid of the object",
    "attempt": "its current attempt",
    "from_ms": "when it was created, in milliseconds since the epoch",
    "to_ms": "when it ended, in milliseconds since the epoch; `now` while it has not ended",
}
_NAME: Final = re.compile(r"\{([^{}]*)\}")


class LinkTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One link that each workload gets. `url` has placeholders; `icon` is a name that portals know."""

    title: Annotated[str, Meta(min_length=1, max_length=64)]
    url: Annotated[str, Meta(max_length=4096)]
    icon: Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9_-]*$")] = ""


LINKS_MAX: Final = 16
_Links = Annotated[tuple[LinkTemplate, ...], Meta(max_length=LINKS_MAX)]


class OutsideLinks(msgspec.Struct, frozen=True):
    """The templates of one installation."""

    logs: str = ""
    """address template of the cluster's own log system; empty: there is none"""
    others: tuple[LinkTemplate, ...] = ()


def check_url_template(text: str) -> str:
    """Return the template when it is valid in the settings; empty means no template. Raises ValueError."""
    if not text:
        return text
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    parts = urlsplit(_NAME.sub("x", text))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("must be an http:// or https:// address without a user")
    unknown = [name for name in _NAME.findall(text) if name not in PLACEHOLDERS]
    if unknown:
        raise ValueError(
            f"has {{{unknown[0]}}}; it may have {known}; write a literal brace of the address as %7B or %7D"
        )
    if _NAME.search(text.split("://", 1)[1].partition("/")[0]):
        raise ValueError("must name its host without a placeholder")
    if re.search(r"[{}\s]", _NAME.sub("", text)):
        raise ValueError("has a single brace or a space: write it as %7B, %7D or %20")
    return text


@lru_cache(maxsize=8)
def link_templates(text: str) -> tuple[LinkTemplate, ...]:
    """Parse the links of a setting in JSON: `[{"title": ..., "url": ..., "icon": ...}]`. Raises ValueError."""
    if not text:
        return ()
    try:
        found = msgspec.json.decode(text, type=_Links)
    except msgspec.DecodeError as error:
        form = '[{"title": "Dashboard", "url": "https://grafana.example/d/1?var-id={id}"}]'
        raise ValueError(f"must be a JSON list such as {form}: {error}") from error
    for number, link in enumerate(found):
        if not link.title.isprintable():
            raise ValueError(f"[{number}].title has characters that cannot be shown")
        try:
            if not check_url_template(link.url):
                raise ValueError("is empty")
        except ValueError as error:
            raise ValueError(f"[{number}].url {error}") from error
    return found


def link_to(template: str, allocation: Allocation) -> str:
    """Return the address that the template makes for an allocation; empty without a template."""
    if not template:
        return ""
    meta, status = allocation.metadata, allocation.status
    values = {
        "workspace": meta.namespace,
        "id": id_of(allocation),
        "name": meta.name,
        "uid": meta.uid,
        "attempt": str(max(1, status.attempt)),
        "from_ms": _ms(meta.creation_timestamp or "") or "now-7d",
        "to_ms": _ms(status.ended_at or "") or "now",
    }
    return _NAME.sub(lambda found: quote(values[found[1]], safe=""), template)


def _ms(time: str) -> str:
    return str(round(parse_time(time) * 1000)) if time else ""
