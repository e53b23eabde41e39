"""`slipway completion bash|zsh|fish`: prints a completion script for the shell, made from the argument parsers.

The script contains verbs and options; it reads ids with `slipway ps -q` at each completion.
"""

import argparse
import shlex
from collections.abc import Iterable

from slipway.cli import main
from slipway.cli.verb import CliSession, CliVerb, parser_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.epilog = "bash: source <(slipway completion bash)   zsh: the same   fish: slipway completion fish | source"


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the script."""
    words = {name: words_of(parser_of(name, main.load(name))) for name in main.VERBS}
    script = fish(words) if arguments.shell == "fish" else bash(words, zsh=arguments.shell == "zsh")
    session.terminal.raw(script)
    return main.OK


def words_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return everything that may follow a verb, except values."""
    found: list[str] = []
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage] - argparse has no public list of them
        found += action.option_strings
        if not action.option_strings and action.choices is not None:
            found += [str(choice) for choice in action.choices]
    return sorted(set(found))


def bash(words: dict[str, list[str]], *, zsh: bool) -> str:
    """Return the script for bash; zsh runs the same script with its bash emulation.

    The script compares the server's output and never expands it (`compgen -W` would run a command in it). It drops
    words that are no ids, because the shell would run them as code when the user enters the line.
    """
    # bashcompinit registers with compdef, which zsh has not loaded when the user has no configuration.
    load = "(( $+functions[compdef] )) || { autoload -U compinit && compinit }"
    head = f"{load}\nautoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    cases = "\n".join(f"    {name}) words={shlex.quote(_in_lines(options))} ;;" for name, options in words.items())
    return f"""{head}_slipway() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words="" ids="" word LC_ALL=C
  if [ "$COMP_CWORD" -eq 1 ]; then
    words={shlex.quote(_in_lines(words))}
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "$current" in
      -*) ;;
      *) ids="$(slipway ps -q 2>/dev/null)" ;;
    esac
  fi
  COMPREPLY=()
  while IFS= read -r word; do
    case "$word" in
      "") ;;
      "$current"*) COMPREPLY+=("$word") ;;
    esac
  done <<< "$words"
  while IFS= read -r word; do
    case "$word" in
      ""|[!a-z0-9]*|*[!a-z0-9.-]*) ;;
      "$current"*) COMPREPLY+=("$word") ;;
    esac
  done <<< "$ids"
}}
complete -o default -F _slipway slipway
"""


def fish(words: dict[str, list[str]]) -> str:
    """Return the script for fish."""
    lines = ["complete -c slipway -f"]
    ids = '(slipway ps -q 2>/dev/null | string match -r "^[a-z0-9][a-z0-9.-]*\\$")'
    for name, entry in main.VERBS.items():
        about = entry.summary.replace("'", "")
        lines.append(f"complete -c slipway -n __fish_use_subcommand -a {name} -d '{about}'")
        within = f"-n '__fish_seen_subcommand_from {name}'"
        for word in words[name]:
            if word.startswith("--"):
                lines.append(f"complete -c slipway {within} -l {word.removeprefix('--')}")
            elif word.startswith("-"):
                lines.append(f"complete -c slipway {within} -s {word.removeprefix('-')}")
            else:
                lines.append(f"complete -c slipway {within} -a {word}")
        lines.append(f"complete -c slipway {within} -a '{ids}'")
    return "\n".join(lines) + "\n"


def _in_lines(words: Iterable[str]) -> str:
    return "\n".join(words)


VERBS = {"completion": CliVerb(configure, execute)}
