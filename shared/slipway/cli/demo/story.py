"""The demo: all the main features end to end, on a running stack.

Owns the order of the scenes. It ends by itself; the exit code is 0 when all checks passed.
"""

from slipway.cli import main
from slipway.cli.demo import evidence, scenes
from slipway.cli.demo.stage import DemoStage
from slipway.cli.terminal import Terminal
from slipway.errors import ControlPlaneError


def tell(terminal: Terminal, url: str, redis_url: str) -> int:
    """Run every scene against the API at `url`; return the exit code."""
    stage = DemoStage(terminal, url)
    try:
        _play(stage, redis_url)
    except ControlPlaneError as error:
        stage.check("every call is answered", is_ok=False, found=error)
        return main.FAILED
    return main.OK if evidence.summary(stage) else main.FAILED


def _play(stage: DemoStage, redis_url: str) -> None:
    stage.title("a. a notebook that serves a page")
    notebook = scenes.notebook(stage)
    stage.title("b. a gang of four: all start or none; they sum a vector over sockets")
    gang = scenes.gang(stage)
    stage.title("c. a command that fails with exit code 3")
    scenes.failing(stage)
    stage.title("d. a command that cannot fit, with the reason")
    scenes.too_large(stage)
    stage.title("e. a gang that waits as a whole, killed while it waits")
    scenes.killed(stage)
    if redis_url:
        stage.title("the stream of the gang: every transition, in order, resumable")
        evidence.streams(stage, gang, redis_url)
    stage.title("the placement of the gang")
    evidence.placement(stage, gang)
    stage.title("the trace of its launch")
    evidence.trace(stage, gang)
    stage.title("the end: the notebook is killed, all resources are released")
    scenes.farewell(stage, notebook)
    stage.title("summary")
