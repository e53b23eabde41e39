"""The forms of an answer: the REST body unchanged, YAML, ids, or a table.

Owns `-o` and `-q`.
"""

import argparse
import json
from typing import Any, Protocol, cast

from slipway.cli.http import Api, ApiResponse, Query
from slipway.cli.table import escape_controls, escape_controls_in_json
from slipway.cli.terminal import Terminal

Json = dict[str, Any]
FORMS = ("table", "wide", "json", "yaml", "name")
PAGE = 500


class Options(Protocol):
    """A parser, or an argument group of a parser."""

    def add_argument(self, *names: str, **how: Any) -> Any: ...


def add_options(parser: Options, *forms: str) -> None:
    """Add `-o` with these forms (default: all), and `-q`."""
    choices = forms or FORMS
    parser.add_argument("-o", "--output", choices=choices, default=choices[0], help="format of the output")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only ids")


def is_for_machines(arguments: argparse.Namespace) -> bool:
    """Whether the user wants the answer itself, as JSON or YAML."""
    return arguments.output in ("json", "yaml") and not arguments.quiet


def write(terminal: Terminal, form: str, answer: ApiResponse) -> None:
    """Print the body of an answer unchanged (json, but terminal control characters are escaped), or as YAML."""
    if form == "yaml":
        terminal.raw(yaml_text(answer.json()))
        return
    body = escape_controls_in_json(answer.body.decode(errors="replace"))
    terminal.raw(body if body.endswith("\n") else body + "\n")


def yaml_text(value: Any) -> str:
    """Return a value as YAML. Characters that control a terminal become YAML escapes, with the same meaning."""
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text if escape_controls(text) == text else yaml.safe_dump(value, sort_keys=False)


def listed(api: Api, path: str, query: Query | None = None) -> ApiResponse:
    """Return a whole list: one page unchanged, or the items of all pages with the metadata of the last page."""
    answer = api.call("GET", path, query={"limit": PAGE, **(query or {})})
    page = cast("Json", answer.json())
    more = str(page.get("metadata", {}).get("continue") or "")
    if not more:
        return answer
    items = list(page["items"])
    while more:
        page = cast("Json", api.get(path, {"limit": PAGE, **(query or {}), "continue": more}))
        items += page["items"]
        more = str(page.get("metadata", {}).get("continue") or "")
    return ApiResponse(answer.status, json.dumps({**page, "items": items}).encode(), answer.headers)


def items_of(answer: ApiResponse) -> list[Json]:
    """Return the items of a list."""
    return cast("list[Json]", answer.json()["items"])
