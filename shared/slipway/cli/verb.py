"""The verbs of the command: their arguments, their session, and the output of their errors.

Owns the options that all verbs share and the mapping from our errors to exit codes.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeGuard

from slipway.cli import main
from slipway.cli.http import Api
from slipway.cli.terminal import Terminal
from slipway.errors import (
    ControlPlaneError,
    DeadlineError,
    DeniedError,
    FieldError,
    InvalidError,
    NotFoundError,
)
from slipway.sdk import address

_OPTIONS = {
    "ranks/0/count": "--ranks",
    "ranks/0/resources/cpu": "--cpus",
    "ranks/0/resources/memory": "--memory",
    "ranks/0/resources/nvidia.com~1gpu": "--gpus",
    "ports/0/port": "--port",
    "env": "--env",
    "labels": "--label",
    "privileges": "--privilege",
    "volumes": "--volume",
    "after": "--after",
    "failurePolicy": "--on-exit",
    "topology": "--topology",
}
"""{field of a launch: the option that sets it}, for options with another name than their field"""
OWN_COMMAND = (sys.executable, "-P", "-m", "slipway.cli.main")
"""The words that start this command in another process. Python does not import modules from the current folder there: a
user's `types.py` would replace Python's own."""
KNOWN_MAX = 200
"""A similar name is looked for among this number of the newest allocations."""
_NAME = re.compile(r"(?!\.\.?$)[^\s/?#%\\]+")
"""The characters of a name that can be one step of a path without quoting."""
_UPPER = re.compile(r"[A-Z]")


class CliSession:
    """The objects that a verb uses: the terminal, and the API, which is found and connected at the first use."""

    def __init__(
        self, terminal: Terminal, *, server: str = "", user: str = "", curl: bool = False, words: Sequence[str] = ()
    ) -> None:
        """`words`: the command line after the verb; options before the verb come first."""
        self.terminal = terminal
        self.words = tuple(words)
        self._server = server
        self._user = user
        self._curl = curl
        self._api: Api | None = None
        self.has_told_version = False
        """the verb itself has printed the versions"""

    @property
    def user(self) -> str:
        """The user name sent to a server without authentication."""
        return self._user or address.own_name()

    @property
    def api(self) -> Api:
        """The client of the named or found server."""
        if self._api is None:
            self._api = self.connect()
        return self._api

    def connect(self, *, is_quiet: bool = False) -> Api:
        """Return another client, for another thread. A quiet client prints nothing: a full-screen verb uses it."""
        show = self.terminal.note if self._curl and not is_quiet else None
        note = None if is_quiet else self.terminal.note
        return Api(address.find(self._server), user=self.user, show=show, note=note)

    def close(self) -> None:
        """Close the connection; print a note when the server's version is not compatible."""
        if self._api is not None:
            self._api.close()
            if self.terminal.is_interactive and not self.has_told_version:
                # Most commands are run by programs, which need not wait for this import.
                from slipway.cli import versions

                versions.tell(self.terminal, self._api.server.url, self._api.server_version)


Configure = Callable[[argparse.ArgumentParser], None]
Execute = Callable[[argparse.Namespace, CliSession], int]


class CliVerb(NamedTuple):
    """One verb: `configure` adds its arguments; `execute` runs it. A raw verb gets its words unparsed.

    A verb that accepts a command gets the words after the first `--` as `arguments.command`; its options may be
    anywhere before that `--`.
    """

    configure: Configure
    execute: Execute
    raw: bool = False
    takes_command: bool = False


class _Parser(argparse.ArgumentParser):
    """The parser of a verb or of a subcommand; the server options may follow either of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # There is no default, so that a subcommand does not reset the value given before it.
        add = partial(self.add_argument_group("server").add_argument, default=argparse.SUPPRESS)
        add("--server", metavar="URL", help="address of the API (default: as `slipway --help` says)")
        add("--user", metavar="NAME", help="act as this user (default: $SLIPWAY_USER, $USER)")
        add("--curl", action="store_true", help="also print each request as a curl command")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check choices as argparse does; the error also suggests a similar choice."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            meant = main.close_to(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{meant}") from None


def parser_of(name: str, verb: CliVerb) -> argparse.ArgumentParser:
    """Return the parser of a verb."""
    entry = main.VERBS[name]
    parser = _Parser(
        prog=f"slipway {name}",
        description=entry.summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.configure(parser)
    parser.set_defaults(server="", user="", curl=False)
    return parser


def _parsed(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parse the words; exit with a usage error that suggests a similar option."""
    arguments, rest = parser.parse_known_args(words)
    if rest:
        known = main.close_to(rest[0].partition("=")[0], long_options(parser)) if rest[0].startswith("-") else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{known}")
    return arguments


def long_options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a parser and of its subcommands; argparse has no public list of them."""
    found: list[str] = []
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        found += [each for each in action.option_strings if each.startswith("--")]
        choices: Any = action.choices
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            found += [name for word in choices.values() for name in long_options(word)]
    return found


def execute(name: str, verb: CliVerb, words: list[str]) -> int:
    """Run a verb; return the exit code."""
    terminal = Terminal()
    if verb.raw:
        return verb.execute(argparse.Namespace(words=words), CliSession(terminal))
    parser = parser_of(name, verb)
    at = words.index("--") if verb.takes_command and "--" in words else len(words)
    arguments = _parsed(parser, words[:at])
    if verb.takes_command:
        arguments.command = words[at + 1 :]
    session = CliSession(terminal, server=arguments.server, user=arguments.user, curl=arguments.curl, words=words)
    try:
        code = verb.execute(arguments, session)
        sys.stdout.flush()
        return code
    except ControlPlaneError as error:
        terminal.clear()
        given = given_options(arguments, long_options(parser))
        meant = _meant(error, arguments, session) if isinstance(error, NotFoundError) else ""
        terminal.note(f"{terminal.paint('error:', 'red')} {describe(error, given)}{meant}")
        return exit_code(error)
    finally:
        session.close()


def _meant(error: NotFoundError, arguments: argparse.Namespace, session: CliSession) -> str:
    """Return a hint with the most similar allocation for an unknown id or name; empty when there is none."""
    ids = [*getattr(arguments, "ids", ()), getattr(arguments, "id", "")]
    wrong = next((id_ for id_ in ids if id_ and f"there is no allocation {id_!r}" in str(error)), "")
    return main.close_to(wrong, known_names(session)) if wrong else ""


def known_names(session: CliSession) -> list[str]:
    """Return names and ids of the newest allocations; empty when they cannot be read."""
    try:
        known = session.api.get("/allocations", {"limit": KNOWN_MAX, "sort": "-createdAt"})["items"]
    except ControlPlaneError:
        return []
    return [str(each[name]) for name in ("name", "id") for each in known]


def describe(error: ControlPlaneError, given: Collection[str] = ()) -> str:
    """Return the error with all its fields; a field that one of the `given` options has set is named by that option."""
    fields = [_field(field, given) for field in error.fields] if _has_fields(error) else []
    summary = str(error).removesuffix("; each is listed under errors")
    text = fields[0] if len(fields) == 1 else "\n".join([f"{summary}:" if fields else summary, *fields])
    # Further lines are indented, so that no line of text from the server looks like a message of this command.
    return "\n  ".join(text.splitlines())


def given_options(arguments: argparse.Namespace, known: Collection[str]) -> set[str]:
    """Return the `known` long options that have a value, such as `--max-runtime`."""
    given = [name for name, value in vars(arguments).items() if value is not False and value not in (None, "", [])]
    return {"--" + name.replace("_", "-") for name in given}.intersection(known)


def _field(field: FieldError, given: Collection[str]) -> str:
    """Return `name: detail`; the api writes a query parameter as `?name= detail`, without a pointer."""
    if not field.pointer and field.detail.startswith("?"):
        name, _, detail = field.detail.removeprefix("?").partition("= ")
        return f"{_option(name, given) or name}: {detail}"
    return f"{_option(field.pointer.removeprefix('/'), given) or named(field.pointer)}: {field.detail}"


def _option(field: str, given: Collection[str]) -> str:
    """Return the option for a field or parameter, if it was given; else empty, because the field was in a file."""
    first = field.partition("/")[0]
    name = _OPTIONS.get(field) or _OPTIONS.get(first) or "--" + _UPPER.sub(lambda found: "-" + found[0].lower(), field)
    return name if name in given else ""


def _has_fields(error: ControlPlaneError) -> TypeGuard[InvalidError]:
    return isinstance(error, InvalidError) and bool(error.fields)


def whole_number(text: str) -> int:
    """Parse an option that is a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a whole number") from None


def allocation_id(text: str) -> str:
    """Parse an argument that is the ID of an allocation, or the beginning of one."""
    if problem := _id_problem(text):
        raise argparse.ArgumentTypeError(problem)
    return text


def checked_id(text: str) -> str:
    """Like `allocation_id`, for a word among other words.

    Raises:
        InvalidError: the word cannot be an ID.
    """
    if problem := _id_problem(text):
        raise InvalidError(problem)
    return text


def _id_problem(text: str) -> str:
    kind, _, name = text.partition("/")
    if kind == "job" and _NAME.fullmatch(name):
        return f"{text[:64]!r} is a job; {command_line('ps', '--job', name)} lists its allocations"
    return "" if _NAME.fullmatch(text) else f"{text[:64]!r} cannot be an ID; `slipway ps` lists the IDs"


def object_name(text: str) -> str:
    """Parse an argument that is a name, or the ID of an object other than an allocation."""
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} cannot be a name: a name is one word without / ? # and %")
    return text


def optional_name(text: str) -> str:
    """Like `object_name`, for an argument that may be left out, which is an empty text."""
    return object_name(text) if text else text


def refuse_names(verb: str, names: str | Sequence[str], *, instead: str = "") -> None:
    """Raise InvalidError when a verb that acts on no named object was given a name; `instead` is what to write."""
    if names:
        first = names if isinstance(names, str) else names[0]
        other = f"; write: {instead} {shlex.quote(first)}" if instead else ""
        raise InvalidError(f"{verb}: takes no name, but got {first[:64]!r}{other}")


def named(pointer: str) -> str:
    """Format a JSON pointer as people write it: `/ranks/0/count` is `ranks[0].count`."""
    text = ""
    for step in pointer.removeprefix("/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        text += f"[{name}]" if name.isdigit() else f".{name}" if text else name
    return text or "(the whole)"


def command_line(*words: object) -> str:
    """Return one of our commands for people to copy.

    Words may come from a server or from its users, so each word is quoted for the shell."""
    return shlex.join(["slipway", *map(str, words)])


def exit_code(error: ControlPlaneError) -> int:
    """Return the exit code of an error."""
    match error:
        case InvalidError():
            return main.USAGE
        case NotFoundError():
            return main.NOT_FOUND
        case DeniedError():
            return main.NOT_ALLOWED
        case DeadlineError():
            return main.TIMED_OUT
        case _:
            return main.FAILED
