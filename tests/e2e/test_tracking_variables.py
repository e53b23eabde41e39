"""The variables of docs/adapters.md for experiment trackers: a run has one name in all attempts and ranks."""

import re
from pathlib import Path

import yaml

from tests.support.local_stack import RunningStack
from tests.support.names import fresh

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text("utf-8")
SCRIPT = 'echo "$WANDB_RUN_ID $MLFLOW_RUN_NAME" > {marks}/$RANK-$SLIPWAY_ATTEMPT; test "$SLIPWAY_ATTEMPT" = 2'


def test_attempts_and_ranks_share_the_name_of_their_run(stack: RunningStack, marks: Path, tmp_path: Path) -> None:
    """With the template of the page, an attempt after a restart finds the run of the one before it."""
    [source] = re.findall(r"^```yaml\n(# slipway template set.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert "WANDB_RESUME" in yaml.safe_load(source)["env"]
    file, template, name = tmp_path / "tracked.yaml", fresh("tracked"), fresh("run")
    file.write_text(source, encoding="utf-8")
    assert stack.command("template", "set", template, "-f", str(file)).code == 0
    words = ("--template", template, "--name", name, "--ranks", "2", "--max-restarts", "1")
    ran = stack.command("run", *words, "--", "sh", "-c", SCRIPT.format(marks=marks))
    assert ran.code == 0, ran.err
    id_ = stack.view(name)["id"]
    told = {path.name: path.read_text("utf-8").split() for path in marks.iterdir()}
    assert told["0-2"] == told["1-2"] == [id_, id_]
    assert all(names == [id_, id_] for names in told.values())
    assert {each.partition("-")[2] for each in told} == {"1", "2"}
