"""The messages of a command in a container: the encoding of its end and of its terminal's size."""

import pytest

from slipway.model import exec_channels


@pytest.mark.parametrize("code", [0, 1, 127, 137, 255])
def test_an_exit_code_comes_as_it_was_sent(code: int) -> None:
    """Zero is a success, everything else a failure with its code."""
    assert exec_channels.end_of(exec_channels.status_of(code)).code == code


def test_a_command_that_was_not_run_has_no_exit_code() -> None:
    """A command that was not run has the server's message instead of an exit code; a missing program can be
    distinguished from other causes."""
    missing = exec_channels.end_of(exec_channels.failure('exec: "x": executable file not found in $PATH'))
    assert (missing.code, missing.is_missing_program) == (None, True)
    other = exec_channels.end_of(exec_channels.failure("container not found"))
    assert (other.code, other.message, other.is_missing_program) == (None, "container not found", False)


@pytest.mark.parametrize(
    "status", [b"", b"[]", b'"x"', b"{}", b'{"status":"Failure","reason":"NonZeroExitCode"}', b"\xff"]
)
def test_an_end_that_cannot_be_read_is_no_success(status: bytes) -> None:
    """An end that cannot be decoded is no success: only an explicit success counts."""
    assert exec_channels.end_of(status).code is None


def test_a_size_has_bounds() -> None:
    """An invalid size of a terminal is ignored; a window that is too large is reduced to the largest size."""
    assert exec_channels.size_of(exec_channels.resize(100, 40)[1:]) == (100, 40)
    assert exec_channels.size_of(exec_channels.resize(10**6, 0)[1:]) == (exec_channels.SIDE_MAX, 1)
    for wrong in ("{}", '{"Width":0,"Height":1}', '{"Width":1000000000,"Height":1}', "[]", '{"Width":"x","Height":1}'):
        assert exec_channels.size_of(wrong.encode()) is None
