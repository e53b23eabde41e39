"""`slipway up --detach`: the start of a stack in the background, by another process of the command."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from slipway.cli import main
from slipway.cli.verb import OWN_COMMAND

COMMAND = """
import signal, sys
from slipway.cli import main
from slipway.cli.verbs import local
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the child inherits this
local.UP_S, local.DOWN_S = 0.0, 0.1
program, data = sys.argv[1:]
local.OWN_COMMAND = (program,)
sys.exit(main.main(["up", "--detach", "--data", data]))
"""


def test_a_start_that_does_not_stop_is_reported(tmp_path: Path) -> None:
    """When the stack is not ready in time and does not stop, the command names the process that is left."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    argv = [sys.executable, "-c", COMMAND, str(program), str(tmp_path / "data")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = re.search(r"process (\d+) did not stop.*its output: (\S+)", done.stderr)
    assert found is not None, done.stderr
    os.kill(int(found[1]), signal.SIGKILL)
    Path(found[2]).unlink()
    assert done.returncode == main.FAILED


def test_the_command_starts_itself_in_a_folder_with_files_named_like_modules(tmp_path: Path) -> None:
    """A project folder may have a `re.py` or a `types.py`: the started process does not import them."""
    for name in ("re", "types", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    done = subprocess.run([*OWN_COMMAND, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
