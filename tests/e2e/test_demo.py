"""The demo launches, reports success, and leaves nothing."""

import re
import subprocess
from pathlib import Path

from tests.support.local_stack import cli_words, processes_of


def test_the_demo_passes_and_leaves_nothing() -> None:
    """The exit code is 0, every check is ok, and no process and no folder is left."""
    done = subprocess.run(cli_words("demo"), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "checks, all ok" in done.stdout
    assert " NO " not in done.stdout
    assert max(len(line) for line in (done.stdout + done.stderr).splitlines()) <= 80
    for title in (
        "a. a notebook",
        "b. a gang",
        "c. a command",
        "d. a command that cannot",
        "e. a gang",
        "stream",
        "placement",
        "trace",
    ):
        assert re.search(rf"^── .*{re.escape(title)}", done.stdout, re.MULTILINE), title
    found = re.search(r"kubeconfig (\S+)/kubeconfig", done.stderr)
    assert found is not None
    assert not Path(found[1]).exists()
    assert processes_of(found[1]) == []
