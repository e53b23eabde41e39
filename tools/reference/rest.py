"""The REST reference: the routes of the api, from the table that the api itself uses."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from slipway.api.app import ENDPOINTS
from slipway.api.http.endpoint import JSON_TYPE, Endpoint
from tools.reference.markdown import code, table

TOP = """# REST API

Bodies are JSON; unknown fields are refused. Errors are `application/problem+json` (RFC 9457). Times are
RFC 3339 in UTC. `{id}` is an AllocationID, or the beginning of one if it matches exactly one allocation.
"""
_PLURALS = ("notebooks", "shells", "commands", "tensorboards", "trainings")


def page() -> str:
    """Return one section per tag; the collections of the kinds are equal, so only one of them is shown."""
    endpoints = [endpoint for endpoint in ENDPOINTS if endpoint.tag not in _PLURALS[1:]]
    parts = [TOP]
    for tag, rows in groupby(endpoints, key=lambda endpoint: endpoint.tag):
        section = list(rows)
        parts.append(f"## {tag.capitalize()}\n")
        if tag == _PLURALS[0]:
            others = ", ".join(code(f"/api/v1/{plural}") for plural in _PLURALS[1:])
            parts.append(f"{others} have the same endpoints; launches there need no `kind`.\n")
        parts.append(table(("request", "what", "body", "answer"), [_row(endpoint) for endpoint in section]))
        parts += _conditions(section)
        parts += _queries(section)
    return "\n".join(parts)


def _row(endpoint: Endpoint) -> tuple[str, str, str, str]:
    answer = _type(endpoint.answer)
    if not answer and endpoint.status != 204:
        answer = ", ".join(kind for kind in endpoint.media_types if kind != JSON_TYPE)
    shown = f"{endpoint.status} {answer}".strip()
    return code(f"{endpoint.method} {endpoint.path}"), endpoint.summary, _type(endpoint.body), shown


def _type(kind: Any) -> str:
    if kind is None:
        return ""
    if arguments := getattr(kind, "__args__", ()):
        return f"list of {_type(arguments[0])}"
    return code(str(kind.__name__))


def _conditions(endpoints: Iterable[Endpoint]) -> list[str]:
    held = [code(f"{endpoint.method} {endpoint.path}") for endpoint in endpoints if endpoint.has_condition]
    return [f"`If-Match` with the ETag of the GET holds to one version (412): {', '.join(held)}.\n"] if held else []


def _queries(endpoints: Iterable[Endpoint]) -> list[str]:
    parts: list[str] = []
    for endpoint in endpoints:
        if endpoint.query:
            rows = [(code(query.name), query.type, query.description) for query in endpoint.query]
            parts.append(f"Parameters of `{endpoint.method} {endpoint.path}`:\n")
            parts.append(table(("name", "type", "what"), rows))
    return parts
