"""The walk of a launch: every file whose code runs for one launch of one rank, in the order of the first call.

The launch is played in a process of its own: in one that has launched before, caches spare some of the calls.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

from tools.reference.markdown import code, phrase, table

TOP = """# The walk of a launch

For engineers who want to read the code in the order in which it runs. One `POST /api/v1/allocations` of one rank was
played in the simulated cluster, until some seconds after its end. The table has every file of which a function ran in
that time, in the order of the first call. It begins in the api; the scheduler, the pod worker and the watcher follow as
they hear of the allocation. [Architecture](../../ARCHITECTURE.md#how-a-launch-travels) tells the same in six steps.
"""
ROOT = Path(__file__).parents[2]
PROGRAM = """
import json
from tools.code_figures import launched
print(json.dumps(list(dict.fromkeys(file for file, _, _ in launched()))))
"""
PLAY_S = 120.0


def page() -> str:
    """Return the page."""
    argv = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=True, timeout=PLAY_S)  # noqa: S603 - our own
    files: list[str] = json.loads(done.stdout)
    rows = [[str(number), code(_short(file)), _owned(file)] for number, file in enumerate(files, 1)]
    return f"{TOP}\n{table(['', 'file', 'what it is for'], rows)}"


def _short(file: str) -> str:
    return Path(file).relative_to(ROOT).as_posix()


def _owned(file: str) -> str:
    """The first sentence of the module's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(Path(file).read_text("utf-8"))) or "").split())
    return phrase(text.split(". ", 1)[0])
