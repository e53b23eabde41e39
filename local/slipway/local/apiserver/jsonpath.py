"""The subset of JSONPath that printer columns use: `.a.b`, `['a']`, `[0]`, `[*]`, `[?(@.type=="Ready")]`.

Pure. Invariant: a path without a matching value finds nothing; only a path that cannot be parsed is an error.
"""

import re
from typing import Any

from slipway.local.apiserver.objects import is_list, is_map

_STEP = re.compile(
    r"""\.(?P<name>(?:[^.\[\\]|\\.)+)|\[\s*(?:
        (?P<quote>['"])(?P<quoted>.*?)(?P=quote)
        | (?P<index>-?\d+)
        | (?P<all>\*)
        | \?\(\s*@\.(?P<field>[^=!\s]+)\s*(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\s*\)
    )\s*\]""",
    re.VERBOSE,
)

Step = tuple[str, Any]


def parse(text: str) -> tuple[Step, ...]:
    """Return the steps of a path. Raises: ValueError."""
    text = text.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    steps = list[Step]()
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ValueError(f"not a JSONPath: {text!r}")
        position = match.end()
        if match["name"] is not None:
            name = match["name"].replace("\\.", ".")
            steps.append(("all", None) if name == "*" else ("name", name))
        elif match["quoted"] is not None:
            steps.append(("name", match["quoted"]))
        elif match["index"] is not None:
            steps.append(("index", int(match["index"])))
        elif match["all"] is not None:
            steps.append(("all", None))
        else:
            path = tuple(match["field"].split("."))
            steps.append(("where", (path, match["op"] == "==", match["value"].strip("'\""))))
    return tuple(steps)


def find(value: Any, steps: tuple[Step, ...]) -> list[Any]:
    found = [value]
    for kind, argument in steps:
        found = [item for each in found for item in _step(each, kind, argument)]
    return found


def _step(value: Any, kind: str, argument: Any) -> list[Any]:
    match kind:
        case "name":
            return [value[argument]] if is_map(value) and value.get(argument) is not None else []
        case "index":
            return [value[argument]] if is_list(value) and -len(value) <= argument < len(value) else []
        case "all":
            return list(value) if is_list(value) else list(value.values()) if is_map(value) else []
        case _:
            path, equal, wanted = argument
            steps = tuple(("name", name) for name in path)
            return [
                item
                for item in (value if is_list(value) else [])
                if ([str(each) for each in find(item, steps)] == [wanted]) is equal
            ]
