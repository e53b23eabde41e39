"""A `helm` command with the options that our pages use: it translates a command line to calls of the Helm library.

Owns only that translation. It refuses an option that no page uses, so that no option of a page is silently ignored. The
values that this machine needs (`PLACE`, a file of values) have less weight than those of the page.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, cast

import yaml

from tests.support import chart

PLACE = "SLIPWAY_PLACE_VALUES"
Json = dict[str, Any]


def main() -> int:
    """Run the command. Return 0, or 1 after printing Helm's own error."""
    words = parser().parse_args()
    given = merged(place_values(), values_of(words.set))
    try:
        match words.verb:
            case "install":
                if not words.create_namespace:
                    raise chart.HelmError("the page creates the namespace with it")
                chart.install(words.kubeconfig, words.namespace, given, name=words.name, chart=Path(words.chart))
            case "upgrade":
                if not words.reset_then_reuse_values:
                    raise chart.HelmError("the page keeps the values")
                kept = chart.reset_then_reuse(words.kubeconfig, values_of(words.set), namespace=words.namespace)
                chart.upgrade(words.kubeconfig, words.namespace, kept, name=words.name, chart=Path(words.chart))
            case "test":
                chart.try_out(words.kubeconfig, words.namespace, name=words.name)
            case _:
                chart.uninstall(words.kubeconfig, words.namespace, name=words.name)
    except chart.HelmError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="helm", allow_abbrev=False)
    verbs = found.add_subparsers(dest="verb", required=True)
    for verb in ("install", "upgrade", "test", "uninstall"):
        one = verbs.add_parser(verb, allow_abbrev=False)
        one.add_argument("name")
        if verb in ("install", "upgrade"):
            one.add_argument("chart")
        one.add_argument("--namespace", required=True)
        one.add_argument("--kubeconfig", default=os.environ["KUBECONFIG"])
        one.add_argument("--set", action="append", default=[])
        one.add_argument("--create-namespace", action="store_true")
        one.add_argument("--reset-then-reuse-values", action="store_true")
    return found


def place_values() -> Json:
    """The values of this machine."""
    file = os.environ.get(PLACE)
    return yaml.safe_load(Path(file).read_text("utf-8")) if file else {}


def values_of(settings: list[str]) -> Json:
    """The values of `--set a.b=c`, typed as in YAML."""
    found: Json = {}
    for setting in settings:
        path, _, text = setting.partition("=")
        *folders, name = path.split(".")
        inner = found
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = yaml.safe_load(text)
    return found


def merged(below: Json, above: Json) -> Json:
    """Merge `above` over `below`, mapping by mapping."""
    found = dict(below)
    for name, value in above.items():
        inner: Any = found.get(name)
        both = isinstance(value, dict) and isinstance(inner, dict)
        found[name] = merged(cast("Json", inner), cast("Json", value)) if both else value
    return found


if __name__ == "__main__":
    raise SystemExit(main())
