"""`slipway ssh` and `ssh-config`: texts of a rank cannot become configuration of ssh."""

import os
from pathlib import Path

import pytest

from slipway.cli import ssh_keys
from slipway.cli.verbs.rank_ssh import account_of, section
from slipway.errors import InvalidError, PermanentError, UnavailableError

COMMANDS = b"root\n  ProxyCommand sh -c 'touch /tmp/taken'\nHost *\n  ProxyCommand sh -c 'touch /tmp/taken'\n"


@pytest.mark.parametrize(
    "said",
    [COMMANDS, b"root\rProxyCommand x", b"-oProxyCommand=x", b"root Host", b"a%h", b"$(id)", b"\x1b[2J", b"a" * 65],
)
def test_a_name_of_an_account_is_a_name(said: bytes) -> None:
    """The image's program `id` may print anything: an invalid account name reaches neither ssh nor its configuration,
    and is shown with escaped control characters."""
    with pytest.raises(PermanentError) as refused:
        account_of("x-1", said)
    assert "is not a valid account name" in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["root", "_apt", "1000a", "jane.doe", "jane@example.com", "sys-x+y"])
def test_names_of_accounts_that_there_are(name: str) -> None:
    """Names of accounts of Linux and of directories are accepted."""
    assert account_of("x-1", f"{name}\n".encode()) == name


@pytest.mark.parametrize("said", [b"", b"\n", b"1000\n"])
def test_an_account_without_a_name(said: bytes) -> None:
    """An account without a name is refused, because sshd requires one."""
    with pytest.raises(PermanentError, match="has no name in its /etc/passwd"):
        account_of("x-1", said)


def test_a_value_ends_with_its_line() -> None:
    """A value ends with its line: no value can add an option or a host, wherever it comes from."""
    assert section("slipway-x", {"User": "root", "IdentitiesOnly": "yes"}) == (
        "Host slipway-x\n  User root\n  IdentitiesOnly yes\n"
    )
    for bad in ("root\nHost *", "root\r", "root\x00", "root\u2028x"):
        with pytest.raises(InvalidError, match=r"^User: "):
            section("slipway-x", {"User": bad})
        with pytest.raises(InvalidError, match=r"^Host: "):
            section(bad, {})


def test_a_key_generator_that_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ssh-keygen that does not end is stopped, and the command ends with an error message."""
    program = tmp_path / "ssh-keygen"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh_keys, "KEYGEN_S", 0.1)
    with pytest.raises(UnavailableError, match="ssh-keygen did not end within"):
        ssh_keys.keys_of("a-1")
