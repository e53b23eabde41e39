"""`slipway render -f`, and the subcommand `config` of each kind: a preview of a launch, and the body of a past one.

`render` prints the exact objects that the pod worker would create; it launches nothing. `config` prints a launch body
that launches the same again. The body has no name, because the first allocation uses its name while it is kept.
"""

import argparse
from typing import Any, cast

from slipway.cli import main, output
from slipway.cli.dry_run import tell
from slipway.cli.table import escape_controls_in_json
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession, CliVerb, allocation_id
from slipway.cli.verbs.apply import bodies_of, located
from slipway.errors import InvalidError

Json = dict[str, Any]
_NOT_OF_A_BODY = (
    *("requestHash", "signals", "desired", "hold", "queuePosition", "maxRuntimeOverride"),
    # The awaited allocations have ended.
    "after",
    # The view has no secret values; the user must give them again.
    "secretVariables",
)
_OURS = "slipway.dev"
PARTS = ("objects", "spec", "sources", "all")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("-f", "--filename", metavar="FILE", required=True, help="YAML or JSON; - reads standard input")
    parser.add_argument(
        "--show",
        choices=PARTS,
        default=PARTS[0],
        help="the objects (default), the complete spec, the origin of each value, or the whole answer",
    )
    output.add_options(parser, "yaml", "json")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Show the result of each document."""
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
    """Add the arguments of `config`."""
    parser.add_argument("id", metavar="ID", type=allocation_id)
    output.add_options(parser, "yaml", "json")


def config(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the complete launch body of an allocation; `slipway apply -f` accepts it."""
    view: Json = session.api.get(f"/allocations/{arguments.id}")
    _print(session.terminal, body_again(view), arguments.output)
    if names := secret_variables(view):
        session.terminal.note(f"its secret values ({', '.join(names)}) are not shown; add them to secretValues")
    return main.OK


def body_again(view: Json) -> Json:
    """Return a body that launches the same again, with a new name."""
    spec = {name: value for name, value in cast("Json", view["spec"]).items() if name not in _NOT_OF_A_BODY}
    own = {name: value for name, value in cast("Json", view.get("labels") or {}).items() if not _is_ours(name)}
    labels = {"labels": own} if own else {}
    return {"workspace": view["workspace"], **labels, **spec}


def secret_variables(view: Json) -> list[str]:
    """Return the variables with secret values, which are not kept after the launch."""
    return cast("list[str]", view["spec"].get("secretVariables") or [])


def _is_ours(label: str) -> bool:
    """Whether Slipway itself sets the label; a launch with such a label is refused."""
    return label.partition("/")[0].endswith(_OURS)


def _print(terminal: Terminal, value: Any, form: str) -> None:
    import json

    if form == "json":
        terminal.raw(escape_controls_in_json(json.dumps(value, ensure_ascii=False)) + "\n")
        return
    several = cast("list[Any]", value) if isinstance(value, list) else [value]
    for each in several:
        terminal.raw("---\n" + output.yaml_text(each))


VERBS = {"render": CliVerb(configure, execute)}
CONFIG = CliVerb(configure_config, config)
