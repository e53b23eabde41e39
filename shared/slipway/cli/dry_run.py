"""The messages about a dry run."""

from typing import Any, cast

from slipway.cli.terminal import Terminal

Json = dict[str, Any]


def tell(terminal: Terminal, answer: Json) -> None:
    """Print the messages about a dry run: its warnings, and whether the launch would start now."""
    for warning in cast("list[str]", answer.get("warnings") or []):
        terminal.note(f"{terminal.paint('warning:', 'yellow')} {warning}")
    room = cast("Json", answer.get("capacity") or {})
    if room and not room["startsNow"]:
        terminal.note(f"now {room['fitNow']} of {room['ranks']} ranks would fit pool {room['pool']}: it would wait")
    pods = cast("Json", answer.get("pods") or {})
    if pods and pods["shown"] < pods["total"]:
        terminal.note(f"the first {pods['shown']} of {pods['total']} pods are shown; the others differ in their rank")
