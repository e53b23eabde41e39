"""`slipway ssh` and `ssh-config`: what a rank says of itself is no configuration of ssh."""

import pytest

from slipway.cli.verbs.rank_ssh import account_of, section
from slipway.errors import InvalidError, PermanentError

COMMANDS = b"root\n  ProxyCommand sh -c 'touch /tmp/taken'\nHost *\n  ProxyCommand sh -c 'touch /tmp/taken'\n"


@pytest.mark.parametrize(
    "said",
    [COMMANDS, b"root\rProxyCommand x", b"-oProxyCommand=x", b"root Host", b"a%h", b"$(id)", b"\x1b[2J", b"a" * 65],
)
def test_a_name_of_an_account_is_a_name(said: bytes) -> None:
    """The program `id` is one of the image, and may print anything: what is no name reaches neither ssh nor its
    configuration, and is shown with its control characters written out."""
    with pytest.raises(PermanentError) as refused:
        account_of("x-1", said)
    assert "is no name of an account" in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["root", "_apt", "1000a", "jane.doe", "jane@example.com", "sys-x+y"])
def test_names_of_accounts_that_there_are(name: str) -> None:
    """Those of Linux, and of directories."""
    assert account_of("x-1", f"{name}\n".encode()) == name


@pytest.mark.parametrize("said", [b"", b"\n", b"1000\n"])
def test_an_account_without_a_name(said: bytes) -> None:
    """sshd needs one."""
    with pytest.raises(PermanentError, match="has no name in its /etc/passwd"):
        account_of("x-1", said)


def test_a_value_ends_with_its_line() -> None:
    """No value begins an option or a host of its own, wherever it comes from."""
    assert section("slipway-x", {"User": "root", "IdentitiesOnly": "yes"}) == (
        "Host slipway-x\n  User root\n  IdentitiesOnly yes\n"
    )
    for bad in ("root\nHost *", "root\r", "root\x00", "root\u2028x"):
        with pytest.raises(InvalidError, match=r"^User: "):
            section("slipway-x", {"User": bad})
        with pytest.raises(InvalidError, match=r"^Host: "):
            section(bad, {})
