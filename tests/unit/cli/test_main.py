"""Finding the verb: quickly, and with a helpful error for every wrong word."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.cli import main
from slipway.cli.verb import parser_of
from tests.support.cli import run_here

HEAVY = ("argparse", "asyncio", "msgspec", "http.client", "yaml", "kubernetes", "redis", "numpy", "starlette")
NEVER = ("kubernetes", "redis", "numpy", "starlette", "httpx2")


def test_help_imports_almost_no_modules() -> None:
    """The help page imports no library and no large part of the standard one."""
    code = f"import sys, slipway.cli.main as m; m.main(['--help']); print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_verb_but_simulate_loads_the_clients() -> None:
    """The command speaks HTTP: it never imports the clients of Kubernetes and Redis, nor numpy."""
    code = (
        "import sys, slipway.cli.main as m\n"
        "for name in m.VERBS: m.load(name)\n"
        f"print([n for n in {NEVER!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", ["ps", "get", "logs", "run", "rm"])
def test_a_verb_that_people_wait_for_starts_without_asyncio(verb: str) -> None:
    """A verb without a long connection loads no event loop, which would be a third of its start."""
    code = (
        "import contextlib, sys, slipway.cli.main as m\n"
        f"with contextlib.suppress(SystemExit): m.main([{verb!r}, '--help'])\n"
        "print('asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_help_names_every_verb() -> None:
    """Each verb has a line on the help page, which fits 80 columns."""
    page = main.help_page()
    assert all(f"  {name} " in page for name in main.VERBS)
    assert max(len(line) for line in page.splitlines()) <= 80


@pytest.mark.parametrize("name", [name for name in main.VERBS if name != "simulate"])
def test_every_verb_has_help(name: str) -> None:
    """`slipway VERB --help` works, and names the server option."""
    done = run_here(name, "--help")
    assert done.code == 0
    assert f"slipway {name}" in done.out
    assert "--server" in done.out
    assert parser_of(name, main.load(name)).description


def test_help_of_a_verb_both_ways() -> None:
    """`slipway help ps` is `slipway ps --help`."""
    assert run_here("help", "ps").out == run_here("ps", "--help").out


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], []])
def test_help_is_an_answer(words: list[str]) -> None:
    """A call for help, or without arguments, exits with 0."""
    done = run_here(*words)
    assert (done.code, done.out.startswith("usage: slipway")) == (0, True)


def test_an_unknown_verb_is_a_usage_error() -> None:
    """An unknown verb is a usage error, which suggests the closest verb."""
    done = run_here("desribe")
    assert done.code == main.USAGE
    assert "did you mean describe?" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--gpu", "1", "--", "true"), "--gpu; did you mean --gpus?"),
        (("ps", "--worksapce=x"), "--worksapce=x; did you mean --workspace?"),
        (("token", "create", "ada", "--rol", "admin"), "did you mean --role?"),
        (("ps", "--zzz"), "unrecognized arguments: --zzz\n"),
        (("run", "--gpus", "two", "--", "true"), "argument --gpus: 'two' is not a whole number\n"),
    ],
)
def test_an_option_that_does_not_exist_is_answered_with_the_one_that_is_close(
    words: tuple[str, ...], said: str
) -> None:
    """The error of an unknown option suggests the closest option."""
    done = run_here(*words)
    assert (done.code, said in done.err) == (main.USAGE, True), done.err


def test_an_unknown_option_is_a_usage_error() -> None:
    """An unknown option is argparse's usage error, with its exit code."""
    done = run_here("ps", "--colour")
    assert done.code == main.USAGE
    assert "--colour" in done.err


def test_the_server_may_be_named_first() -> None:
    """`slipway --server URL ps` and `slipway ps --server URL` are the same."""
    done = run_here("--server", "127.0.0.1:1", "ps")
    assert done.code == main.FAILED
    assert "http://127.0.0.1:1" in done.err


def test_the_server_may_be_named_behind_any_word() -> None:
    """`slipway job --server URL ls` and `slipway job ls --server URL` are the same, and the last URL wins."""
    for words in (
        ("job", "--server", "127.0.0.1:1", "ls"),
        ("job", "ls", "--server", "127.0.0.1:1"),
        ("notebook", "start", "-d", "--server", "127.0.0.1:1"),
        ("--server", "127.0.0.1:2", "job", "ls", "--server", "127.0.0.1:1"),
    ):
        done = run_here(*words)
        assert done.code == main.FAILED, words
        assert "http://127.0.0.1:1" in done.err


def test_a_server_that_is_not_there() -> None:
    """The error of a missing server has its address and the next step."""
    done = run_here("ps", "--server", "http://127.0.0.1:1")
    assert done.code == main.FAILED
    assert "no Slipway answers at http://127.0.0.1:1" in done.err
    assert "slipway up" in done.err
    assert "--server" in done.err


def test_an_address_that_is_none() -> None:
    """An invalid address is a usage error that shows a valid one."""
    done = run_here("ps", "--server", "ftp://x")
    assert done.code == main.USAGE
    assert "http://127.0.0.1:8080" in done.err


def test_version() -> None:
    """`slipway version --client` and `slipway --version` print the same version."""
    assert run_here("version", "--client").out == run_here("--version").out
    assert run_here("--version").out.startswith("slipway ")


def test_simulate_is_the_schedulers_own(capfd: pytest.CaptureFixture[str]) -> None:
    """`slipway simulate` passes its arguments to the scheduler's program unchanged."""
    assert run_here("simulate", "/no/such/file").code == main.USAGE


def test_the_page_of_the_docs_names_every_verb() -> None:
    """Every verb is in docs/cli.md."""
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in main.VERBS if f"`{name}" not in page] == []


def test_a_word_of_another_tool_leads_to_ours() -> None:
    """For a verb of Slurm, Docker or kubectl the error names our verb, and each of these verbs exists."""
    assert {words.split()[0] for words in main.ELSEWHERE.values()} <= set(main.VERBS)
    assert not set(main.ELSEWHERE) & {*main.VERBS, *main.ALIASES}
    assert run_here("list").err == "slipway: there is no verb 'list'; did you mean ps?; `slipway --help` lists them\n"
    assert "did you mean node drain?" in run_here("drain").err


@pytest.mark.parametrize("words", [["--help"], ["help"], ["run", "--help"], ["version", "--client"]])
def test_a_reader_that_has_left_is_no_error(words: list[str]) -> None:
    """`slipway --help | head -1`: no message, and exit code 141, as for any program that SIGPIPE ends; argparse exits
    with 0."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        argv = [sys.executable, "-m", "slipway.cli.main", *words]
        done = subprocess.run(argv, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode in (main.OK, main.BROKEN_PIPE)
    assert done.stderr == ""


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_character_that_the_terminal_lacks_is_written_in_its_place(encoding: str, tmp_path: Path) -> None:
    """A character that the terminal's encoding lacks is replaced, and the rest of the text is shown."""
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --job-name=x\necho 'a \u2588 b'\n", "utf-8")
    words = [sys.executable, "-m", "slipway.cli.main", "import", str(script)]
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(words, capture_output=True, env=env, check=False)
    assert (done.returncode, b"a \\u2588 b" in done.stdout) == (0, True), done.stderr
