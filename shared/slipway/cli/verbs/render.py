"""`slipway render -f`, and the word `config` of each kind: what a launch would be, and what one was.

`render` prints the very objects that the pod worker would make: nothing is launched. `config` prints a launch body that
launches the same again: under a name of its own, because that of the first is taken while it is kept.
"""

import argparse
from typing import Any, cast

from slipway.cli import main, output
from slipway.cli.columns import harmless_json
from slipway.cli.rehearsal import tell
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession, CliVerb, allocation_id
from slipway.cli.verbs.apply import bodies_of, located
from slipway.errors import InvalidError

Json = dict[str, Any]
_NOT_OF_A_BODY = (
    *("requestHash", "signals", "desired", "hold", "queuePosition", "maxRuntimeOverride"),
    # What it waited for has ended.
    "after",
    # What it names has no values here; who launches again gives them again.
    "secretVariables",
)
_OURS = "slipway.dev"
PARTS = ("objects", "spec", "sources", "all")


def configure(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("-f", "--filename", metavar="FILE", required=True, help="YAML or JSON; - reads standard input")
    parser.add_argument(
        "--show",
        choices=PARTS,
        default=PARTS[0],
        help="the objects (default), the complete spec, where each value comes from, or the whole answer",
    )
    output.add_options(parser, "yaml", "json")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Show what each document would become."""
    terminal = session.terminal
    bodies = bodies_of(arguments.filename)
    for number, body in enumerate(bodies, 1):
        try:
            answer: Json = session.api.post("/allocations", body, query={"dryRun": "true"})
        except InvalidError as exc:
            raise located(exc, arguments.filename, number, len(bodies)) from exc
        tell(terminal, answer)
        shown = answer if arguments.show == "all" else answer[arguments.show]
        _print(terminal, shown, arguments.output)
    return main.OK


def configure_config(parser: argparse.ArgumentParser) -> None:
    """Arguments of `config`."""
    parser.add_argument("id", metavar="ID", type=allocation_id)
    output.add_options(parser, "yaml", "json")


def config(arguments: argparse.Namespace, session: CliSession) -> int:
    """The complete launch body of one; `slipway apply -f` takes it."""
    view: Json = session.api.get(f"/allocations/{arguments.id}")
    _print(session.terminal, body_again(view), arguments.output)
    if names := secret_variables(view):
        session.terminal.note(f"its secret values ({', '.join(names)}) are not shown; give them again in secretValues")
    return main.OK


def body_again(view: Json) -> Json:
    """The launch body that launches the same again, under a name of its own."""
    spec = {name: value for name, value in cast("Json", view["spec"]).items() if name not in _NOT_OF_A_BODY}
    own = {name: value for name, value in cast("Json", view.get("labels") or {}).items() if not _is_ours(name)}
    labels = {"labels": own} if own else {}
    return {"workspace": view["workspace"], **labels, **spec}


def secret_variables(view: Json) -> list[str]:
    """The variables whose values only the launch itself knew."""
    return cast("list[str]", view["spec"].get("secretVariables") or [])


def _is_ours(label: str) -> bool:
    """Whether a label is set by Slipway itself, which refuses it in a launch."""
    return label.partition("/")[0].endswith(_OURS)


def _print(terminal: Terminal, value: Any, form: str) -> None:
    import json

    if form == "json":
        terminal.raw(harmless_json(json.dumps(value, ensure_ascii=False)) + "\n")
        return
    several = cast("list[Any]", value) if isinstance(value, list) else [value]
    for each in several:
        terminal.raw("---\n" + output.yaml_text(each))


VERBS = {"render": CliVerb(configure, execute)}
CONFIG = CliVerb(configure_config, config)
