"""Links to where a cluster keeps logs of its own: Loki in Grafana, Cloud Logging, OpenSearch and their like.

Owns the template that an operator writes and what it may name. Pure: no IO. The link carries no credentials: a user
signs in there.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

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
    "to_ms": "when it ended, in the same form; `now` while it has not",
}
_NAME: Final = re.compile(r"\{([^{}]*)\}")


def check_logs_url_template(text: str) -> str:
    """A template as it may be in the settings; empty: there is none. Raises ValueError."""
    if not text:
        return text
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    parts = urlsplit(_NAME.sub("x", text))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("must be an http:// or https:// address without a user")
    unknown = [name for name in _NAME.findall(text) if name not in PLACEHOLDERS]
    if unknown:
        raise ValueError(f"has {{{unknown[0]}}}; it may have {known}; write a brace of the address as %7B or %7D")
    if _NAME.search(text.split("://", 1)[1].partition("/")[0]):
        raise ValueError("must name its host without a placeholder")
    if re.search(r"[{}\s]", _NAME.sub("", text)):
        raise ValueError("has a brace or a space by itself: write %7B, %7D or %20")
    return text


def outside_logs_url(template: str, allocation: Allocation) -> str | None:
    """Where the logs of the allocation are shown; None without a template."""
    if not template:
        return None
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
