"""`python -m tools.demo_session docs/demo.md`: writes the page with a recorded session of `slipway demo`.

Owns the form of the page. The page shows the complete output of the command in its order. Only the folder of the
session, which is new each time, is replaced by a fixed name.
"""

import re
import subprocess
import sys
from pathlib import Path

WIDTH = 80
HEAD = """# A recorded session

`make demo` starts everything on one machine, does the main job once, and stops everything. This is what it printed.
`make docs-demo` runs it again and writes this page. Ids, addresses and times differ from run to run.

```console
$ make demo
"""


class SessionError(Exception):
    """The output cannot be shown: the demo failed, or a line is too wide."""


def page_of(printed: str) -> str:
    """Return the page that shows the session.

    Raises:
        SessionError: a line is wider than a terminal, or a check of the demo failed.
    """
    text = re.sub(r"/\S+/slipway-demo-\w+", "/tmp/slipway-demo", printed)  # noqa: S108 - a name that is shown
    lines = [line.rstrip() for line in text.strip().splitlines()]
    wide = [line for line in lines if len(line) > WIDTH]
    if wide:
        raise SessionError(f"{len(wide)} lines are wider than {WIDTH} columns; the first: {wide[0]}")
    if not any(line.endswith("checks, all ok") for line in lines):
        raise SessionError("a check of the demo failed; run make demo and look at it")
    return HEAD + "\n".join(lines) + "\n```\n"


def main(target: str) -> int:
    """Run the demo, and write the page."""
    command = [str(Path(sys.executable).with_name("slipway")), "demo"]
    done = subprocess.run(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    try:
        page = page_of(done.stdout)
    except SessionError as error:
        sys.stderr.write(f"make docs-demo: {error}\n")
        return 1
    Path(target).write_text(page, "utf-8")
    sys.stdout.write(f"make docs-demo: {len(page.splitlines())} lines in {target}\n")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
