"""The address of the server: from the option, the environment, the local stack or the default, in this order."""

import os

import pytest

from slipway.errors import InvalidError
from slipway.local.layout import Layout, StackProcess, StackState, default_folder, start_ticks
from slipway.sdk import address


def a_stack(*, pid: int) -> None:
    """Write the state file of a stack into the default folder."""
    member = StackProcess(name="api", pid=pid, started=start_ticks(pid))
    state = StackState(
        api="http://127.0.0.1:7777", kubeconfig="", redis_url="", kubernetes="", supervisor=pid, members=[member]
    )
    layout = Layout(default_folder())
    layout.make()
    layout.write_state(state)


def test_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option wins over the environment, the environment over the local stack, the local stack over the default."""
    assert address.find().url == address.DEFAULT_SERVER
    a_stack(pid=os.getpid())
    assert address.find().url == "http://127.0.0.1:7777"
    monkeypatch.setenv("SLIPWAY_SERVER", "https://slipway.example/base/")
    assert address.find().url == "https://slipway.example:443/base"
    assert address.find("other:99").url == "http://other:99"


def test_a_stack_that_has_ended_is_not_asked() -> None:
    """The state file of a stack that has ended is ignored."""
    a_stack(pid=2**22 - 3)
    assert address.find().url == address.DEFAULT_SERVER


def test_ipv6() -> None:
    """The brackets of an IPv6 address are kept."""
    found = address.parse("http://[::1]:8080", "test")
    assert (found.host, found.url) == ("::1", "http://[::1]:8080")


@pytest.mark.parametrize("text", ["ftp://x", "http://", "http://x:port", "http://x:99999"])
def test_what_is_no_address(text: str) -> None:
    """An invalid address is refused with its origin."""
    with pytest.raises(InvalidError, match=r"\$SLIPWAY_SERVER"):
        address.parse(text, "$SLIPWAY_SERVER")
