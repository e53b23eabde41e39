"""`/docs`: the route table as one page of HTML, without scripts and external resources. Pure."""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from slipway.api.endpoint import Endpoint

POLICY = "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
_START = """curl -X POST {base}/api/v1/allocations -H 'Content-Type: application/json' \\
  -d '{{"kind": "command", "image": "python:3.12-slim", "command": ["python", "-c", "print(42)"]}}'
curl {base}/api/v1/allocations/ID/explain
curl -N {base}/api/v1/allocations/ID/events
curl {base}/api/v1/allocations/ID/logs?follow=true"""


def page(endpoints: Sequence[Endpoint], schemas: dict[str, Any], base: str) -> str:
    """Return the page."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width"><title>Slipway API</title>',
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/assets/docs/docs.css">',
        "</head><body><h1>Slipway API</h1>",
        '<p>Everything here is also in <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1), events and ',
        'webhooks in <a href="/asyncapi.json">/asyncapi.json</a> (AsyncAPI 3). Errors are ',
        "<code>application/problem+json</code> with a JSON pointer per bad field.</p>",
        f"<pre>{escape(_START.format(base=base))}</pre>",
    ]
    for tag, rows in groupby(sorted(endpoints, key=lambda row: row.tag), key=lambda row: row.tag):
        parts.append(f"<h2>{escape(tag)}</h2>")
        parts += [_row(row, schemas) for row in rows]
    parts.append("</body></html>")
    return "".join(parts)


def _row(row: Endpoint, schemas: dict[str, Any]) -> str:
    terms = [(f"?{query.name}", query.description) for query in row.query]
    if row.body is not None:
        terms += [(name, _text(field)) for name, field in _fields(row.body, schemas).items()]
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in terms)
    return (
        f'<details><summary><span class="method">{row.method}</span><code>{escape(row.path)}</code>'
        f'<span class="what">{escape(row.summary)}</span></summary>'
        f"<dl>{body or '<dd>no parameters</dd>'}</dl></details>"
    )


def _fields(body: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    return schemas.get(getattr(body, "__name__", ""), {}).get("properties", {})


def _text(field: dict[str, Any]) -> str:
    """Return the type, description and default of a field in a few words."""
    kinds = [field.get("type") or field.get("$ref", "").rpartition("/")[2]]
    for option in field.get("anyOf", ()):
        kinds.append(option.get("type") or option.get("$ref", "").rpartition("/")[2])
    words = [" or ".join(str(kind) for kind in kinds if kind and kind != "null")]
    words += [str(field["description"])] if "description" in field else []
    words += [f"default {field['default']}"] if field.get("default") not in (None, "", [], {}) else []
    return "; ".join(words)
