"""`slipway import`: converts files of other systems to launch bodies, and reports on each field.

The launches are written to standard output (or `--output`), the report to standard error. Nothing is launched. No
server is needed, except for `--check`.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from slipway.cli import main, yamlfile
from slipway.cli.verb import CliSession, CliVerb, whole_number
from slipway.errors import InvalidError

if TYPE_CHECKING:
    from slipway.cli.importing.kinds import ImportedDocument

Json = dict[str, Any]
FILES_MAX = 500
EXAMPLES = """examples:
  slipway import job.yaml > launch.yaml && slipway apply -f launch.yaml
  slipway import --output launches/ old/*.yaml
  det experiment config 7 | slipway import --report json - > launch.yaml"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("files", metavar="FILE", nargs="+", help="YAML, JSON or a batch script; - reads standard input")
    parser.add_argument(
        "--output", metavar="FILE", default="", help="write to this file; for a folder, one file per launch"
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument(
        "--report",
        choices=("text", "all", "json", "none"),
        default="text",
        help="all: also report the fields that are carried over",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a field is not carried over")
    parser.add_argument("--check", action="store_true", help="also ask the server whether it would launch them")
    parser.add_argument(
        "--kind",
        choices=("notebook", "shell", "command", "tensorboard"),
        default="",
        help="kind of a Determined configuration without an entrypoint",
    )
    parser.add_argument("--image", metavar="I", default="", help="image of launches whose file names none")
    parser.add_argument(
        "--gpus-per-node", metavar="N", type=whole_number, default=8, help="GPUs of a rank, at most (default: 8)"
    )


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Convert the files, write the launches, print the report."""
    from slipway.cli.importing.foreign import Verdict
    from slipway.cli.importing.kinds import ImportOptions, convert

    if arguments.gpus_per_node < 1:
        raise InvalidError("--gpus-per-node: must be at least 1")
    if len(arguments.files) > FILES_MAX:
        raise InvalidError(f"{len(arguments.files)} files; at most {FILES_MAX} are read at once")
    options = ImportOptions(kind=arguments.kind, image=arguments.image, gpus_per_node=arguments.gpus_per_node)
    documents = [
        document for name in arguments.files for document in convert(yamlfile.read(name, "FILE"), name, options)
    ]
    made = [(document, body) for document in documents for body in document.bodies]
    _write(arguments, session, made)
    _report(arguments, session, documents)
    is_good = _check(session, [body for _, body in made]) if arguments.check else True
    if not made:
        return main.USAGE
    is_whole = all(not document.error and not document.count(Verdict.LOST) for document in documents)
    return main.OK if is_good and (is_whole or not arguments.strict) else main.FAILED


def _write(arguments: argparse.Namespace, session: CliSession, made: "list[tuple[ImportedDocument, Json]]") -> None:
    if not made:
        return
    if not arguments.output:
        session.terminal.raw("".join(launch_text(document, body) for document, body in made))
        return
    target = Path(arguments.output)
    if not arguments.output.endswith("/") and not target.is_dir():
        _save(target, "".join(launch_text(document, body) for document, body in made), force=arguments.force)
        return
    names: set[str] = set()
    texts: dict[Path, str] = {}
    for number, (document, body) in enumerate(made, 1):
        name = str(body.get("name") or f"launch-{number}")
        name = f"{name}-{number}" if name in names else name
        names.add(name)
        texts[target / f"{name}.yaml"] = launch_text(document, body)
    if taken := [path for path in texts if path.exists()]:
        _refuse_taken(taken[0], force=arguments.force)
    for path, text in texts.items():
        _save(path, text, force=arguments.force)


def _save(path: Path, text: str, *, force: bool) -> None:
    try:
        if path.exists():
            _refuse_taken(path, force=force)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise InvalidError(f"--output: {path} cannot be written: {exc.strerror or exc}") from exc


def _refuse_taken(path: Path, *, force: bool) -> None:
    if not force:
        raise InvalidError(f"--output: {path} exists; choose another name, or replace it with --force")


def launch_text(document: "ImportedDocument", body: Json) -> str:
    """Return a launch as YAML, with a comment about its source."""
    import yaml

    shown = yaml.dump(body, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=110)
    return f"---\n# {document.system} of {document.file}\n{shown}"


def _dumper() -> Any:
    """Return a dumper that writes multi-line texts as blocks and uses no anchors."""
    import yaml

    class _Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def block(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    _Dumper.add_representer(str, block)
    return _Dumper


def _report(arguments: argparse.Namespace, session: CliSession, documents: "list[ImportedDocument]") -> None:
    from slipway.cli.importing import report

    if arguments.report == "json":
        session.terminal.note(json.dumps(report.as_json(documents), ensure_ascii=False, indent=2))
    elif arguments.report != "none":
        session.terminal.note(report.as_text(documents, session.terminal.width, is_long=arguments.report == "all"))
    elif not any(document.bodies for document in documents):
        session.terminal.note(report.as_text(documents, session.terminal.width))


def _check(session: CliSession, bodies: list[Json]) -> bool:
    """Send each launch to the server as a dry run; return whether the server accepts all of them."""
    from slipway.cli.verb import describe

    is_good = True
    for body in bodies:
        name = body.get("name") or body["kind"]
        try:
            answer: Json = session.api.post("/allocations", body, query={"dryRun": "true"})
        except InvalidError as exc:
            is_good = False
            session.terminal.note(f"{name}: the server would refuse it: {describe(exc)}")
            continue
        session.terminal.note(f"{name}: the server would launch it")
        for warning in cast("list[str]", answer.get("warnings") or []):
            session.terminal.note(f"  warning: {warning}")
    return is_good


VERBS = {"import": CliVerb(configure, execute)}
