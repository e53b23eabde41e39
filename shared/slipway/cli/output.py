"""Answers in the form that was asked for: the REST body unchanged, YAML, ids, or a table.

Owns `-o` and `-q`.
"""

import argparse
import json
from typing import Any, Protocol, cast

from slipway.cli.columns import harmless, harmless_json
from slipway.cli.http import Api, ApiResponse, Query
from slipway.cli.terminal import Terminal

Json = dict[str, Any]
FORMS = ("table", "wide", "json", "yaml", "name")
PAGE = 500


class Options(Protocol):
    """A parser, or a group of one."""

    def add_argument(self, *names: str, **how: Any) -> Any: ...


def add_options(parser: Options, *forms: str) -> None:
    """`-o` with these forms (default: all), and `-q`."""
    choices = forms or FORMS
    parser.add_argument("-o", "--output", choices=choices, default=choices[0], help="form of the answer")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only ids")


def is_for_machines(arguments: argparse.Namespace) -> bool:
    """Whether the answer itself is wanted."""
    return arguments.output in ("json", "yaml") and not arguments.quiet


def write(terminal: Terminal, form: str, answer: ApiResponse) -> None:
    """The body of an answer as it came (json, with escapes for what a terminal would obey), or as YAML."""
    if form == "yaml":
        terminal.raw(yaml_text(answer.json()))
        return
    body = harmless_json(answer.body.decode(errors="replace"))
    terminal.raw(body if body.endswith("\n") else body + "\n")


def yaml_text(value: Any) -> str:
    """A value as YAML. Characters that a terminal would obey are escapes of YAML: it says the same."""
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text if harmless(text) == text else yaml.safe_dump(value, sort_keys=False)


def listed(api: Api, path: str, query: Query | None = None) -> ApiResponse:
    """A whole list: one page as it came, or the items of all pages under the metadata of the last."""
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
    """The items of a list."""
    return cast("list[Json]", answer.json()["items"])
