"""An end is described by its cause: a signal by its name, and a missing program as such."""

import pytest

from slipway.model.exitcodes import ended_text, is_start_interrupted

_NO_FILE = "no such file or directory"
RUNC = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "


@pytest.mark.parametrize(
    ("code", "said", "message", "text"),
    [
        (3, "Error", "", "exit code 3"),
        (3, "Error", "no such bucket\n", "exit code 3: no such bucket"),
        (137, "Error", "", "exit code 137 (SIGKILL)"),
        (137, "OOMKilled", "", "exit code 137 (OOMKilled: out of memory)"),
        (139, "", "", "exit code 139 (SIGSEGV)"),
        (255, "Error", "", "exit code 255"),
    ],
)
def test_an_exit_code_is_told_with_its_signal(code: int, said: str, message: str, text: str) -> None:
    """An exit code is shown with its signal, and 137 of a killed program differs from 137 of one without memory."""
    assert ended_text(code, said=said, message=message) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            'failed to start: exec: "nosuch": executable file not found in $PATH',
            "nosuch could not be started: no such file in $PATH",
        ),
        (
            f'{RUNC}unable to start container process: error during container init: exec: "nosuch": executable file '
            "not found in $PATH: unknown",
            "nosuch could not be started: no such file in $PATH",
        ),
        (
            f'{RUNC}unable to start container process: error during container init: exec: "/x/run.sh": stat '
            f"/x/run.sh: {_NO_FILE}: unknown",
            f"/x/run.sh could not be started: {_NO_FILE}",
        ),
        (
            f'{RUNC}unable to start container process: exec: "./run.sh": permission denied: unknown',
            "./run.sh could not be started: permission denied",
        ),
        (
            f"{RUNC}unable to start container process: exec /x/run.sh: exec format error: unknown",
            "/x/run.sh could not be started: exec format error",
        ),
        ("device or resource busy", "the program could not be started: device or resource busy"),
        ("", "the program could not be started"),
    ],
)
def test_a_program_that_could_not_be_started_is_named_with_the_reason(message: str, text: str) -> None:
    """A program that could not be started is named with the reason, in the forms of a local node, runc and containerd;
    an exit code that the program did not return is not shown."""
    assert ended_text(128, said="StartError", message=message) == text
    assert ended_text(127, said="ContainerCannotRun", message=message) == text


@pytest.mark.parametrize(
    ("message", "is_the_machines"),
    [
        ('failed to start containerd task "abc": context canceled', True),
        ("failed to create containerd task: failed to create shim task: ttrpc: closed", True),
        ('sandbox container "abc" is not running', True),
        (f"{RUNC}mkdir /run/containerd/io.containerd.runtime.v2.task: no space left on device", True),
        (f'{RUNC}unable to start container process: exec: "./train": permission denied: unknown', False),
        (f'{RUNC}exec: "context canceled": executable file not found in $PATH: unknown', False),
        ("device or resource busy", False),
        ("", False),
    ],
)
def test_a_start_that_the_machine_broke_off_is_told_from_a_program_that_cannot_start(
    message: str, is_the_machines: bool
) -> None:
    """A start that the machine broke off, by a restart of the kubelet or the runtime, is recognized; a message that
    names the program, or another kind of end, is not."""
    assert is_start_interrupted("StartError", message) is is_the_machines
    assert not is_start_interrupted("Error", message)
